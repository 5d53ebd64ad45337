/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* x86-64: stepping from a frame to its caller by a row (row.h). */

#define STEP_KIND(row) ROW_KIND(row)
/* Registers in the kernel's signal frame, in bytes from sp. */
#define SIGNAL_BP ROW_SIGNAL_BP
#define SIGNAL_LINK ROW_SIGNAL_BP /* there is no such register */
#define SIGNAL_SP ROW_SIGNAL_SP
#define SIGNAL_IP ROW_SIGNAL_IP
/* Whether the row needs a register that is not known: there is none. (No use of `before`: clang
   would keep a branch on it, which the verifier would follow.) */
#define needs_link(row, before) false
/* Bytes by which a caller's frame is further up the stack, at least. */
#define least_step(row) 1

/* Steps to the caller: returns its stack pointer, replaces `bp` and `pc` by its own. */
static __always_inline u64 step_to_caller(struct scratch *scratch, struct memo *memo,
					  u64 row, u64 kind, u64 sp, u64 link, u64 *bp,
					  u64 *pc)
{
	u64 cfa = sp;

	if (kind != ROW_SP) {
		cfa = *bp;
		note_use_of_bp(memo);
	}
	cfa += ROW_CFA_OFFSET(row);
	if (kind == ROW_REALIGNED) {
		u64 at = cfa;

		cfa = read_word(scratch, at);
		note_word(memo, at, cfa, 1);
	}
	*pc = read_word(scratch, cfa - 8);
	note_word(memo, cfa - 8, *pc, 1);
	if (ROW_BP_SLOT(row) != ROW_BP_UNCHANGED) {
		u64 saved = ROW_BP_SLOT(row) == ROW_BP_AT_BP ? *bp : cfa + ROW_BP_SLOT(row);

		if (ROW_BP_SLOT(row) == ROW_BP_AT_BP)
			note_use_of_bp(memo);
		*bp = read_word(scratch, saved);
		note_saved_bp(memo, saved, *bp);
	}
	return cfa;
}
