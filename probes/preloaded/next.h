/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/*
 * The next definitions of the functions that this library defines: those that the program would call
 * without it. A preloaded library finds them itself (search.h), for an injected one the profiler does
 * (injected.c).
 */
#ifndef TRACELLOC_PRELOADED_NEXT_H
#define TRACELLOC_PRELOADED_NEXT_H

#include "area.h"
#include "base.h"
#include "kernel.h"

EXPORT void *malloc(size_t);
EXPORT void free(void *);
EXPORT void *calloc(size_t, size_t);
EXPORT void *realloc(void *, size_t);
EXPORT void *reallocarray(void *, size_t, size_t);
EXPORT int posix_memalign(void **, size_t, size_t);
EXPORT void *aligned_alloc(size_t, size_t);
EXPORT void *memalign(size_t, size_t);
EXPORT void *valloc(size_t);
EXPORT void *pvalloc(size_t);
EXPORT int fork(void);
EXPORT int _Fork(void);
EXPORT int execve(const char *, char *const *, char *const *);
EXPORT int execvpe(const char *, char *const *, char *const *);
EXPORT int fexecve(int, char *const *, char *const *);

/* The next definitions. */
struct next {
	void *(*malloc)(size_t);
	void (*free)(void *);
	void *(*calloc)(size_t, size_t);
	void *(*realloc)(void *, size_t);
	void *(*reallocarray)(void *, size_t, size_t);
	int (*posix_memalign)(void **, size_t, size_t);
	void *(*aligned_alloc)(size_t, size_t);
	void *(*memalign)(size_t, size_t);
	void *(*valloc)(size_t);
	void *(*pvalloc)(size_t);
	int (*fork)(void);
	int (*_Fork)(void);
	int (*execve)(const char *, char *const *, char *const *);
	int (*execvpe)(const char *, char *const *, char *const *);
	int (*fexecve)(int, char *const *, char *const *);
	long (*syscall)(long, ...);
	int (*prctl)(int, ...);
};
#ifdef PRELOAD_INJECTED
static struct next next;
#else
static void *boot_malloc(size_t);
static void boot_free(void *);
static void *boot_calloc(size_t, size_t);
static void *boot_realloc(void *, size_t);
static void *boot_reallocarray(void *, size_t, size_t);
static int boot_posix_memalign(void **, size_t, size_t);
static void *boot_aligned_alloc(size_t, size_t);
static void *boot_memalign(size_t, size_t);
static void *boot_valloc(size_t);
static void *boot_pvalloc(size_t);
static int boot_fork(void);
static int boot__Fork(void);
static int boot_execve(const char *, char *const *, char *const *);
static int boot_execvpe(const char *, char *const *, char *const *);
static int boot_fexecve(int, char *const *, char *const *);
static long boot_syscall(long, ...);
static int boot_prctl(int, ...);
/* Finds all of them; called by the first of these functions that the program calls. */
static void begin_once(void);

/* Until they are found, functions that find them first. */
static struct next next = {
	boot_malloc, boot_free, boot_calloc, boot_realloc, boot_reallocarray,
	boot_posix_memalign, boot_aligned_alloc, boot_memalign, boot_valloc, boot_pvalloc,
	boot_fork, boot__Fork, boot_execve, boot_execvpe, boot_fexecve,
	boot_syscall, boot_prctl,
};
#endif

#define FUNCTIONS 17
static const char *const names[FUNCTIONS] = {
	"malloc", "free", "calloc", "realloc", "reallocarray", "posix_memalign",
	"aligned_alloc", "memalign", "valloc", "pvalloc", "fork", "_Fork",
	"execve", "execvpe", "fexecve", "syscall", "prctl",
};

static int is_same(const char *one, const char *other)
{
	while (*one && *one == *other)
		one++, other++;
	return *one == *other;
}

/* Returns the next definition of another function; NULL if there is none. */
static void *find_one(const char *name);

#endif
