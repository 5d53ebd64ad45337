/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* Interning of call stacks: each distinct stack is sent once, and events carry its id. */

#ifndef PYTHON
#define has_walked(call) false
#define walk_python_first(ctx, id, call)
#define walked_scratch(call) take_scratch()
#endif

/* Sends a stack to user space. False if there is no room. */
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
 * The id of the native stack that this thread's call returns to, walked in `scratch`. A new
 * stack is sent first and marked as sent afterwards, so a reader of an event's id finds the
 * stack in its ring. (A stack without frames is known to user space, or was sent as a miss
 * with an id of its own.)
 */
static __always_inline u64 name_code(struct pt_regs *ctx, struct control *words,
				       struct space *space, struct call *call,
				       struct scratch *scratch)
{
	u64 stack_id = walk_stack(ctx, space, call, scratch);
	u32 n = scratch->stack.n_frames;
	u64 nothing = 0;

	if (!n || is_sent(scratch, stack_id))
		return stack_id;
	if (n > MAX_FRAMES + 1)
		n = MAX_FRAMES + 1;
#ifdef PYTHON
	if (has_words(space, call))
		scratch->stack.flags |= STACK_CODE;
#endif
	if (!hand_over(words, &scratch->stack, n))
		count(COUNTER_LOST_STACKS);
	else if (known_stacks.update(&stack_id, &nothing))
		count(COUNTER_STACK_TABLE_FULL);
	return stack_id;
}

/* The id of the stack that this thread's call returns to; 0 if it is unavailable. */
static __always_inline u64 capture_stack(struct pt_regs *ctx, struct control *words, u64 id,
					 struct call *call)
{
	struct space *space = get_space(id);
	struct scratch *scratch;
	u64 stack_id;

	if (!space)
		return 0;
	scratch = walked_scratch(call);
	if (!scratch) {
		count(COUNTER_LOST_STACKS);
		return 0;
	}
	stack_id = name_code(ctx, words, space, call, scratch);
#ifdef PYTHON
	if (has_words(space, call) && stack_id)
		stack_id = name_python(space, call, scratch, stack_id);
#endif
	release_scratch(scratch);
	return stack_id;
}
