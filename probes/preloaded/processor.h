/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* What differs between processors. */
#ifndef TRACELLOC_PRELOADED_PROCESSOR_H
#define TRACELLOC_PRELOADED_PROCESSOR_H

#if defined(__x86_64__)
#include "x86_64.h"
#elif defined(__aarch64__)
#include "aarch64.h"
#else
#error "only x86-64 and 64-bit Arm"
#endif

#endif
