/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/*
 * What a walk may read. Nothing catches a read of what is not mapped, and what is mapped now
 * somebody may unmap in the next moment. So there are two kinds of memory.
 *
 * A thread's own stack stays for as long as the thread. That of the first thread ends with what
 * the kernel has put there. Those of others end with the thread's variables, such as `me`: all
 * C libraries have them in one mapping, above the stack. From the end down, each page
 * is asked for once, when the stack has grown into it: a system call says EFAULT where the
 * program would be ended. Pages that follow each other are one stack, for below it there is
 * a page that can't be read. Only what is above the place where a walk begins is read from there.
 *
 * Everything else: stacks of fibers and signal handlers, and what damaged frame
 * pointers point to. The kernel copies it, page by page. A process whose system calls are filtered
 * might be ended for asking that. Until probes take over there (leave.h), no page is asked for, and
 * only those frames are read that unwind entries are sure of: their functions run, and will return
 * through them.
 */
#ifndef TRACELLOC_PRELOADED_STACK_H
#define TRACELLOC_PRELOADED_STACK_H

#include "thread.h"

/* Where the first thread's stack was when the process began. */
static u64 first_stack;

/* Pages that a stack has grown by, at most, since it was last seen. */
#define STACK_STRIDE (2048UL * PRELOAD_PAGE)

/* rt_sigprocmask(2) reads a mask before it finds that it can't do that with it. */
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
	u64 end = is_first_thread(control) ? first_stack : (u64)&me;

	me.low = end & -(u64)PRELOAD_PAGE;
	me.high = is_first_thread(control) ? me.low + PRELOAD_PAGE : end & ~7ULL;
	me.hole = 0;
}

/* Whether this thread's own stack has grown down to a page. */
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

/* Whether the page that the first thread's stack seems to end with is followed by more of it. */
static int goes_on(const struct preload_control *control, u64 page)
{
	if (page != me.high || !is_first_thread(control) || !can_read(control, page))
		return 0;
	me.high += PRELOAD_PAGE;
	return 1;
}

/* Memory that a walk can read now. */
struct walk {
	u64 low, high; /* addresses: from here to there, which is beyond it */
	u64 shift;     /* what is to be added to an address for where it, or its copy, is */
	u64 bad;       /* something could not be read */
	u64 guessed;   /* STACK_GUESSED, or 0 */
	u32 is_own;    /* it began on the thread's own stack */
	u8 *page;      /* where copies go */
};

/* A walk begins: from here on up the stack is in use. */
static inline void open_stack(const struct preload_control *control, struct walk *walk, u64 sp)
{
	u64 page = sp & -(u64)PRELOAD_PAGE;

	if (likely(sp - me.low < me.high - me.low) || has_grown(control, page)) {
		walk->is_own = 1;
		walk->low = page;
		walk->high = me.high;
	}
}

/* Copies memory that may not be there; under a filter of system calls, nothing. Bytes. */
static u64 copy_memory(const struct preload_control *control, void *to, u64 from, u64 bytes)
{
	struct { u64 start, bytes; } local = {(u64)to, bytes}, remote = {from, bytes};
	long copied = 0;

	if (may_call(control))
		copied = system_call(SYS_process_vm_readv, control->pid, (u64)&local, 1,
				     (u64)&remote, 1, 0);
	return copied > 0 ? copied : 0;
}

/* Gets at another page. Whether it can be read. */
static __attribute__((noinline)) int open_page(struct walk *walk, u64 address)
{
	const struct preload_control *control = guard.control;
	u64 page = address & -(u64)PRELOAD_PAGE;

	if (!control || address >> 47)
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
 * How many pages from this one on can be sent: of the thread's own stack up to its end, of others
 * what can be read now.
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
	else if (walk->high - start <= end - start) /* as far as there are frames for sure */
		at = walk->high;
	return (at - start) / PRELOAD_PAGE;
}

#endif
