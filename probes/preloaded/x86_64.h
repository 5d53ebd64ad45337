/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* x86-64: what the library knows of the processor. aarch64.h has the same for 64-bit Arm. */
#ifndef TRACELLOC_PRELOADED_X86_64_H
#define TRACELLOC_PRELOADED_X86_64_H

#include "base.h"

#define MACHINE EM_X86_64
#define STEP_HEADER "step_x86_64.h"
/* Whether a register may have the return address. */
#define HAS_LINK 0
/* Bits of user addresses with four levels of page tables. Higher ones are mapped only on request. */
#define ADDRESS_BITS 47
/* The address of a block in a pointer to it. */
#define BLOCK_ADDRESS(pointer) (pointer)
/* The key of the unwind entry for the region of an address (maps.h). */
#define REGION_KEY(address) ((address) >> PRELOAD_REGION_SHIFT | 1ULL << 47)
/* Size of the largest pages. */
#define LARGEST_PAGE 4096
/* Offset of the mode in what fstat(2) writes, in bytes. */
#define STATUS_MODE_AT 24

#define SYS_read 0
#define SYS_mmap 9
#define SYS_mprotect 10
#define SYS_munmap 11
#define SYS_close 3
#define SYS_fstat 5
#define SYS_rt_sigprocmask 14
#define SYS_pread64 17
#define SYS_mremap 25
#define SYS_madvise 28
#define SYS_nanosleep 35
#define SYS_getpid 39
#define SYS_fcntl 72
#define SYS_ftruncate 77
#define SYS_prctl 157
#define SYS_gettid 186
#define SYS_fgetxattr 193
#define SYS_tgkill 234
#define SYS_openat 257
#define SYS_faccessat 269
#define SYS_prlimit64 302
#define SYS_process_vm_readv 310
#define SYS_seccomp 317
#define SYS_memfd_create 319
#define SYS_membarrier 324

static inline long system_call(long number, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f)
{
	register u64 r10 __asm__("r10") = d;
	register u64 r8 __asm__("r8") = e;
	register u64 r9 __asm__("r9") = f;
	long result;

	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
}

/* A read before all later ones, and a write after all earlier ones: x86-64 keeps their order. */
#define load_acquire(place) (*(volatile __typeof__(*(place)) *)(place))
#define store_release(place, value) \
	((void)(*(volatile __typeof__(*(place)) *)(place) = (value)))

/* The time stamp counter. */
static inline u64 ticks(void)
{
	return __builtin_ia32_rdtsc();
}

/* The same, after all earlier loads are complete. */
static inline u64 ticks_in_order(void)
{
	u32 low, high;

	__asm__ volatile("lfence\n\trdtsc" : "=a"(low), "=d"(high) : : "memory");
	return (u64)high << 32 | low;
}

static inline void pause_briefly(void)
{
	__builtin_ia32_pause();
}

/* Adds to a number of this thread; signal handlers may do so, too, at any time. */
#define ADD_HERE(place, by) __asm__ volatile("addl %1, %0" : "+m"(place) : "er"(by) : "memory")

/* Returns a number of this thread, and adds 1 to it. Signal handlers never get the same one. */
static inline u64 take_number(u64 *place)
{
	u64 number = 1;

	__asm__ volatile("xaddq %0, %1" : "+r"(number), "+m"(*place) : : "memory");
	return number;
}

static inline void copy_words(u64 *to, const u64 *from, u64 n)
{
	__asm__ volatile("rep movsq" : "+D"(to), "+S"(from), "+c"(n) : : "memory");
}

/* The address of the C library's record of this thread. */
static inline u64 thread_pointer(void)
{
	u64 address;

	__asm__("movq %%fs:0, %0" : "=r"(address));
	return address;
}

static inline u64 stack_pointer(void)
{
	u64 sp;

	__asm__ volatile("movq %%rsp, %0" : "=r"(sp));
	return sp;
}

/* Writes the registers of a miss: of the function that this is inlined into. */
static inline __attribute__((always_inline)) void save_registers(u64 *registers)
{
	__asm__ volatile("leaq 0f(%%rip), %%rax\n0:\n\t"
			 "movq %%rax, 0(%0)\n\tmovq %%rsp, 8(%0)\n\tmovq %%rbp, 16(%0)\n\t"
			 "movq %%rbx, 24(%0)\n\tmovq %%r12, 32(%0)\n\tmovq %%r13, 40(%0)\n\t"
			 "movq %%r14, 48(%0)\n\tmovq %%r15, 56(%0)"
			 : : "D"(registers) : "rax", "memory");
}

/*
 * Defines a function that reports its calls: it calls the next definition if `is_idle`, else does
 * `traced`, where FRAME is its frame: the caller's frame pointer and the return address, with the
 * caller's stack right above.
 */
#define TRACES(type, name, parameters, arguments, is_idle, idle, traced) \
	EXPORT type name parameters \
	{ \
		return is_idle ? idle : traced; \
	}
#define FRAME ((const u64 *)__builtin_frame_address(0))

/* Defines a function that calls rt_sigreturn(2), with the stack as it is. */
#define RETURNS_FROM_SIGNAL(name) \
	static __attribute__((naked)) void name(void) \
	{ \
		__asm__("movq $15, %rax\n\tsyscall"); \
	}

/*
 * Defines a variadic function that calls another function, by `arguments` of `first` and `rest`, then
 * jumps to the next definition, with registers and stack as the caller left them. (Here, the other
 * function gets all arguments.)
 */
#define PASSES_ON(linkage, type, name, first_type, next_one, function, arguments) \
	linkage __attribute__((naked)) type name(first_type first, ...) \
	{ \
		__asm__("pushq %%rbp\n\tmovq %%rsp, %%rbp\n\t" \
			"pushq %%rdi\n\tpushq %%rsi\n\tpushq %%rdx\n\tpushq %%rcx\n\t" \
			"pushq %%r8\n\tpushq %%r9\n\tcall " #function "\n\t" \
			"popq %%r9\n\tpopq %%r8\n\tpopq %%rcx\n\tpopq %%rdx\n\tpopq %%rsi\n\t" \
			"popq %%rdi\n\tpopq %%rbp\n\tjmp *%0" : : "m"(next_one)); \
	}

#endif
