/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* Ring buffers must be a power of two of pages; user space passes one already. */
#ifndef TRACELLOC_LINUX_LOG2_H
#define TRACELLOC_LINUX_LOG2_H
#define roundup_pow_of_two(n) (n)
#endif
