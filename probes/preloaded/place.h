/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* The current frame of a walk, and what the walk depends on (memo.h). */
#ifndef TRACELLOC_PRELOADED_PLACE_H
#define TRACELLOC_PRELOADED_PLACE_H

#include "stack.h"
#include "../row.h"

/* Records a stack word that the walk depends on. */
static inline void note_word(struct preload_memo *memo, u64 sp, u64 address, u64 word)
{
	u32 n = memo->n_words;

	if (n < PRELOAD_MEMO_WORDS && address - sp < 1U << 30) {
		memo->words[n] = word;
		memo->places[n] = address - sp;
	} else {
		n = PRELOAD_MEMO_WORDS; /* too many: the walk is not memoized */
	}
	memo->n_words = n + 1;
}

/* The current frame of a walk. */
struct place {
	u64 pc, sp, bp;
	u64 before;  /* 1 if pc is a return address, looked up by the byte before it; else 0 */
	u64 far;     /* the walk must not be memoized */
	u64 bp_at;   /* address where bp was read, if not recorded yet; or 0 */
	u64 is_callers_bp; /* bp is still the value at the beginning of the walk */
	u64 link[HAS_LINK]; /* register with the return address, where there is one; known if !before */
};

#define GO_ON (-1)

/* Records that the walk depends on the frame pointer. */
static inline void use_bp(struct preload_memo *memo, u64 sp, struct place *at)
{
	if (at->is_callers_bp)
		memo->uses_bp = 1;
	else if (at->bp_at)
		note_word(memo, sp, at->bp_at, at->bp);
	at->bp_at = 0;
}

/* Reads the caller's frame pointer. */
static inline void read_bp(struct walk *walk, struct place *at, u64 saved)
{
	at->bp = read_word(walk, saved);
	at->bp_at = saved;
	at->is_callers_bp = 0;
}

#endif
