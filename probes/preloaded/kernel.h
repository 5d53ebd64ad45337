/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* System calls without the C library, so that the program's errno is unchanged. x86-64 numbers. */
#ifndef TRACELLOC_PRELOADED_KERNEL_H
#define TRACELLOC_PRELOADED_KERNEL_H

#include "base.h"

#define SYS_read 0
#define SYS_open 2
#define SYS_mmap 9
#define SYS_mprotect 10
#define SYS_munmap 11
#define SYS_close 3
#define SYS_fstat 5
#define SYS_rt_sigprocmask 14
#define SYS_pread64 17
#define SYS_access 21
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
#define SYS_prlimit64 302
#define SYS_process_vm_readv 310
#define SYS_seccomp 317
#define SYS_memfd_create 319
#define SYS_membarrier 324

#define PROT_NONE 0
#define PROT_READ 1
#define PROT_WRITE 2
#define MAP_SHARED 1
#define MAP_PRIVATE 2
#define MAP_FIXED 0x10
#define MAP_ANONYMOUS 0x20
#define MAP_NORESERVE 0x4000
#define MREMAP_MAYMOVE 1
#define MREMAP_FIXED 2
#define MADV_DONTFORK 10
#define MADV_DONTDUMP 16
#define MADV_WIPEONFORK 18
#define MFD_CLOEXEC 1
#define MFD_ALLOW_SEALING 2
#define F_ADD_SEALS 1033
#define F_DUPFD_CLOEXEC 1030
#define F_SEAL_SEAL 1
#define F_SEAL_SHRINK 2
#define F_SEAL_GROW 4
#define RLIMIT_FSIZE 1
#define RLIMIT_AS 9
#define RLIM_INFINITY (~0UL)
#define AT_FDCWD -100L
#define MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED 4
#define FUTEX_TID_MASK 0x3fffffff
#define MODE_SETUID 04000  /* S_ISUID */
#define MODE_SETGID 02000  /* S_ISGID */
#define ACCESS_READ 4    /* R_OK */
#define ACCESS_EXECUTE 1 /* X_OK */
#define O_NONBLOCK 04000
#define O_CLOEXEC 02000000
#define ESRCH 3
#define EFAULT 14

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

#endif
