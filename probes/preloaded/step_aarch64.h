/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* 64-bit Arm: stepping from a frame to its caller by an unwind entry (row.h). */
#ifndef TRACELLOC_PRELOADED_STEP_AARCH64_H
#define TRACELLOC_PRELOADED_STEP_AARCH64_H

#include "place.h"

#define STEP_KIND(row) ROW_ARM_KIND(row)
#define SIGNAL_BP ROW_ARM_SIGNAL_FP
#define SIGNAL_SP ROW_ARM_SIGNAL_SP
#define SIGNAL_IP ROW_ARM_SIGNAL_PC
/* Whether the entry needs the register with the return address, which is not known here. */
#define needs_link(row, at) ((at).before && ROW_ARM_RA(row) == ROW_RA_REGISTER && \
			     (ROW_ARM_KIND(row) == ROW_SP || ROW_ARM_KIND(row) == ROW_BP))
#define read_link(walk, at, sp) ((at)->link[0] = read_word(walk, (sp) + ROW_ARM_SIGNAL_LR))

static inline int step_to_caller(struct walk *walk, struct preload_memo *memo, u64 from,
				 struct place *at, u64 row, u32 kind, u64 cfa)
{
	u64 slot = kind == ROW_FRAME_POINTER ? -16UL : (u64)ROW_ARM_SLOT(row), link = at->link[0];
	u32 where = kind == ROW_FRAME_POINTER ? ROW_RA_BESIDE_FP : ROW_ARM_RA(row);

	if (cfa < at->sp + (where != ROW_RA_REGISTER) || cfa >> ADDRESS_BITS)
		return STACK_BROKEN;
	if (where != ROW_RA_REGISTER) {
		u64 place = cfa + slot + (where == ROW_RA_BESIDE_FP ? 8 : 0);

		link = read_word(walk, place);
		note_word(memo, from, place, link);
	}
	at->pc = code_address(link);
	if (slot != ROW_BP_UNCHANGED && where != ROW_RA_ITS_SLOT)
		read_bp(walk, at, cfa + slot);
	if (walk->bad)
		return STACK_UNREADABLE;
	at->sp = cfa;
	return GO_ON;
}

#endif
