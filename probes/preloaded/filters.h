/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/*
 * System call filters (seccomp(2)). A filter may kill the program for a system call that this
 * library makes, so the library makes none once there is a filter:
 *   - If the process has a filter from the start (`is_confined`), the library stays idle, and the
 *     profiler uses probes. A profiler without probes that has the same filters tries them first
 *     (PRELOAD_VOUCHED).
 *   - If the program installs one through the C library, with prctl(2) or syscall(2), probes replace
 *     the library first (leave.h).
 *   - If a file contains machine code that installs a filter (`makes_filters` in
 *     tracelloc/files/machinecode), the profiler uses probes from the start. It also watches the
 *     process for filters that were installed otherwise.
 */
#ifndef TRACELLOC_PRELOADED_FILTERS_H
#define TRACELLOC_PRELOADED_FILTERS_H

#include "area.h"
#include "base.h"
#include "kernel.h"
#include "next.h"

#define PR_SET_SECCOMP 22
#define SECCOMP_MODE_FILTER 2
#define SECCOMP_SET_MODE_FILTER 1
#define PR_SET_TSC 26
#define PR_TSC_SIGSEGV 2

#define SECCOMP_FIELD "\nSeccomp:\t"
#define STATUS_PATH "/proc/self/status"
/* Most bytes read of that file. */
#define STATUS_BYTES 4096

static volatile u32 has_filter;

/*
 * Whether the process has a filter or may have one. Called at process start. It makes only system
 * calls that the loader has made before.
 */
static int is_confined(void)
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

static void leave(u32 why);

/* Strict mode of seccomp(2) also forbids reading the time stamp counter. */
static __attribute__((noinline)) void note_filter(int is_strict)
{
	leave(is_strict ? PRELOAD_NO_CLOCK : PRELOAD_FILTERED);
	has_filter = 1;
}

static __attribute__((used)) void note_system_call(u64 number, u64 first, u64 second)
{
	if (number == SYS_seccomp && first <= SECCOMP_SET_MODE_FILTER)
		note_filter(first != SECCOMP_SET_MODE_FILTER);
	else if (number == SYS_prctl && first == PR_SET_SECCOMP)
		note_filter(second != SECCOMP_MODE_FILTER);
	else if (number == SYS_prctl && first == PR_SET_TSC && second == PR_TSC_SIGSEGV)
		leave(PRELOAD_NO_CLOCK);
}

/*
 * Body of a variadic function: calls another function, then jumps to the next definition, with
 * registers and stack as the caller left them.
 */
#define CALL_AND_PASS_ON(call, function) \
	__asm__("pushq %%rbp\n\tmovq %%rsp, %%rbp\n\t" \
		"pushq %%rdi\n\tpushq %%rsi\n\tpushq %%rdx\n\tpushq %%rcx\n\t" \
		"pushq %%r8\n\tpushq %%r9\n\t" call "\n\t" \
		"popq %%r9\n\tpopq %%r8\n\tpopq %%rcx\n\tpopq %%rdx\n\tpopq %%rsi\n\tpopq %%rdi\n\t" \
		"popq %%rbp\n\tjmp *%0" : : "m"(function))

EXPORT __attribute__((naked)) long syscall(long number, ...)
{
	CALL_AND_PASS_ON("call note_system_call", next.syscall);
}

EXPORT __attribute__((naked)) int prctl(int option, ...)
{
	CALL_AND_PASS_ON("movq %%rsi, %%rdx\n\tmovq %%rdi, %%rsi\n\tmovl $157, %%edi\n\t"
			 "call note_system_call", next.prctl);
}

#endif
