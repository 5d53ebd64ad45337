/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* x86-64: stepping from a frame to its caller by an unwind entry (row.h). */
#ifndef TRACELLOC_PRELOADED_STEP_X86_64_H
#define TRACELLOC_PRELOADED_STEP_X86_64_H

#include "place.h"

#define STEP_KIND(row) ROW_KIND(row)
/* Registers in the kernel's signal frame, in bytes from sp. */
#define SIGNAL_BP ROW_SIGNAL_BP
#define SIGNAL_SP ROW_SIGNAL_SP
#define SIGNAL_IP ROW_SIGNAL_IP
/* Whether the entry needs a register with the return address: there is none. */
#define needs_link(row, at) 0
#define read_link(walk, at, sp)

/* Reads the caller's pc and bp; `cfa` is the sum of a register and the entry's offset. */
static inline int step_to_caller(struct walk *walk, struct preload_memo *memo, u64 from,
				 struct place *at, u64 row, u32 kind, u64 cfa)
{
	if (kind == ROW_REALIGNED) {
		u64 word = read_word(walk, cfa);

		note_word(memo, from, cfa, word);
		cfa = word;
	}
	if (cfa <= at->sp || cfa >> ADDRESS_BITS)
		return STACK_BROKEN;
	at->pc = read_word(walk, cfa - 8);
	note_word(memo, from, cfa - 8, at->pc);
	if (ROW_BP_SLOT(row) != ROW_BP_UNCHANGED) {
		u64 saved = cfa + ROW_BP_SLOT(row);

		if (ROW_BP_SLOT(row) == ROW_BP_AT_BP) {
			use_bp(memo, from, at);
			saved = at->bp;
		}
		read_bp(walk, at, saved);
	}
	if (walk->bad)
		return STACK_UNREADABLE;
	at->sp = cfa;
	return GO_ON;
}

#endif
