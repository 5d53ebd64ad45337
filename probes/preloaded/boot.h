/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* Initial targets of `next`: each finds the next definitions and calls its own one. */
#ifndef TRACELLOC_PRELOADED_BOOT_H
#define TRACELLOC_PRELOADED_BOOT_H

#include "next.h"

#define BOOT(type, name, parameters, ...) \
	static type boot_##name parameters \
	{ \
		begin_once(); \
		if (next.name == boot_##name) \
			__builtin_trap(); /* no loaded library defines it */ \
		return name(__VA_ARGS__); \
	}

BOOT(void *, malloc, (size_t size), size)
BOOT(void *, calloc, (size_t n, size_t size), n, size)
BOOT(void *, realloc, (void *block, size_t size), block, size)
BOOT(void *, reallocarray, (void *block, size_t n, size_t size), block, n, size)
BOOT(int, posix_memalign, (void **out, size_t alignment, size_t size), out, alignment, size)
BOOT(void *, aligned_alloc, (size_t alignment, size_t size), alignment, size)
BOOT(void *, memalign, (size_t alignment, size_t size), alignment, size)
BOOT(void *, valloc, (size_t size), size)
BOOT(void *, pvalloc, (size_t size), size)
BOOT(void, free, (void *block), block)
BOOT(int, fork, (void))
BOOT(int, _Fork, (void))
BOOT(int, execve, (const char *file, char *const *words, char *const *entries), file, words, entries)
BOOT(int, execvpe, (const char *file, char *const *words, char *const *entries), file, words, entries)
BOOT(int, fexecve, (int file, char *const *words, char *const *entries), file, words, entries)

PASSES_ON(static, long, boot_syscall, long, next.syscall, begin_once, ())
PASSES_ON(static, int, boot_prctl, int, next.prctl, begin_once, ())

#endif
