/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/*
 * 64-bit Arm: what the library knows of the processor. x86_64.h has the same for x86-64.
 *
 * Other processors may see writes, and do reads, in any order that nothing forbids. So whatever
 * another side reads is written by a release, or read by an acquire, which x86-64 does anyway.
 */
#ifndef TRACELLOC_PRELOADED_AARCH64_H
#define TRACELLOC_PRELOADED_AARCH64_H

#include "base.h"

/* Without calls of the compiler's own library, which is not there (clang: -mno-outline-atomics). */
#ifndef __clang__
#pragma GCC target("no-outline-atomics")
#endif

#define MACHINE EM_AARCH64
#define STEP_HEADER "step_aarch64.h"
/* Whether a register may have the return address. */
#define HAS_LINK 1
/* Bits of user addresses. Higher ones are mapped only on request. */
#define ADDRESS_BITS 48
/* The uppermost byte is ignored, or a tag of memory: a resize in place may change that. */
#define BLOCK_ADDRESS(pointer) ((pointer) & ~(0xffULL << 56))
/* As in the probes' aarch64.h. */
#define REGION_KEY(address) ((address) >> PRELOAD_REGION_SHIFT << 2 | 1)
/* Kernels have pages of 4, 16 or 64 KiB. */
#define LARGEST_PAGE 65536
#define STATUS_MODE_AT 16

#define SYS_fgetxattr 10
#define SYS_fcntl 25
#define SYS_ftruncate 46
#define SYS_faccessat 48
#define SYS_openat 56
#define SYS_close 57
#define SYS_read 63
#define SYS_pread64 67
#define SYS_fstat 80
#define SYS_nanosleep 101
#define SYS_tgkill 131
#define SYS_rt_sigprocmask 135
#define SYS_prctl 167
#define SYS_getpid 172
#define SYS_gettid 178
#define SYS_munmap 215
#define SYS_mremap 216
#define SYS_mmap 222
#define SYS_mprotect 226
#define SYS_madvise 233
#define SYS_prlimit64 261
#define SYS_process_vm_readv 270
#define SYS_seccomp 277
#define SYS_memfd_create 279
#define SYS_membarrier 283

static inline long system_call(long number, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f)
{
	register u64 x8 __asm__("x8") = number;
	register u64 x0 __asm__("x0") = a;
	register u64 x1 __asm__("x1") = b;
	register u64 x2 __asm__("x2") = c;
	register u64 x3 __asm__("x3") = d;
	register u64 x4 __asm__("x4") = e;
	register u64 x5 __asm__("x5") = f;

	__asm__ volatile("svc #0"
			 : "+r"(x0)
			 : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
			 : "memory");
	return x0;
}

#define load_acquire(place) __atomic_load_n((place), __ATOMIC_ACQUIRE)
#define store_release(place, value) __atomic_store_n((place), (value), __ATOMIC_RELEASE)

/* The virtual counter: of 24 MHz and more, so others may see the same number. */
static inline u64 ticks(void)
{
	u64 count;

	__asm__ volatile("isb\n\tmrs %0, cntvct_el0" : "=r"(count) : : "memory");
	return count;
}

static inline u64 ticks_in_order(void)
{
	return ticks();
}

static inline void pause_briefly(void)
{
	__asm__ volatile("yield" : : : "memory");
}

/* A handler that interrupts this has undone its own addition when it returns. */
#define ADD_HERE(place, by) \
	do { \
		*(volatile u32 *)&(place) += (by); \
		__asm__ volatile("" : : : "memory"); \
	} while (0)

/* A handler that interrupts this makes it begin again: the processor then forgets that it has read. */
static inline u64 take_number(u64 *place)
{
	return __atomic_fetch_add(place, 1, __ATOMIC_RELAXED);
}

static inline void copy_words(u64 *to, const u64 *from, u64 n)
{
	for (u64 at = 0; at < n; at++)
		to[at] = *(const volatile u64 *)&from[at];
}

/* The address behind the C library's record of this thread. */
static inline u64 thread_pointer(void)
{
	u64 address;

	__asm__("mrs %0, tpidr_el0" : "=r"(address));
	return address;
}

static inline u64 stack_pointer(void)
{
	u64 sp;

	__asm__ volatile("mov %0, sp" : "=r"(sp));
	return sp;
}

static inline __attribute__((always_inline)) void save_registers(u64 *registers)
{
	u64 word;

	__asm__ volatile("adr %0, 0f\n0:\n\tstr %0, [%1]\n\tmov %0, sp\n\tstp %0, x29, [%1, #8]\n\t"
			 "stp x19, x20, [%1, #24]\n\tstp x21, x22, [%1, #40]\n\t"
			 "stp x23, x24, [%1, #56]\n\tstp x25, x26, [%1, #72]\n\t"
			 "stp x27, x28, [%1, #88]"
			 : "=&r"(word) : "r"(registers) : "memory");
}

/* The address in a saved return address, without the code that may authenticate it. */
static inline u64 code_address(u64 word)
{
	register u64 x30 __asm__("x30") = word;

	__asm__("hint #7" /* xpaclri; older processors do nothing */ : "+r"(x30));
	return x30;
}

/*
 * The compiler's frames may have other registers above the frame pointer and the return address. So
 * what is traced is done by a function of its own, whose caller has a frame of nothing else.
 */
#define TRACES(type, name, parameters, arguments, is_idle, idle, traced) \
	static __attribute__((used, noinline)) type entered_##name parameters \
	{ \
		return traced; \
	} \
	__asm__(".pushsection .text\n\t.p2align 4\n\t.type framed_" #name ", %function\n" \
		"framed_" #name ":\n\t.cfi_startproc\n\tstp x29, x30, [sp, #-16]!\n\t" \
		".cfi_def_cfa_offset 16\n\t.cfi_offset 29, -16\n\t.cfi_offset 30, -8\n\t" \
		"mov x29, sp\n\tbl entered_" #name "\n\tldp x29, x30, [sp], #16\n\t" \
		".cfi_restore 30\n\t.cfi_restore 29\n\t.cfi_def_cfa_offset 0\n\tret\n\t" \
		".cfi_endproc\n\t.size framed_" #name ", . - framed_" #name "\n\t.popsection"); \
	__attribute__((visibility("hidden"))) extern type framed_##name parameters; \
	EXPORT type name parameters \
	{ \
		return is_idle ? idle : framed_##name arguments; \
	}
#define FRAME ((const u64 *)__builtin_frame_address(1))

#define RETURNS_FROM_SIGNAL(name) \
	__asm__(".pushsection .text\n\t.p2align 2\n\t.type " #name ", %function\n" #name ":\n\t" \
		"mov x8, #139\n\tsvc #0\n\t.size " #name ", . - " #name "\n\t.popsection"); \
	__attribute__((visibility("hidden"))) extern void name(void);

/* Up to eight arguments are in registers: those of prctl(2) and syscall(2) all are. */
#define PASSES_ON(linkage, type, name, first_type, next_one, function, arguments) \
	linkage type name(first_type first, ...) \
	{ \
		__builtin_va_list list; \
		u64 rest[6]; \
\
		__builtin_va_start(list, first); \
		for (u32 n = 0; n < 6; n++) \
			rest[n] = __builtin_va_arg(list, u64); \
		__builtin_va_end(list); \
		function arguments; \
		return next_one(first, rest[0], rest[1], rest[2], rest[3], rest[4], rest[5]); \
	}

#endif
