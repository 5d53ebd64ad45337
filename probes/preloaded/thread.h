/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* What the library keeps of the process and of each thread, and the memory that is shared. */
#ifndef TRACELLOC_PRELOADED_THREAD_H
#define TRACELLOC_PRELOADED_THREAD_H

#include "area.h"
#include "filters.h"
#include "kernel.h"

/* Wiped when the process forks: its child is to be idle. Pages of its own. */
static struct guard {
	struct preload_control *control; /* NULL: idle for good */
	u8 *area;                     /* all of the file, once events were wanted */
	u8 *place;                    /* where that is going to be */
	u32 mapping;                  /* a thread is mapping it */
	u8 rest[PRELOAD_PAGE - 28];
} guard __attribute__((aligned(PRELOAD_PAGE)));

/* What a thread keeps: little, for it is taken from its stack. */
struct thread {
	struct preload_ring *ring;
	struct preload_ring *noted; /* where it says that a call is under way; NULL: none is */
	struct event *slots;
	u64 taken;   /* slots that the profiler had taken when last looked */
	u64 call;    /* where the return address of the allocator's call under way is; 0: none */
	u64 freeing; /* the same of a free */
	u64 freed;   /* what that frees */
	u64 until_sample; /* bytes; 0: to be drawn */
	u64 dice;         /* of pseudo-random numbers; 0: none yet */
	u64 low, high;    /* of its own stack, as far as it is known (stack.h); 0: it is not */
	u64 hole;         /* what is in this page or below is none of it */
	u64 outermost;    /* frame of the first of the calls under way */
	u32 inside;       /* calls under way, signal handlers' included, that use the shared memory */
	u32 throws;       /* the call under way is an operator new, which an exception may leave */
	u32 tid;
};
static __thread struct thread me __attribute__((tls_model("initial-exec")));

/* Says whether a call is under way that may have to do with the shared memory. */
static inline void note_inside(int by)
{
	__asm__ volatile("addl %1, %0" : "+m"(me.inside) : "er"(by) : "memory");
}

static inline int is_wanted(const struct preload_control *control)
{
	return control && *(volatile u32 *)&control->holder & FUTEX_TID_MASK;
}

static inline void count(u32 which)
{
	__atomic_fetch_add(&guard.control->counters[which], 1, __ATOMIC_RELAXED);
}

/*
 * Waits a moment for the profiler, longer where many have passed. `begun` is when the first one
 * was. Returns whether to go on waiting.
 */
static int may_wait(struct preload_control *control, u32 tries, u64 begun)
{
	struct { u64 seconds, nanoseconds; } time = {0, 50000};

	if (__builtin_ia32_rdtsc() - begun > *(volatile u64 *)&control->max_stall)
		__atomic_store_n(&control->gave_up, 1, __ATOMIC_SEQ_CST);
	if (*(volatile u32 *)&control->gave_up)
		return 0;
	if (tries > 50 && may_call(control))
		system_call(SYS_nanosleep, (u64)&time, 0, 0, 0, 0, 0);
	else
		for (u32 n = 0; n < 50; n++)
			__builtin_ia32_pause();
	return 1;
}

static inline u64 stamp_now(struct preload_control *control)
{
	u32 low, high;

	if (unlikely(control->clock == PRELOAD_CLOCK_COUNTER))
		return __atomic_fetch_add(&control->counter, 1, __ATOMIC_SEQ_CST);
	__asm__ volatile("lfence\n\trdtsc" : "=a"(low), "=d"(high) : : "memory");
	return (u64)high << 32 | low;
}

/*
 * Maps all of the file: the page that is mapped is shared, so a copy of it can be longer. Where is
 * noted before: a signal handler may fork in between, and the child goes on here (see fork_by).
 */
static __attribute__((noinline)) int map_area(void)
{
	u32 nobody = 0;
	long area;

	while (!__atomic_compare_exchange_n(&guard.mapping, &nobody, 1, 0, __ATOMIC_ACQUIRE,
					    __ATOMIC_RELAXED)) {
		nobody = 0;
		__builtin_ia32_pause();
	}
	if (!guard.area && guard.control) {
		area = -1;
		if (may_call(guard.control))
			area = system_call(SYS_mmap, 0, PRELOAD_BYTES, PROT_NONE,
					   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (area > 0) {
			guard.place = (u8 *)area;
			area = system_call(SYS_mremap, (u64)guard.control, 0, PRELOAD_BYTES,
					   MREMAP_MAYMOVE | MREMAP_FIXED, area, 0);
		}
		if (area > 0)
			guard.area = (u8 *)area;
	}
	__atomic_store_n(&guard.mapping, 0, __ATOMIC_RELEASE);
	return guard.area != NULL;
}

#endif
