/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/*
 * Filters of system calls (seccomp(2)). One may end the program for a call that this library makes,
 * so none is made once there is a filter:
 *   - A process that has one from the start does without the library (`is_confined`): its figures
 *     come from probes.
 *   - When the program asks for one by the C library's functions, prctl(2) and syscall(2), probes
 *     take over first (leave.h).
 *   - The profiler uses probes from the start where a file has the machine code of such a request
 *     (`makes_filters` in tracelloc/files/machinecode), and watches the process for what else there may be.
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
/* Bytes of that file, at most. */
#define STATUS_BYTES 4096

static volatile u32 has_filter;

/*
 * Whether the process has a filter, or may have one. Called when the process begins. Makes only
 * system calls that the loader has made before.
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
	/* A kernel without seccomp(2) has no such line; but it may also come later. */
	return bytes <= 0 || bytes == sizeof(text);
}

/* Whether system calls may be made that the program's own C library need not make. */
static inline int may_call(const struct preload_control *control)
{
	return *(volatile u32 *)&control->may_call && !has_filter;
}

static void leave(u32 why);

/* The strict mode of seccomp(2) forbids reading the time stamp counter as well. */
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
 * Of a function with any number of arguments: calls another one in between. The next definition
 * finds registers and stack as the caller has left them.
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
