/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/*
 * Scratch memory for walking stacks: a few pieces for each processor, of which a program takes
 * one for as long as it walks. A program that is preempted keeps its own, and those that run on
 * its processor meanwhile take another one, at need one that all processors share. (A thread's
 * record would do as well, but there are many threads, and what was remembered would be for one of
 * them.)
 */

/* Pieces that are tried: with half of the shared ones taken, one walk in 16,000 finds none. */
#define SCRATCH_TRIES (SCRATCHES + 14)

/* Takes scratch memory, and says which. NULL: all that were tried are taken. */
static __always_inline struct scratch *take_numbered(u32 *number)
{
	u32 at = processor_id() % PROCESSORS * SCRATCHES;

#pragma clang loop unroll(disable)
	for (u32 tries = 0; tries < SCRATCH_TRIES; tries++) {
		struct scratch *scratch = scratches.lookup(&at);

		if (scratch && !__sync_lock_test_and_set(&scratch->taken, 1)) {
			*number = at;
			return scratch;
		}
		if (tries + 1 < SCRATCHES)
			at++;
		else
			at = PROCESSORS * SCRATCHES + bpf_get_prandom_u32() % SHARED_SCRATCHES;
	}
	return NULL;
}

/* Takes scratch memory. NULL: all that were tried are taken. */
static __always_inline struct scratch *take_scratch(void)
{
	u32 number;

	return take_numbered(&number);
}

/* Gives it back. */
static __always_inline void release_scratch(struct scratch *scratch)
{
	asm volatile("" : : : "memory");
	*(volatile u64 *)&scratch->taken = 0;
}

/* Whether user space has the stack of this id, or will have. */
static __always_inline bool is_sent(struct scratch *scratch, u64 stack_id)
{
	u64 *recent = &scratch->recent[stack_id % RECENT_STACKS];

	if (*recent == stack_id)
		return true;
	if (!known_stacks.lookup(&stack_id))
		return false;
	*recent = stack_id;
	return true;
}
