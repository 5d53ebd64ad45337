/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* Walking call stacks by frame pointers. */

/*
 * Reads the frame at fp through the window that `base` says is loaded, loading another
 * one if the frame is not in it. Returns where in the window it is, or a number past
 * STACK_WINDOW if it could not be read.
 */
static __always_inline u64 find_frame(struct scratch *scratch, u64 fp, u64 *base)
{
	u64 at = fp - *base;

	if (at <= STACK_WINDOW - STACK_FRAME_BYTES)
		return at;
	*base = fp & ~(u64)(STACK_WINDOW - 1);
	at = fp - *base;
	if (at <= STACK_WINDOW - STACK_FRAME_BYTES) {
		if (!read_user(scratch->window, STACK_WINDOW, (void *)*base))
			return at;
	} else if (!read_user(scratch->window, STACK_FRAME_BYTES, (void *)fp)) {
		/* The frame lies across two windows: read it alone, at the window's start. */
		*base = NO_WINDOW;
		return 0;
	}
	*base = NO_WINDOW;
	return STACK_WINDOW + 1;
}

/*
 * Walks the frame pointers from where the allocator returns to, bp being the
 * caller's frame. Each frame is the saved bp with
 * the return address above it. Fills `stack` and returns its id.
 */
static __always_inline u64 walk_stack(struct pt_regs *ctx, struct space *space,
				      struct call *call, struct scratch *scratch)
{
	struct stack *stack = &scratch->stack;
	u64 base = NO_WINDOW;
	u64 fp = PT_REGS_FP(ctx);
	u64 lowest = caller_sp(call);
	u64 pc = caller_ip(ctx, call);
	u64 hash = first_hash(space);
	u32 flags = STACK_TRUNCATED;
	struct counted frames;
	u32 i, n = 0;

	/* Read now: the verifier forbids what clang makes of reading them in the loop. */
	asm volatile("" : "+r"(fp), "+r"(lowest), "+r"(pc));
	stack->image = space->image;

	begin_count(&frames, MAX_FRAMES, WALK_STEPS);
	COUNTED(i, &frames, MAX_FRAMES, WALK_STEPS) {
		u64 at;

		stack->frames[i] = pc;
		hash = mix(hash, pc);
		n = i + 1;
		if (!fp) {
			flags = 0;
			goto walked;
		}
		if (fp < lowest || (fp & 7)) {
			flags = STACK_BROKEN;
			goto walked;
		}
		at = find_frame(scratch, fp, &base);
		if (at > STACK_WINDOW) {
			flags = STACK_UNREADABLE;
			goto walked;
		}
		lowest = fp + STACK_FRAME_BYTES;
		fp = *(u64 *)(scratch->window + (at & (STACK_WINDOW - 8)));
		pc = CODE_ADDRESS(*(u64 *)(scratch->window + (at & (STACK_WINDOW - 8)) + 8));
		if (!pc) {
			flags = 0;
			goto walked;
		}
	}
walked:
	end_count(&frames);
	return name_stack(stack, hash, n, flags, true);
}
