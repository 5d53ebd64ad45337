/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/*
 * Remembered walks (memos). The registers and the mappings decide which word of the stack a walk
 * reads first, and each word decides which one it reads next. If the registers, the mappings and
 * all of these words are unchanged, the walk would find the same stack. Comparing them takes a
 * fraction of the time of a walk: all places are known in advance, while a walk looks up each
 * frame's row before it knows where the next frame is.
 *
 * The words are return addresses, and saved frame pointers by which the walk found a later frame.
 * Stacks that were guessed, are incomplete, or contain a signal frame are not remembered.
 *
 * The functions that note words have no branches: the verifier follows each path through the loop
 * that calls them, and repeats that for each frame.
 */

/* The only memo that a walk from these registers can use. */
static __always_inline struct memo *memo_of(struct scratch *scratch, u64 sp, u64 pc)
{
	u32 at = ((sp >> 3 ^ pc) * 0x9e3779b97f4a7c15ULL) >> 32;

	return &scratch->memos[at & (MEMOS - 1)];
}

/* Number of changes of the mappings that may give an address another meaning. */
static __always_inline u32 generation_of(struct space *space)
{
	return space->loads + space->changes;
}

/* The state of the mappings: generation and tag; 0 until user space has read them. */
static __always_inline u64 state_of(struct space *space)
{
	u64 tag = *(volatile u64 *)&space->tag;

	return tag >> TAG_BITS == generation_of(space) ? tag : 0;
}

/* Image and lineage of the process whose stack is walked. */
static __always_inline u64 owner_of(struct space *space)
{
	return (u64)space->image << 32 | space->lineage;
}

/*
 * The id of the stack that a walk from here would find; 0 if no memo has it. Words are compared a
 * group at a time: fewer branches, for the processor and for the verifier. `sp` and `places` make
 * aligned addresses, or there would be no memo.
 */
static __always_inline u64 recall(struct scratch *scratch, struct memo *memo, struct space *space,
				  u64 sp, u64 pc, u64 bp)
{
	if (!REMEMBERS || memo->sp != sp || memo->pc != pc || memo->state != state_of(space) ||
	    memo->owner != owner_of(space) || ((memo->bp ^ bp) & memo->bp_mask))
		return 0;
#pragma clang loop unroll(disable)
	for (u32 at = 0; at < MEMO_WORDS && at < memo->n_words; at += MEMO_GROUP) {
		u64 differs = 0;

#pragma clang loop unroll(full)
		for (u32 i = at; i < at + MEMO_GROUP; i++)
			differs |= aligned_word(scratch, sp + memo->places[i]) ^ memo->words[i];
		if (differs)
			return 0;
	}
	return scratch->bad ? 0 : memo->stack_id;
}

/* Begins a walk. (Its state is kept in memory: the verifier distinguishes states by registers.) */
static __always_inline void begin_memo(struct memo *memo, struct space *space, u64 state, u64 sp,
				       u64 pc, u64 bp)
{
	memo->sp = 0;
	memo->from_sp = sp;
	memo->pc = pc;
	memo->bp = bp;
	memo->state = state;
	memo->owner = owner_of(space);
	memo->bp_mask = 0;
	memo->n_words = 0;
	memo->far = 0;
	memo->bp_at_start = 1;
	memo->bp_unnoted = 0;
}

/* Notes a word on which the walk's next step depends. `counts`: 1, or 0 to ignore the word. */
static __always_inline void note_word(struct memo *memo, u64 address, u64 word, u64 counts)
{
	u64 n, place, at;

	if (!REMEMBERS)
		return;
	n = *(volatile u64 *)&memo->n_words;
	place = address - *(volatile u64 *)&memo->from_sp;
	at = n & (MEMO_WORDS - 1);
	memo->words[at] = word;
	memo->places[at] = place;
	memo->far |= place >> 32;
	*(volatile u64 *)&memo->n_words = n + counts;
}

/* Notes that a frame pointer was read. The walk may never use it. */
static __always_inline void note_saved_bp(struct memo *memo, u64 address, u64 word)
{
	memo->saved_bp = word;
	memo->saved_bp_address = address;
	memo->bp_unnoted = 1;
	memo->bp_at_start = 0;
}

/* Notes that the walk uses the frame pointer. */
static __always_inline void note_use_of_bp(struct memo *memo)
{
	note_word(memo, memo->saved_bp_address, memo->saved_bp, memo->bp_unnoted);
	memo->bp_mask |= -memo->bp_at_start;
	memo->bp_unnoted = 0;
	memo->bp_at_start = 0;
}

/* Stores the finished walk, if it qualifies. Its first word fills up the last group. */
static __always_inline void keep_memo(struct memo *memo, u64 stack_id)
{
	u64 n = *(volatile u64 *)&memo->n_words;

	if (!REMEMBERS || !memo->state || memo->far || n > MEMO_WORDS)
		return;
#pragma clang loop unroll(full)
	for (u32 i = 0; i < MEMO_GROUP; i++) {
		memo->words[n + i] = memo->words[0];
		memo->places[n + i] = memo->places[0];
	}
	memo->stack_id = stack_id;
	memo->sp = memo->from_sp;
}
