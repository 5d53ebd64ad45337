/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* Helpers for both ways of walking call stacks. */

/* Changes a counter. */
static __always_inline void count_by(u32 which, u64 change)
{
	u64 *counter = counters.lookup(&which);

	if (counter)
		__sync_fetch_and_add(counter, change);
}

/* Adds one to a counter. */
static __always_inline void count(u32 which)
{
	count_by(which, 1);
}

/* Subtracts one from a counter: the event turned out not to have happened. */
static __always_inline void uncount(u32 which)
{
	count_by(which, -1ULL);
}

/* No window is loaded: every frame pointer is further than a window from here. */
#define NO_WINDOW 0xffffffff00000000ULL

/* The stack pointer that the caller of the call just completed goes on with. */
static __always_inline u64 caller_sp(struct call *call)
{
	return call->last_sp + RETURN_SP_DELTA;
}

/* Where that caller goes on: without a return probe we are not there yet. */
static __always_inline u64 caller_ip(struct pt_regs *ctx, struct call *call)
{
	return call->return_address ? call->return_address : PT_REGS_IP(ctx);
}

/* One step of a 64-bit multiply-and-fold hash: order matters, every bit spreads. */
static __always_inline u64 mix(u64 hash, u64 value)
{
	hash = (hash ^ value) * 0x9e3779b97f4a7c15ULL;
	return hash ^ (hash >> 29);
}

/* What the hash of a stack begins with: equal addresses of two programs are two stacks. */
static __always_inline u64 first_hash(struct space *space)
{
	return 0x1905 + (space->lineage << 32);
}

/* Adds the generation of the mappings to a stack whose addresses get another meaning later. */
static __always_inline void date_stack(struct stack *stack, u64 generation)
{
	u32 n = stack->n_frames;

	if (n > MAX_FRAMES)
		return;
	stack->frames[n] = generation;
	stack->n_frames = n + 1;
	stack->flags |= STACK_DATED;
}

/*
 * Finishes a walked stack: its id is the hash of its content. The id of a guessed stack includes
 * the image, since its validity depends on the process's mappings.
 */
static __always_inline u64 name_stack(struct stack *stack, u64 hash, u32 n, u32 flags, bool guessed)
{
	if (guessed)
		hash = mix(hash, stack->image);
	hash = mix(hash, flags);
	hash = mix(hash, n);
	stack->stack_id = hash ? hash : 1;
	stack->n_frames = n;
	stack->flags = flags;
	return stack->stack_id;
}
