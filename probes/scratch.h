/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/*
 * Scratch memory for walking stacks: a few pieces for each processor. A program takes one piece
 * while it walks. A preempted program keeps its piece; programs that run on its processor
 * meanwhile take another one, if necessary one that all processors share. (A thread's record
 * could hold it, but there are many threads, and each would remember only its own walks.)
 */

/* Pieces to try: with half of the shared ones taken, one walk in 16,000 finds none. */
#define SCRATCH_TRIES (SCRATCHES + 14)

/* Takes scratch memory and stores its number. NULL if all tried pieces are taken. */
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

/* Takes scratch memory. NULL if all tried pieces are taken. */
static __always_inline struct scratch *take_scratch(void)
{
	u32 number;

	return take_numbered(&number);
}

/* Releases scratch memory. */
static __always_inline void release_scratch(struct scratch *scratch)
{
	store_last(&scratch->taken, 0);
}

/* Whether the stack of this id has been sent to user space. */
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
