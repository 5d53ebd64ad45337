/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* 64-bit Arm: stepping from a frame to its caller by a row (row.h). */

#define STEP_KIND(row) ROW_ARM_KIND(row)
/* Registers in the kernel's signal frame, in bytes from sp. */
#define SIGNAL_BP ROW_ARM_SIGNAL_FP
#define SIGNAL_LINK ROW_ARM_SIGNAL_LR
#define SIGNAL_SP ROW_ARM_SIGNAL_SP
#define SIGNAL_IP ROW_ARM_SIGNAL_PC
/* Whether the row needs the register with the return address, which is not known if `before`. */
#define needs_link(row, before) ((before) && ROW_ARM_RA(row) == ROW_RA_REGISTER)
/* Bytes by which a caller's frame is further up the stack, at least. */
#define least_step(row) (ROW_ARM_RA(row) == ROW_RA_REGISTER ? 0 : 1)

/* Steps to the caller: returns its stack pointer, replaces `bp` and `pc` by its own. */
static __always_inline u64 step_to_caller(struct scratch *scratch, struct memo *memo,
					  u64 row, u64 kind, u64 sp, u64 link, u64 *bp,
					  u64 *pc)
{
	s64 slot = kind == ROW_FRAME_POINTER ? -STACK_FRAME_BYTES : ROW_ARM_SLOT(row);
	u32 place = ROW_ARM_RA(row);
	u64 cfa = sp;

	if (kind != ROW_SP) {
		cfa = *bp;
		note_use_of_bp(memo);
	}
	cfa += ROW_CFA_OFFSET(row);
	if (place != ROW_RA_REGISTER) {
		u64 at = cfa + slot + (place == ROW_RA_BESIDE_FP ? 8 : 0);

		link = read_word(scratch, at);
		note_word(memo, at, link, 1);
	}
	*pc = CODE_ADDRESS(link);
	if (slot != ROW_BP_UNCHANGED && place != ROW_RA_ITS_SLOT) {
		*bp = read_word(scratch, cfa + slot);
		note_saved_bp(memo, cfa + slot, *bp);
	}
	return cfa;
}
