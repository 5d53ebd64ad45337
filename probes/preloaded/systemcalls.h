/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/*
 * System calls of the program, through the C library's prctl(2) and syscall(2), after which this
 * library could not go on: probes replace it first.
 */
#ifndef TRACELLOC_PRELOADED_SYSTEMCALLS_H
#define TRACELLOC_PRELOADED_SYSTEMCALLS_H

#include "filters.h"
#include "leave.h"
#include "next.h"

#define PR_SET_SECCOMP 22
#define SECCOMP_MODE_FILTER 2
#define SECCOMP_SET_MODE_FILTER 1
#define PR_SET_TSC 26
#define PR_TSC_SIGSEGV 2

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

static __attribute__((used)) void note_prctl(u64 option, u64 second)
{
	note_system_call(SYS_prctl, option, second);
}

PASSES_ON(EXPORT, long, syscall, long, next.syscall, note_system_call, (first, rest[0], rest[1]))
PASSES_ON(EXPORT, int, prctl, int, next.prctl, note_prctl, (first, rest[0]))

#endif
