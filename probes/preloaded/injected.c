/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/*
 * libtracelloc-injected.so: the preloaded library (library.c) for a process that runs already. The
 * profiler maps it, makes the shared memory, and then replaces the addresses of the C library's
 * functions by those of the functions here, while all threads are stopped
 * (tracelloc/record/sources/injected). So the loader does not know this library: it has no thread-local
 * variables (threadtable.h), no relocations and no initialization, and calls no function but those
 * whose addresses the profiler has written to it.
 */
#define PRELOAD_INJECTED

#include "functions.h"

/* The next definitions of functions that are called rarely; NULL if there is none. */
static struct {
	void *dlclose, *dlmopen, *mlockall, *dl_iterate_phdr;
} rare;

static void *find_one(const char *name)
{
	if (is_same(name, "dlclose"))
		return rare.dlclose;
	if (is_same(name, "dlmopen"))
		return rare.dlmopen;
	if (is_same(name, "mlockall"))
		return rare.mlockall;
	return rare.dl_iterate_phdr;
}

/* As in the preloaded library; written by the profiler. */
EXPORT volatile u32 tracelloc_preload_state;
EXPORT void *volatile tracelloc_preload_next;

/* Marks the file as tracelloc's library; never called. */
EXPORT void tracelloc_preload_ready(void)
{
}

/* What the profiler writes, under names that it finds; code refers to the variables themselves. */
#define WRITTEN(name) \
	EXPORT extern __typeof__(name) tracelloc_##name __attribute__((alias(#name)))
WRITTEN(guard);
WRITTEN(next);
WRITTEN(rare);
WRITTEN(first_stack);
WRITTEN(tid_offset);
