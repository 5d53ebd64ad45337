/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* Walking and naming call stacks. */

/* Adds one to a counter. */
static __always_inline void count(u32 which)
{
	u64 *counter = counters.lookup(&which);

	if (counter)
		__sync_fetch_and_add(counter, 1);
}

/* No window is loaded: every frame pointer is further than a window from here. */
#define NO_WINDOW 0xffffffff00000000ULL

/* One step of a 64-bit multiply-and-fold hash: order matters, every bit spreads. */
static __always_inline u64 mix(u64 hash, u64 value)
{
	hash = (hash ^ value) * 0x9e3779b97f4a7c15ULL;
	return hash ^ (hash >> 29);
}

/*
 * Reads the frame at fp through the window that `base` says is loaded, loading another
 * one if the frame is not in it. Returns where in the window it is, or a number past
 * STACK_WINDOW if it could not be read.
 */
static __always_inline u64 find_frame(struct call *call, u64 fp, u64 *base)
{
	u64 at = fp - *base;

	if (at <= STACK_WINDOW - STACK_FRAME_BYTES)
		return at;
	*base = fp & ~(u64)(STACK_WINDOW - 1);
	at = fp - *base;
	if (at <= STACK_WINDOW - STACK_FRAME_BYTES) {
		if (!bpf_probe_read_user(call->window, STACK_WINDOW, (void *)*base))
			return at;
	} else if (!bpf_probe_read_user(call->window, STACK_FRAME_BYTES, (void *)fp)) {
		/* The frame lies across two windows: read it alone, at the window's start. */
		*base = NO_WINDOW;
		return 0;
	}
	*base = NO_WINDOW;
	return STACK_WINDOW + 1;
}

/*
 * Walks the frame pointers from a return probe's registers: ip is where the
 * allocator returned to, bp the caller's frame. Each frame is the saved bp with
 * the return address above it. Fills `stack` and returns its id.
 */
static __always_inline u64 walk_stack(struct pt_regs *ctx, struct call *call)
{
	struct stack *stack = &call->stack;
	u64 base = NO_WINDOW;
	u64 fp = PT_REGS_FP(ctx);
	u64 lowest = PT_REGS_SP(ctx);
	u64 pc = PT_REGS_IP(ctx);
	u64 hash = 0x1905;
	u32 flags = STACK_TRUNCATED;
	u32 n = 0;

	/* Read now: the verifier forbids what clang makes of reading them in the loop. */
	asm volatile("" : "+r"(fp), "+r"(lowest), "+r"(pc));

#pragma clang loop unroll(disable)
	for (u32 i = 0; i < MAX_FRAMES; i++) {
		u64 at;

		stack->frames[i] = pc;
		hash = mix(hash, pc);
		n = i + 1;
		if (!fp) {
			flags = 0;
			break;
		}
		if (fp < lowest || (fp & 7)) {
			flags = STACK_BROKEN;
			break;
		}
		at = find_frame(call, fp, &base);
		if (at > STACK_WINDOW) {
			flags = STACK_UNREADABLE;
			break;
		}
		lowest = fp + STACK_FRAME_BYTES;
		fp = *(u64 *)(call->window + (at & (STACK_WINDOW - 8)));
		pc = *(u64 *)(call->window + (at & (STACK_WINDOW - 8)) + 8);
		if (!pc) {
			flags = 0;
			break;
		}
	}
	hash = mix(hash, flags);
	hash = mix(hash, n);
	stack->stack_id = hash ? hash : 1;
	stack->n_frames = n;
	stack->flags = flags;
	return stack->stack_id;
}

/*
 * The id of the stack that this thread's call returns to. A stack that was not
 * sent before goes to ring `stacks` first and is marked as sent only after that:
 * whoever sees an event's id finds the stack already in its ring.
 */
static __always_inline u64 capture_stack(struct pt_regs *ctx, struct call *call)
{
	u64 id = walk_stack(ctx, call);
	u64 nothing = 0;
	u32 n = call->stack.n_frames;

	if (known_stacks.lookup(&id))
		return id;
	if (n > MAX_FRAMES)
		n = MAX_FRAMES;
	if (stacks.ringbuf_output(&call->stack, offsetof(struct stack, frames) + n * sizeof(u64),
				  BPF_RB_NO_WAKEUP))
		count(COUNTER_LOST_STACKS);
	else if (known_stacks.update(&id, &nothing))
		count(COUNTER_STACK_TABLE_FULL);
	return id;
}
