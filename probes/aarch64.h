/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/*
 * 64-bit Arm: what the probes know of the processor. x86_64.h has the same for x86-64.
 *
 * Other processors may see writes, and do reads, in any order that nothing forbids. What the probes
 * and user space rely on is tried by the processor's formal model (tests/order).
 */

/* End of user addresses of 48 bits. Higher ones are mapped only on request. */
#define ADDRESSES (1ULL << 48)
/*
 * The key of the region of an address (maps.h). Keys of code addresses end in two bits that are 0
 * (interrupted instructions) or 3 (the byte before a return address).
 */
#define REGION_KEY(address) ((address) >> REGION_SHIFT << 2 | 1)
/* The address in a saved return address, which may have an authentication code above it. Bits of
   addresses depend on the kernel's configuration; given by user space. */
#ifndef CODE_BITS
#define CODE_BITS 48
#endif
#define CODE_ADDRESS(word) ((word) & ((1ULL << CODE_BITS) - 1))
/* The address of a block in a pointer to it, whose uppermost byte is ignored, or a tag of memory:
   a resize in place may change that. */
#define BLOCK_ADDRESS(word) ((word) & ~(0xffULL << 56))
/* Calls leave the return address in x30 and the stack pointer alone. */
#define RETURN_SP_DELTA 0

/*
 * Writes a word that other processors see after all earlier writes. An exchange orders all memory
 * accesses around it (BPF instruction set, "Atomic operations"); a plain write would not.
 */
#define store_last(place, value) ((void)__sync_lock_test_and_set((place), (value)))

/*
 * 0, for indices of reads that must happen after `word` was read. The processor keeps this order
 * because the read's address depends on the word (Arm Architecture Reference Manual, B2.3,
 * "Dependency-ordered-before").
 */
static __always_inline u64 none_after(u64 word)
{
	u64 same = word;

	asm volatile("" : "+r"(same));
	return same ^ word;
}

/* The return address of the function that is being entered. */
static __always_inline u64 return_address(struct pt_regs *ctx)
{
	return PT_REGS_RET(ctx);
}

/*
 * Whether one of two return addresses is still that of the call entered with this stack pointer.
 * The function has stored it `slot` words below, before it called another one. At the same stack
 * pointer it has jumped to that one instead, and the address is still in x30. Without a slot only
 * the stack pointer counts: a call that longjmp has left hides others until the stack shrinks.
 */
static __always_inline bool is_in_place(struct pt_regs *ctx, u64 sp, u32 slot, u64 one, u64 other)
{
	u64 word;

	if (PT_REGS_SP(ctx) == sp)
		word = return_address(ctx);
	else if (slot)
		word = CODE_ADDRESS(word_at(sp - slot * 8));
	else
		return true;
	return word == one || word == other;
}

/* Records where the function of this cookie stores its return address. */
static __always_inline void note_slot(u32 *slot, u64 cookie)
{
	*slot = cookie >> COOKIE_SLOT_SHIFT & COOKIE_SLOT_MASK;
}

/* Likewise, if the function entered with stack pointer `sp` has jumped to the one of this cookie. */
static __always_inline void note_jump(struct pt_regs *ctx, u64 sp, u32 *slot, u64 cookie)
{
	if (PT_REGS_SP(ctx) == sp)
		note_slot(slot, cookie);
}

/* The registers of a miss from MISS_OTHERS on. */
static __always_inline void fill_others(struct pt_regs *ctx, u64 *registers)
{
	registers[0] = ctx->regs[19];
	registers[1] = ctx->regs[20];
	registers[2] = ctx->regs[21];
	registers[3] = ctx->regs[22];
	registers[4] = ctx->regs[23];
	registers[5] = ctx->regs[24];
	registers[6] = ctx->regs[25];
	registers[7] = ctx->regs[26];
	registers[8] = ctx->regs[27];
	registers[9] = ctx->regs[28];
}
