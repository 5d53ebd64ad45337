/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/*
 * The memory that a walk may read. Reading an unmapped page would kill the program, and another
 * thread may unmap a page at any time. So a walk distinguishes two kinds of memory.
 *
 * A thread's own stack exists as long as the thread. The first thread's stack ends with the data that
 * the kernel put there. Other threads' stacks end with thread-local variables, such as `me`: all C
 * libraries put these into the same mapping, above the stack, and their own record of the thread. From that end down, each page is
 * checked once, when the stack has grown into it, by a system call that returns EFAULT for a page
 * that is not readable. Contiguous readable pages belong to one stack, because an unreadable page is
 * below each stack. A walk reads only above the place where it begins.
 *
 * All other memory is stacks of fibers and signal handlers, and the targets of damaged frame
 * pointers. The kernel copies it, page by page. A system call filter might kill the process for that
 * call. So, until probes replace the library there (leave.h), no page is checked or copied; a walk
 * then reads only frames found by unwind entries, which exist because their functions are running.
 */
#ifndef TRACELLOC_PRELOADED_STACK_H
#define TRACELLOC_PRELOADED_STACK_H

#include "thread.h"

/* An address in the first thread's stack at process start. */
static u64 first_stack;

/* Most bytes that a stack is taken to have grown by since the last check. */
#define STACK_STRIDE (2048UL * PRELOAD_PAGE)

/* rt_sigprocmask(2) reads its mask before it rejects the invalid operation 99. */
static int can_read(const struct preload_control *control, u64 address)
{
	return may_call(control) &&
	       system_call(SYS_rt_sigprocmask, 99, address & ~7ULL, 0, 8, 0, 0) != -EFAULT;
}

static inline int is_first_thread(const struct preload_control *control)
{
	return me.tid == control->pid;
}

/* Finds the end of this thread's own stack. */
static void find_stack(const struct preload_control *control)
{
	u64 end = is_first_thread(control) ? first_stack : stack_end();

	me.low = end & -(u64)PRELOAD_PAGE;
	me.high = is_first_thread(control) ? me.low + PRELOAD_PAGE : end & ~7ULL;
	me.hole = 0;
}

/* Whether this thread's own stack has grown down to this page. */
static __attribute__((noinline)) int has_grown(const struct preload_control *control, u64 page)
{
	if (page <= me.hole || me.low - page > STACK_STRIDE || !may_call(control))
		return 0;
	while (me.low > page && can_read(control, me.low - PRELOAD_PAGE))
		me.low -= PRELOAD_PAGE;
	if (me.low > page)
		me.hole = page;
	return me.low <= page;
}

/* Whether the first thread's stack continues at this page; extends it if so. */
static int goes_on(const struct preload_control *control, u64 page)
{
	if (page != me.high || !is_first_thread(control) || !can_read(control, page))
		return 0;
	me.high += PRELOAD_PAGE;
	return 1;
}

/* Memory that a walk can read now. */
struct walk {
	u64 low, high; /* readable addresses: from low to below high */
	u64 shift;     /* added to an address, gives the place of the memory or of its copy */
	u64 bad;       /* a word could not be read */
	u64 guessed;   /* STACK_GUESSED, or 0 */
	u32 is_own;    /* the walk began on the thread's own stack */
	u8 *page;      /* buffer for copies */
};

_Static_assert(sizeof(struct walk) == sizeof(((struct preload_ring *)0)->walk), "preload_ring has room");

/* Begins a walk at `sp`: the stack above it is in use. */
static inline void open_stack(const struct preload_control *control, struct walk *walk, u64 sp)
{
	u64 page = sp & -(u64)PRELOAD_PAGE;

	if (likely(sp - me.low < me.high - me.low) || has_grown(control, page)) {
		walk->is_own = 1;
		walk->low = page;
		walk->high = me.high;
	}
}

/* Copies memory that may be unmapped. Returns the bytes copied: 0 under a system call filter. */
static u64 copy_memory(const struct preload_control *control, void *to, u64 from, u64 bytes)
{
	struct { u64 start, bytes; } local = {(u64)to, bytes}, remote = {from, bytes};
	long copied = 0;

	if (may_call(control))
		copied = system_call(SYS_process_vm_readv, control->pid, (u64)&local, 1,
				     (u64)&remote, 1, 0);
	return copied > 0 ? copied : 0;
}

/* Makes another page readable for the walk. Returns whether that worked. */
static __attribute__((noinline)) int open_page(struct walk *walk, u64 address)
{
	const struct preload_control *control = guard.control;
	u64 page = address & -(u64)PRELOAD_PAGE;

	if (!control || address >> ADDRESS_BITS)
		return 0;
	if (walk->is_own && walk->high == me.high && goes_on(control, page)) {
		walk->high = me.high;
		return 1;
	}
	if (copy_memory(control, walk->page, page, PRELOAD_PAGE) == PRELOAD_PAGE)
		walk->shift = (u64)walk->page - page;
	else if (!may_call(control) && !walk->guessed)
		walk->shift = 0;
	else
		return 0;
	walk->low = page;
	walk->high = page + PRELOAD_PAGE;
	return 1;
}

static inline u64 read_word(struct walk *walk, u64 address)
{
	if (unlikely(address & 7) || (unlikely(address - walk->low >= walk->high - walk->low) &&
				      !open_page(walk, address))) {
		walk->bad = 1;
		return 0;
	}
	return *(volatile u64 *)(address + walk->shift);
}

/*
 * Returns how many pages from `start` on can be sent: up to the end of the thread's own stack, or as
 * many pages of other memory as are readable now.
 */
static u32 count_pages(const struct preload_control *control, const struct walk *walk, u64 start)
{
	u64 end = start + PRELOAD_MISS_PAGES * PRELOAD_PAGE, at = start + PRELOAD_PAGE;

	if (walk->is_own)
		while (at < end && (at < me.high || goes_on(control, at)))
			at += PRELOAD_PAGE;
	else if (may_call(control))
		while (at < end && can_read(control, at))
			at += PRELOAD_PAGE;
	else if (walk->high - start <= end - start) /* only pages with frames of running functions */
		at = walk->high;
	return (at - start) / PRELOAD_PAGE;
}

#endif
