/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/*
 * Rows: how to step from a frame to its caller, for one code address, in 64 bits. User space
 * makes rows from call-frame information (tracelloc/files/cfi/encode.pxd). The key of a row is the
 * byte before a return address, or the address itself if a signal interrupted it. 0 is no row.
 */
#ifndef TRACELLOC_ROW_H
#define TRACELLOC_ROW_H

/*
 * How to compute the CFA, the stack pointer before the call that created the frame. On x86-64, the
 * return address is at CFA - 8, and the caller's stack pointer is the CFA.
 */
enum row_kind {
	ROW_SP = 1,            /* CFA = sp + ROW_CFA_OFFSET */
	ROW_BP = 2,            /* CFA = bp + ROW_CFA_OFFSET */
	ROW_REALIGNED = 3,     /* CFA = the word at bp + ROW_CFA_OFFSET */
	ROW_SIGNAL = 4,        /* sp is at sp + ROW_CFA_OFFSET, bp at sp + ROW_BP_SLOT, ip at
	                          sp + ROW_SIGNAL_IP; the next row's key is that ip itself */
	ROW_END = 6,           /* the outermost frame */
	ROW_FRAME_POINTER = 7, /* as ROW_BP, for code without call-frame information */
	ROW_UNENCODABLE = 8,   /* user space finishes the walk; ROW_DETAIL has the reason */
};

/* Why a row is ROW_UNENCODABLE. */
enum row_reason {
	ROW_REASON_CFA_REGISTER = 1,   /* the CFA depends on another register */
	ROW_REASON_CFA_EXPRESSION = 2, /* the CFA is another expression */
	ROW_REASON_CFA_OFFSET = 3,     /* the frame is larger than 2 GiB */
	ROW_REASON_RETURN_ADDRESS = 4, /* the return address is not at CFA - 8 */
	ROW_REASON_SAVED_BP = 5,       /* bp is not in the frame */
	ROW_REASON_CALLER_SP = 6,      /* the caller's stack pointer is not the CFA */
	ROW_REASON_SIGNAL_FRAME = 7,   /* a signal frame, but not the kernel's */
	ROW_REASON_DAMAGED = 8,        /* the unwind table makes no sense */
	ROW_REASON_TOO_LONG = 9,       /* the unwind table's program is too long */
};

/* Bits 0-7: the kind. */
#define ROW_KIND(row) ((__u32)((row) & 0xff))
/* Bits 8-14: an enum row_reason, or 0. */
#define ROW_DETAIL(row) ((__u32)((row) >> 8 & 0x7f))
/* Bit 15: of code that stays mapped as long as the program runs: valid while mappings change. */
#define ROW_LASTS (1ULL << 15)
/* Bits 16-31, signed: where the caller's bp was saved, in bytes from the CFA, or: */
#define ROW_BP_SLOT(row) ((__s64)(__s16)((row) >> 16))
#define ROW_BP_UNCHANGED 0 /* it is still in the register */
#define ROW_BP_AT_BP 1     /* at the word that bp points to */
/* Bits 32-63, signed: bytes. */
#define ROW_CFA_OFFSET(row) ((__s64)(__s32)((row) >> 32))

/*
 * 64-bit Arm. Calls leave the return address in x30 and the stack pointer alone: the CFA is the
 * stack pointer at the function's entry. "bp" is x29. Kinds are in bits 0-3, and there is no
 * ROW_REALIGNED. In rows of ROW_SP and ROW_BP, bits 4-7 say where the return address is. Bits 8-14
 * are free, except in ROW_UNENCODABLE.
 *
 * A step:
 *   CFA = sp or x29, plus ROW_CFA_OFFSET;
 *   return address = the lower bits of the word that ROW_ARM_RA names, or of x30: it may have an
 *     authentication code in its upper bits, whatever the function's call-frame information says;
 *   x29 = the word at CFA + ROW_ARM_SLOT, unless that is ROW_BP_UNCHANGED or the return address's;
 *   sp = CFA, and x30 is not known any more.
 * x30 is known in the innermost frame, and in one that a signal interrupted. A row that needs it
 * in another frame ends the walk as an unknown register does. The caller is further up the stack:
 * CFA > sp; with ROW_RA_REGISTER also CFA = sp, since that can't happen twice in a row.
 * ROW_FRAME_POINTER: x29 points to a frame record, {x29, x30}, right below the CFA: ROW_CFA_OFFSET is
 * 16, bits 16-31 are to be ignored. ROW_SIGNAL: all registers are at sp + ROW_ARM_SIGNAL_..., x30
 * included; other fields are to be ignored.
 */
#define ROW_ARM_KIND(row) ((__u32)((row) & 0xf))
#define ROW_ARM_RA(row) ((__u32)((row) >> 4 & 0xf))
enum row_ra {
	ROW_RA_BESIDE_FP = 0, /* at CFA + ROW_ARM_SLOT + 8: saved together with x29 */
	ROW_RA_REGISTER = 1,  /* still in x30 */
	ROW_RA_ITS_SLOT = 2,  /* at CFA + ROW_ARM_SLOT; x29 is unchanged */
};
/* Bits 16-31 hold words: frames of 32 KiB and more occur, and their slots are far from the CFA. */
#define ROW_ARM_SLOT(row) (ROW_BP_SLOT(row) * 8)
#define ROW_ARM_SIGNAL_FP 544
#define ROW_ARM_SIGNAL_LR 552
#define ROW_ARM_SIGNAL_SP 560
#define ROW_ARM_SIGNAL_PC 568

/* x86-64: bytes from sp to the interrupted registers in the kernel's signal frame. */
#define ROW_SIGNAL_BP 120
#define ROW_SIGNAL_SP 160
#define ROW_SIGNAL_IP 168

#endif
