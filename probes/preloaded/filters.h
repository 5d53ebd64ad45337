/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/*
 * System call filters (seccomp(2)). A filter may kill the program for a system call that this
 * library makes, so the library makes none once there is a filter:
 *   - If the process has a filter from the start (`is_confined`), the library stays idle, and the
 *     profiler uses probes. A profiler without probes that has the same filters tries them first
 *     (PRELOAD_VOUCHED).
 *   - If the program installs one through the C library, with prctl(2) or syscall(2), probes replace
 *     the library first (systemcalls.h).
 *   - If a file contains machine code that installs a filter (`makes_filters` in
 *     tracelloc/files/machinecode), the profiler uses probes from the start. It also watches the
 *     process for filters that were installed otherwise.
 */
#ifndef TRACELLOC_PRELOADED_FILTERS_H
#define TRACELLOC_PRELOADED_FILTERS_H

#include "area.h"
#include "base.h"
#include "kernel.h"

#define SECCOMP_FIELD "\nSeccomp:\t"
#define STATUS_PATH "/proc/self/status"
/* Most bytes read of that file. */
#define STATUS_BYTES 4096

static volatile u32 has_filter;

/*
 * Whether the process has a filter or may have one. Called at process start. It makes only system
 * calls that the loader has made before.
 */
static inline int is_confined(void)
{
	char text[STATUS_BYTES];
	const char *field = SECCOMP_FIELD;
	long file = system_call(SYS_openat, AT_FDCWD, (u64)STATUS_PATH, O_CLOEXEC, 0, 0, 0), bytes;

	if (file < 0)
		return 1;
	bytes = system_call(SYS_read, file, (u64)text, sizeof(text), 0, 0, 0);
	system_call(SYS_close, file, 0, 0, 0, 0, 0);
	for (long at = 0; at < bytes; at++) {
		field = text[at] == *field ? field + 1 : SECCOMP_FIELD + (text[at] == '\n');
		if (!*field)
			return at + 1 >= bytes || text[at + 1] != '0';
	}
	/* The kernel has no seccomp(2), unless the line is in the part that was not read. */
	return bytes <= 0 || bytes == sizeof(text);
}

/* Whether the library may make system calls of its own. */
static inline int may_call(const struct preload_control *control)
{
	return *(volatile u32 *)&control->may_call && !has_filter;
}

#endif
