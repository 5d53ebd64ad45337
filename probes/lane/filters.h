/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/*
 * Filters of system calls (seccomp(2)). One may end the program for a call that this library makes,
 * so it is known at once when the program asks for one by the C library's functions, prctl(2) and
 * syscall(2). Filters that it begins otherwise, or had from the start, the profiler sees.
 */

#define PR_SET_SECCOMP 22
#define SECCOMP_MODE_FILTER 2
#define SECCOMP_SET_MODE_FILTER 1
#define PR_SET_TSC 26
#define PR_TSC_SIGSEGV 2

static volatile u32 has_filter;

/* Whether system calls may be made that the program's own C library need not make. */
static inline int may_call(const struct lane_control *control)
{
	return *(volatile u32 *)&control->may_call && !has_filter;
}

static void leave(u32 why);

/* The strict mode of seccomp(2) forbids reading the time stamp counter as well. */
static __attribute__((noinline)) void note_filter(int is_strict)
{
	if (is_strict)
		leave(LANE_NO_CLOCK);
	has_filter = 1;
}

static __attribute__((used)) void note_system_call(u64 number, u64 first, u64 second)
{
	if (number == SYS_seccomp && first <= SECCOMP_SET_MODE_FILTER)
		note_filter(first != SECCOMP_SET_MODE_FILTER);
	else if (number == SYS_prctl && first == PR_SET_SECCOMP)
		note_filter(second != SECCOMP_MODE_FILTER);
	else if (number == SYS_prctl && first == PR_SET_TSC && second == PR_TSC_SIGSEGV)
		leave(LANE_NO_CLOCK);
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
