/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* Naming call stacks: each is sent once, events name it by its id. */

/* Hands a stack over to user space. False if there is no room. */
static __always_inline bool hand_over(struct control *words, struct stack *stack, u32 n_frames)
{
	if (!stacks.ringbuf_output(stack, offsetof(struct stack, frames) + n_frames * sizeof(u64),
				   BPF_RB_NO_WAKEUP))
		return true;
#ifdef SPILL_ENTRIES
	u64 id = stack->stack_id;

	if (!kept_stacks.update(&id, stack)) {
		words->kept_stacks = 1;
		return true;
	}
#endif
	return false;
}

/*
 * The id of the stack that this thread's call returns to. A stack that was not
 * sent before is handed over first and is marked as sent only after that:
 * whoever sees an event's id finds the stack already in its ring. (No frames: a miss
 * has been sent instead, under an id of its own.)
 */
static __always_inline u64 capture_stack(struct pt_regs *ctx, struct control *words, u64 id,
					 struct call *call)
{
	struct space *space = get_space(id);
	u64 nothing = 0;
	u64 *recent;
	u64 stack_id;
	u32 n;

	if (!space)
		return 0;
	stack_id = walk_stack(ctx, space, call);
	recent = &call->recent[stack_id % RECENT_STACKS];
	n = call->stack.n_frames;
	if (!n || *recent == stack_id)
		return stack_id;
	if (known_stacks.lookup(&stack_id)) {
		*recent = stack_id;
		return stack_id;
	}
	if (n > MAX_FRAMES)
		n = MAX_FRAMES;
	if (!hand_over(words, &call->stack, n))
		count(COUNTER_LOST_STACKS);
	else if (known_stacks.update(&stack_id, &nothing))
		count(COUNTER_STACK_TABLE_FULL);
	return stack_id;
}
