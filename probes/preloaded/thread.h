/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* The state of the current thread, and the mapping of the shared memory. */
#ifndef TRACELLOC_PRELOADED_THREAD_H
#define TRACELLOC_PRELOADED_THREAD_H

#include "area.h"
#include "filters.h"
#include "kernel.h"
#include "state.h"

#ifdef PRELOAD_INJECTED
#include "threadtable.h"
#else
/* Descriptor of the shared memory; -1 if there is none. */
static long area_file = -1;

static __thread struct thread me __attribute__((tls_model("initial-exec")));

/* Returns an address above this thread's stack, in the same mapping. */
static inline u64 stack_end(void)
{
	return (u64)&me;
}

/* Makes a record that of this thread, which has forked. */
static inline void keep_thread(struct thread *own)
{
	(void)own;
}
#endif

/* Counts the calls under way that may use the shared memory: `by` is 1 or -1. */
static inline void note_inside(int by)
{
	ADD_HERE(me.inside, by);
}

static inline int is_wanted(const struct preload_control *control)
{
	return control && load_acquire(&control->holder) & FUTEX_TID_MASK;
}

static inline void count(u32 which)
{
	__atomic_fetch_add(&guard.control->counters[which], 1, __ATOMIC_RELAXED);
}

/*
 * Waits briefly for the profiler, longer after 50 tries. `begun`: time stamp counter at the first
 * try. Returns whether the caller may continue to wait.
 */
static int may_wait(struct preload_control *control, u32 tries, u64 begun)
{
	struct { u64 seconds, nanoseconds; } time = {0, 50000};
	u64 now = ticks();

	if (now - begun > *(volatile u64 *)&control->max_stall)
		__atomic_store_n(&control->gave_up, 1, __ATOMIC_SEQ_CST);
	if (*(volatile u32 *)&control->gave_up)
		return 0;
	if (tries > 50 && may_call(control))
		system_call(SYS_nanosleep, (u64)&time, 0, 0, 0, 0, 0);
	else
		for (u32 n = 0; n < 50; n++)
			pause_briefly();
	__atomic_fetch_add(&control->waited, ticks() - now, __ATOMIC_RELAXED);
	return 1;
}

static inline u64 stamp_now(struct preload_control *control)
{
	if (unlikely(control->clock == PRELOAD_CLOCK_COUNTER))
		return __atomic_fetch_add(&control->counter, 1, __ATOMIC_SEQ_CST);
	return ticks_in_order();
}

/*
 * Maps the whole file, by mremap(2) of the first page, whose shared mapping may become longer. The
 * address is stored in `place` before: a signal handler may fork in between, and the child continues
 * here (see fork_by).
 */
static __attribute__((noinline)) int map_area(void)
{
	u32 nobody = 0;
	long area;

	while (!__atomic_compare_exchange_n(&guard.mapping, &nobody, 1, 0, __ATOMIC_ACQUIRE,
					    __ATOMIC_RELAXED)) {
		nobody = 0;
		pause_briefly();
	}
	if (!guard.area && guard.control) {
		area = -1;
		if (may_call(guard.control))
			area = system_call(SYS_mmap, 0, PRELOAD_BYTES, PROT_NONE,
					   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (area > 0) {
			guard.place = (u8 *)area;
#ifdef PRELOAD_EMULATED /* for tests: QEMU's mremap(2) maps nothing twice */
			area = system_call(SYS_mmap, area, PRELOAD_BYTES, PROT_READ | PROT_WRITE,
					   MAP_SHARED | MAP_FIXED, area_file, 0);
#else
			area = system_call(SYS_mremap, (u64)guard.control, 0, PRELOAD_BYTES,
					   MREMAP_MAYMOVE | MREMAP_FIXED, area, 0);
#endif
		}
		if (area > 0)
			guard.area = (u8 *)area;
	}
	__atomic_store_n(&guard.mapping, 0, __ATOMIC_RELEASE);
	return guard.area != NULL;
}

#endif
