/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* Functions of the C library that the library defines, preloaded or injected. */
#ifndef TRACELLOC_PRELOADED_FUNCTIONS_H
#define TRACELLOC_PRELOADED_FUNCTIONS_H

#include "calls.h"
#include "next.h"
#include "systemcalls.h"
#include <link.h>

TRACES(void *, malloc, (size_t size), (size), IS_IDLE,
       next.malloc(size), TRACED(traced_malloc(size, FRAME)))

TRACES(void, free, (void *block), (block), IS_IDLE, next.free(block), ({
	begin_call(FRAME);
	traced_free((releasing)(void *)next.free, block, 0, 0, FRAME);
	end_call();
}))

TRACES(void *, calloc, (size_t n, size_t size), (n, size), IS_IDLE,
       next.calloc(n, size), TRACED(traced_calloc(n, size, FRAME)))

TRACES(void *, realloc, (void *block, size_t size), (block, size), IS_IDLE,
       next.realloc(block, size), TRACED(traced_realloc(block, 1, size, 0, FRAME)))

TRACES(void *, reallocarray, (void *block, size_t n, size_t size), (block, n, size), IS_IDLE,
       next.reallocarray(block, n, size), TRACED_RARELY(traced_realloc(block, n, size, 1, FRAME)))

TRACES(int, posix_memalign, (void **out, size_t alignment, size_t size), (out, alignment, size),
       IS_IDLE, next.posix_memalign(out, alignment, size),
       TRACED_RARELY(traced_posix_memalign(out, alignment, size, FRAME)))

TRACES(void *, aligned_alloc, (size_t alignment, size_t size), (alignment, size), IS_IDLE,
       next.aligned_alloc(alignment, size),
       TRACED_RARELY(traced_memalign(next.aligned_alloc, alignment, size, FRAME)))

TRACES(void *, memalign, (size_t alignment, size_t size), (alignment, size), IS_IDLE,
       next.memalign(alignment, size),
       TRACED_RARELY(traced_memalign(next.memalign, alignment, size, FRAME)))

TRACES(void *, valloc, (size_t size), (size), IS_IDLE,
       next.valloc(size), TRACED_RARELY(traced_valloc(next.valloc, size, FRAME)))

TRACES(void *, pvalloc, (size_t size), (size), IS_IDLE,
       next.pvalloc(size), TRACED_RARELY(traced_valloc(next.pvalloc, size, FRAME)))

/* Maps private zeros in place of the shared memory. */
static int map_zeros(void *at, u64 bytes)
{
	return system_call(SYS_mmap, (u64)at, bytes, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == (long)at;
}

/*
 * Forks. The child does not have the shared memory. The child would access it only if fork is called
 * in a signal handler that interrupted an allocator call, possibly just before its check of
 * `holder`. The child continues that call and must find zeros, which mean that no events are wanted.
 */
static int fork_by(int (*function)(void))
{
	struct preload_control *control = guard.control;
	u8 *area = guard.area, *place = guard.place;
	struct thread *own = &me;
	int pid;

	__asm__ volatile("" : "+r"(own)); /* the parent's, not looked for later */
	pid = function();
#ifdef PRELOAD_EMULATED /* nor does its madvise(2) do anything */
	if (!pid)
		guard.control = NULL, guard.area = guard.place = NULL;
#endif
	if (!pid)
		keep_thread(own);
	if (!pid && control && !guard.control && map_zeros(control, PRELOAD_PAGE) && own->inside &&
	    (!place || map_zeros(place, PRELOAD_BYTES))) {
		guard.area = area;
		guard.control = control;
	}
	return pid;
}

EXPORT int fork(void)
{
	return fork_by(next.fork);
}

EXPORT int _Fork(void)
{
	return fork_by(next._Fork);
}

static int note_unloads(struct dl_phdr_info *object, size_t size, void *count)
{
	(void)size;
	*(u64 *)count = object->dlpi_subs;
	return 1;
}

/* Returns how many objects the loader has unmapped since process start. */
static u64 count_unloads(void)
{
	int (*iterate)(int (*)(struct dl_phdr_info *, size_t, void *), void *) =
		(__typeof__(iterate))find_one("dl_iterate_phdr");
	u64 count = 0;

	if (iterate)
		iterate(note_unloads, &count);
	return count;
}

/* Waits until the profiler has processed all stacks, for which it reads the mappings if need be. */
static void await_records(struct preload_control *control)
{
	u64 begun = ticks(), sent = *(volatile u64 *)&control->records_reserved;

	for (u32 tries = 0; !me.inside && is_wanted(control); tries++)
		if (load_acquire(&control->records_taken) >= sent || !may_wait(control, tries, begun))
			break;
}

/*
 * Another object may be mapped at the addresses of an unmapped one. So unwind entries are not used
 * during dlclose(3), and the old ones are outdated if it has unmapped anything.
 */
EXPORT int dlclose(void *library)
{
	struct preload_control *control = guard.control;
	int (*close)(void *) = (int (*)(void *))find_one("dlclose");
	u64 before;
	int result;

	if (!close)
		return -1;
	if (!control)
		return close(library);
	await_records(control);
	__atomic_fetch_add(&control->space.unloading, 1, __ATOMIC_SEQ_CST);
	before = count_unloads();
	result = close(library);
	if (count_unloads() != before)
		__atomic_fetch_add(&control->space.loads, 1, __ATOMIC_SEQ_CST);
	__atomic_fetch_sub(&control->space.unloading, 1, __ATOMIC_SEQ_CST);
	return result;
}

/*
 * A library in another namespace has a C library of its own. The function ends with a tail call,
 * because the C library uses its return address to determine the caller.
 */
EXPORT void *dlmopen(long namespace, const char *file, int mode)
{
	void *(*open)(long, const char *, int) =
		(void *(*)(long, const char *, int))find_one("dlmopen");

	if (!open)
		return NULL;
	leave(PRELOAD_NAMESPACE);
	return open(namespace, file, mode);
}

/*
 * A program that locks its memory would also lock the memory shared with the profiler. So this
 * waits until probes have replaced the library, then unmaps that memory.
 */
EXPORT int mlockall(int flags)
{
	int (*lock)(int) = (int (*)(int))find_one("mlockall");

	if (!lock)
		return -1;
	leave(PRELOAD_LOCKED);
	if (guard.area && !is_wanted(guard.control)) {
		system_call(SYS_munmap, (u64)guard.area, PRELOAD_BYTES, 0, 0, 0, 0);
		guard.area = guard.place = NULL;
	}
	return lock(flags);
}

#endif
