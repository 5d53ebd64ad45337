/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/*
 * Scratch memory for walking stacks: a few pieces for each processor, of which a program takes
 * one for as long as it walks. A program that is preempted keeps its own, and those that run on
 * its processor meanwhile take another one, their neighbours' at need. (A thread's record would
 * do as well, but there are many threads, and what was remembered would be for one of them.)
 */

/* Pieces that are tried. */
#define SCRATCH_TRIES (4 * SCRATCHES)

/* Takes scratch memory, and says which. NULL: all that is near is taken. */
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
		at = (at + 1) % (PROCESSORS * SCRATCHES);
	}
	return NULL;
}

/* Takes scratch memory. NULL: all that is near is taken. */
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
