/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* System calls without the C library, so that the program's errno is unchanged. */
#ifndef TRACELLOC_PRELOADED_KERNEL_H
#define TRACELLOC_PRELOADED_KERNEL_H

#include "processor.h"

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

#endif
