/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* Naming call stacks: each is sent once, events name it by its id. */

/*
 * The id of the stack that this thread's call returns to. A stack that was not
 * sent before goes to ring `stacks` first and is marked as sent only after that:
 * whoever sees an event's id finds the stack already in its ring. (No frames: a miss
 * has been sent instead, under an id of its own.)
 */
static __always_inline u64 capture_stack(struct pt_regs *ctx, struct control *words,
					 struct call *call)
{
	struct space *space = get_space(bpf_get_current_pid_tgid());
	u64 nothing = 0;
	u64 *recent;
	u64 id;
	u32 n;

	if (!space)
		return 0;
	id = walk_stack(ctx, words, space, call);
	recent = &call->recent[id % RECENT_STACKS];
	n = call->stack.n_frames;
	if (!n || *recent == id)
		return id;
	if (known_stacks.lookup(&id)) {
		*recent = id;
		return id;
	}
	if (n > MAX_FRAMES)
		n = MAX_FRAMES;
	if (stacks.ringbuf_output(&call->stack, offsetof(struct stack, frames) + n * sizeof(u64),
				  BPF_RB_NO_WAKEUP))
		count(COUNTER_LOST_STACKS);
	else if (known_stacks.update(&id, &nothing))
		count(COUNTER_STACK_TABLE_FULL);
	return id;
}
