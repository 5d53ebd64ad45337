/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* Short names of types, and attributes. */
#ifndef TRACELLOC_PRELOADED_BASE_H
#define TRACELLOC_PRELOADED_BASE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
/* Loops stay loops: there is no memcpy(3) here. (clang's do without a C library.) */
#ifndef __clang__
#pragma GCC optimize("no-tree-loop-distribute-patterns")
#endif

#include <linux/types.h>
#include <stddef.h>

typedef __u64 u64;
typedef __u32 u32;
typedef __u8 u8;

#define EXPORT __attribute__((visibility("default")))
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

#endif
