/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* x86-64: what the probes know of the processor. aarch64.h has the same for 64-bit Arm. */

/* End of user addresses with four levels of page tables. Higher ones are mapped only on request. */
#define ADDRESSES (1ULL << 47)
/* The key of the region of an address (maps.h). Keys of code addresses are below 2^47. */
#define REGION_KEY(address) ((address) >> REGION_SHIFT | 1ULL << 47)
/* The address in a saved return address. */
#define CODE_ADDRESS(word) (word)
/* The address of a block in a pointer to it. */
#define BLOCK_ADDRESS(word) (word)
/* A return has popped the return address; the entry had not. */
#define RETURN_SP_DELTA 8

/* Writes a word that other processors see after all earlier writes: x86-64 shows them in order. */
#define store_last(place, value) \
	do { \
		asm volatile("" : : : "memory"); \
		*(volatile u64 *)(place) = (value); \
	} while (0)

/* 0, for indices of reads that must happen after `word` was read: x86-64 reads in order. */
#define none_after(word) 0

/* The return address of the function that is being entered. */
static __always_inline u64 return_address(struct pt_regs *ctx)
{
	return word_at(PT_REGS_SP(ctx));
}

/*
 * Whether one of two return addresses is still that of the call entered with this stack pointer.
 * Calls leave it there: no slot needs to be known.
 */
static __always_inline bool is_in_place(struct pt_regs *ctx, u64 sp, u32 slot, u64 one, u64 other)
{
	u64 word = word_at(sp);

	return word == one || word == other;
}

#define note_slot(slot, cookie)
#define note_jump(ctx, sp, slot, cookie)

/* The registers of a miss from MISS_OTHERS on. */
static __always_inline void fill_others(struct pt_regs *ctx, u64 *registers)
{
	registers[0] = ctx->bx;
	registers[1] = ctx->r12;
	registers[2] = ctx->r13;
	registers[3] = ctx->r14;
	registers[4] = ctx->r15;
}
