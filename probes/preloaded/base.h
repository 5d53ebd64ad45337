/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* Short names of types, and attributes. x86-64 only. */
#ifndef TRACELLOC_PRELOADED_BASE_H
#define TRACELLOC_PRELOADED_BASE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <linux/types.h>
#include <stddef.h>

typedef __u64 u64;
typedef __u32 u32;
typedef __u8 u8;

#ifndef __x86_64__
#error "only x86-64"
#endif

#define EXPORT __attribute__((visibility("default")))
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

#endif
