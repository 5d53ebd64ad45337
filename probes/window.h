/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* Reading the words of a stack, many at once. */

/* What a frame has saved beside its return address mostly lies this close below it. */
#define SAVED_BYTES 128

/*
 * Reads the stack around `address` into the window, up to the end of the page: if one word of
 * a page can be read, all can. A read costs nearly the same whatever its length. `bad` gets a
 * bit if it fails. (Where the window is and what went wrong is kept in memory: what the
 * verifier knows of a number in a register would tell states apart that are alike, and it
 * would follow all of them.)
 */
static __always_inline void load_window(struct scratch *scratch, u64 address)
{
	u64 start = address & ~(u64)(SAVED_BYTES - 1);
	u64 bytes = STACK_PAGE - (start & (STACK_PAGE - 1));

	scratch->base = start;
	scratch->loaded = bytes;
	scratch->bad |= read_user(scratch->window, bytes, (void *)start);
}

/* The word at `address`, a multiple of 8, through the window; loads another one if it must. */
static __always_inline u64 aligned_word(struct scratch *scratch, u64 address)
{
	if (address - scratch->base >= scratch->loaded)
		load_window(scratch, address);
	return *(u64 *)(scratch->window + ((address - scratch->base) & (STACK_WINDOW - 8)));
}

/* The same for any address: `bad` gets bits if it is no multiple of 8. */
static __always_inline u64 read_word(struct scratch *scratch, u64 address)
{
	if (address - *(volatile u64 *)&scratch->base >= scratch->loaded)
		load_window(scratch, address);
	scratch->bad |= address & 7;
	return *(u64 *)(scratch->window +
			((address - *(volatile u64 *)&scratch->base) & (STACK_WINDOW - 8)));
}
