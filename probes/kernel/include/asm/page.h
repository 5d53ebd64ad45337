/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* The page size that ring buffer sizes are multiples of; given by user space. */
#ifndef TRACELLOC_ASM_PAGE_H
#define TRACELLOC_ASM_PAGE_H
#ifndef PAGE_SIZE
#define PAGE_SIZE 4096
#endif
#endif
