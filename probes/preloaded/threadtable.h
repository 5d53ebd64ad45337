/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/*
 * The threads of a process that the library was injected into. The C library has reserved no
 * thread-local variables for it, so it finds its record of a thread by the thread's id, which the C
 * library keeps in its own record of the thread (`struct pthread`), to which the thread pointer leads.
 * A record whose thread has ended is taken by another thread; one that a thread with the same id had
 * left is recognized by the thread pointer.
 */
#ifndef TRACELLOC_PRELOADED_THREADTABLE_H
#define TRACELLOC_PRELOADED_THREADTABLE_H

#include "kernel.h"
#include "state.h"

/* Records, a power of two, and those that a thread may have, from the one that its id names on. */
#define THREADS 4096
#define THREAD_TRIES 32

/* Offset of a thread's id from the thread pointer, in bytes; written by the profiler. */
static u64 tid_offset;

static struct record {
	struct thread thread;
	u32 tid; /* id of the thread that has it; 0: none */
	u64 end; /* its stack_end() */
} records[THREADS];

/* Shared by threads that find no record. */
static struct thread nobody;

/* The thread pointer: an address above this thread's stack. */
static inline u64 stack_end(void)
{
	return thread_pointer();
}

/* Whether a thread of this process exists. */
static int exists(u32 tid)
{
	return system_call(SYS_tgkill, guard.control ? guard.control->pid : 0, tid, 0, 0, 0, 0) != -ESRCH;
}

/* This thread's record, the first one that it has; NULL: none. */
static inline struct thread *find_thread(u32 tid)
{
	u64 end = stack_end();

	for (u32 n = 0; n < THREAD_TRIES; n++) {
		struct record *record = &records[(tid + n) & (THREADS - 1)];

		if (likely(record->tid == tid && record->end == end))
			return &record->thread;
	}
	return NULL;
}

/* Takes a record for this thread. Signal handlers may run here, and take this or an earlier one. */
static __attribute__((noinline)) struct thread *take_thread(u32 tid)
{
	for (u32 n = 0; n < THREAD_TRIES; n++) {
		struct record *record = &records[(tid + n) & (THREADS - 1)];
		u32 owner = *(volatile u32 *)&record->tid;

		if (owner && owner != tid && exists(owner))
			continue;
		if (__atomic_compare_exchange_n(&record->tid, &owner, tid, 0, __ATOMIC_ACQ_REL,
						__ATOMIC_RELAXED)) {
			record->end = 0;
			record->thread = (struct thread){0};
			*(volatile u64 *)&record->end = stack_end();
		} else if (owner != tid) {
			continue;
		}
		/* All that this thread runs, handlers too, must use one record. */
		__atomic_signal_fence(__ATOMIC_SEQ_CST);
		return find_thread(tid);
	}
	return &nobody;
}

/* Returns this thread's id, as the C library knows it. */
static inline u32 own_tid(void)
{
	return *(const volatile u32 *)(thread_pointer() + tid_offset);
}

/*
 * Makes a record that of this thread, which has forked: it has another id, and may go on in the middle
 * of a call.
 */
static __attribute__((noinline)) void keep_thread(struct thread *own)
{
	*take_thread(own_tid()) = *own;
}

/* This thread's record. It stays the same, so a function needs to look for it only once. */
static __attribute__((noinline, const)) struct thread *this_thread(void)
{
	u32 tid = own_tid();
	struct thread *found = find_thread(tid);

	return likely(found) ? found : take_thread(tid);
}

#define me (*this_thread())

#endif
