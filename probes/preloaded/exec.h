/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/*
 * A program that tracelloc starts must see its environment as it would be without this library.
 * tracelloc appends two entries, the mark and LD_PRELOAD, and hides the program's own LD_PRELOAD
 * by changing its first byte. The library undoes this before the program's own code runs. If the
 * process executes another program, the exec functions make the same changes again, because that
 * program is traced as well. The environment of child processes is not changed.
 */
#ifndef TRACELLOC_PRELOADED_EXEC_H
#define TRACELLOC_PRELOADED_EXEC_H

#include "base.h"
#include "kernel.h"
#include "next.h"
#include "thread.h"
#include <elf.h>

#define LAUNCH_MARK "TRACELLOC_LAUNCH=1"
#define LAUNCH_PRELOAD "LD_PRELOAD="
#define LAUNCH_HIDDEN 1

/* Longest path, longest value of LD_PRELOAD in bytes, most entries: they are built on the stack. */
#define LAUNCH_PATH_BYTES 512
#define LAUNCH_PRELOAD_BYTES 2048
#define LAUNCH_ENTRIES 512

/*
 * Number of profilers that have a probe on tracelloc_preload_ready. The kernel maintains this count
 * (a uprobe reference counter) in each process that they trace and in no other, also if a profiler
 * dies. It is in a section of the file, as the kernel finds it by its file offset.
 */
EXPORT __attribute__((section(".probes"))) volatile __u16 tracelloc_preload_awaited = 0;

extern char **environ __attribute__((weak));

/* Path of this library, if tracelloc has started the program. */
static char launch_path[LAUNCH_PATH_BYTES];

static u32 length_of(const char *text)
{
	u32 n = 0;

	while (text[n])
		n++;
	return n;
}

/* Returns the part of a text after `beginning`; NULL if the text begins otherwise. */
static const char *behind(const char *text, const char *beginning)
{
	while (*beginning && *text == *beginning)
		text++, beginning++;
	return *beginning ? NULL : text;
}

/* Appends a text at `end`. Returns the new end. */
static char *append(char *end, const char *text)
{
	while ((*end = *text++))
		end++;
	return end;
}

static void clear(char *text)
{
	while (*text)
		*text++ = 0;
}

/*
 * Restores the environment if tracelloc has changed it. Code that looks for the auxiliary vector
 * after the environment's end finds one more entry there, of type AT_IGNORE. Returns whether it has.
 */
static int restore_environment(char **entries)
{
	const char *preloads = NULL;
	u32 n = 0, bytes = 0;

	while (entries[n] && !is_same(entries[n], LAUNCH_MARK))
		n++;
	if (entries[n] && entries[n + 1] && !entries[n + 2])
		preloads = behind(entries[n + 1], LAUNCH_PRELOAD);
	if (!preloads)
		return 0;
	while (preloads[bytes] && preloads[bytes] != ':')
		bytes++;
	for (u32 at = 0; bytes < LAUNCH_PATH_BYTES && at < bytes; at++)
		launch_path[at] = preloads[at];
	clear(entries[n]);
	clear(entries[n + 1]);
	entries[n] = NULL;
	entries[n + 1] = (char *)AT_IGNORE;
	while (n--)
		if (*entries[n] == LAUNCH_HIDDEN && behind(entries[n] + 1, LAUNCH_PRELOAD + 1))
			*entries[n] = *LAUNCH_PRELOAD;
	return 1;
}

/* Bytes at the beginning of a program's file that are searched for names of needed libraries. */
#define LAUNCH_NAMES_BYTES (4UL << 20)

/*
 * Whether executing a file grants privileges: it is setuid or setgid, or has capabilities. Its
 * loader then ignores the preloaded library, so nothing would restore the environment.
 */
static int gains_rights(int file)
{
	u32 status[36]; /* struct stat */

	return system_call(SYS_fstat, file, (u64)status, 0, 0, 0, 0) ||
	       status[STATUS_MODE_AT / 4] & (MODE_SETUID | MODE_SETGID) ||
	       system_call(SYS_fgetxattr, file, (u64) "security.capability", 0, 0, 0, 0) > 0;
}

/*
 * Whether a program can preload the library: it is for this machine and has a loader, or is a
 * script. Sanitizers (libasan.so, libclang_rt.asan-x86_64.so) abort if another library precedes them.
 */
static int takes_library(int file)
{
	u64 page[PRELOAD_PAGE / 8];
	const char *text = (const char *)page;
	const Elf64_Ehdr *header = (const Elf64_Ehdr *)page;
	const Elf64_Phdr *parts;
	u64 at = 0;
	long read = system_call(SYS_pread64, file, (u64)page, sizeof(page), 0, 0, 0);
	int has_loader = 0;

	if (read > 2 && behind(text, "#!"))
		return 1;
	if (gains_rights(file))
		return 0;
	if (read < (long)sizeof(*header) || !behind(text, "\177ELF\2\1") ||
	    header->e_machine != MACHINE || header->e_phoff & 7 ||
	    header->e_phoff + header->e_phnum * sizeof(*parts) > (u64)read)
		return 0;
	parts = (const Elf64_Phdr *)(text + header->e_phoff);
	for (u32 n = 0; n < header->e_phnum; n++)
		has_loader |= parts[n].p_type == PT_INTERP;
	for (; has_loader && read > 16 && at < LAUNCH_NAMES_BYTES; at += read - 16) {
		read = system_call(SYS_pread64, file, (u64)page, sizeof(page), at, 0, 0);
		for (long n = 0; n + 12 < read; n++)
			if ((text[n] == 's' && behind(text + n, "san.so")) ||
			    (text[n] == 'l' && behind(text + n, "libclang_rt.")))
				return 0;
	}
	return has_loader;
}

/* Opens the file that execve(2) executes, or that execvp(3) finds in `paths`; negative: none. */
static long open_program(const char *name, int is_path, const char *paths)
{
	char path[LAUNCH_PATH_BYTES];
	u32 length = length_of(name);

	for (u32 n = 0; n < length; n++)
		is_path |= name[n] == '/';
	while (!is_path && paths && *paths) {
		u32 bytes = 0;

		for (; *paths && *paths != ':'; paths++)
			if (bytes + length + 2 < sizeof(path))
				path[bytes++] = *paths;
		paths += *paths == ':';
		if (bytes)
			path[bytes++] = '/';
		for (u32 n = 0; n <= length && bytes < sizeof(path); n++)
			path[bytes++] = name[n];
		if (path[bytes - 1] ||
		    system_call(SYS_faccessat, AT_FDCWD, (u64)path, ACCESS_EXECUTE, 0, 0, 0))
			continue;
		is_path = 1;
		name = path;
	}
	return is_path ? system_call(SYS_openat, AT_FDCWD, (u64)name, O_NONBLOCK | O_CLOEXEC, 0, 0, 0) : -1;
}

/* Whether a program that this process executes now should preload the library, too. */
static int is_preloaded_on(void)
{
	const struct preload_control *control = guard.control;

	return control && *launch_path && tracelloc_preload_awaited && may_call(control) &&
	       /* A child of vfork(2) has the same memory. */
	       control->pid == (u32)system_call(SYS_getpid, 0, 0, 0, 0, 0, 0) &&
	       !system_call(SYS_faccessat, AT_FDCWD, (u64)launch_path, ACCESS_READ, 0, 0, 0);
}

/* Likewise, for a program given by its path, or by a name to be searched for in PATH. */
static int is_preloaded_into(const char *name, int is_path)
{
	const char *paths = NULL;
	long file;
	int takes;

	if (!is_preloaded_on())
		return 0;
	for (char **entry = environ; entry && *entry && !paths; entry++)
		paths = behind(*entry, "PATH=");
	file = open_program(name, is_path, paths);
	if (file < 0)
		return 0;
	takes = takes_library(file);
	system_call(SYS_close, file, 0, 0, 0, 0, 0);
	return takes;
}

typedef int executor(u64 what, char *const *words, char *const *entries);

/*
 * Calls one of the C library's exec functions. `preloads`: with the environment changed as tracelloc
 * does it.
 */
static int execute(executor *function, u64 what, char *const *words, char *const *entries,
		   int preloads)
{
	const char *own = NULL;
	u32 n = 0, at = 0;

	if (!preloads)
		return function(what, words, entries);
	for (; entries && entries[n]; n++) {
		const char *value = behind(entries[n], LAUNCH_PRELOAD);

		if (value)
			own = value, at = n;
	}
	if (n > LAUNCH_ENTRIES || (own && length_of(own) > LAUNCH_PRELOAD_BYTES))
		return function(what, words, entries);

	char *all[n + 3];
	char preload[sizeof(LAUNCH_PRELOAD) + sizeof(launch_path) + LAUNCH_PRELOAD_BYTES];
	char hidden[sizeof(LAUNCH_PRELOAD) + LAUNCH_PRELOAD_BYTES];
	char *end = append(append(preload, LAUNCH_PRELOAD), launch_path);

	for (u32 i = 0; i < n; i++)
		all[i] = entries[i];
	if (own) {
		append(append(end, ":"), own);
		append(hidden, entries[at]);
		*hidden = LAUNCH_HIDDEN;
		all[at] = hidden;
	}
	all[n] = LAUNCH_MARK;
	all[n + 1] = preload;
	all[n + 2] = NULL;
	return function(what, words, all);
}

EXPORT int execve(const char *file, char *const *words, char *const *entries)
{
	return execute((executor *)next.execve, (u64)file, words, entries,
		       is_preloaded_into(file, 1));
}

EXPORT int execvpe(const char *file, char *const *words, char *const *entries)
{
	return execute((executor *)next.execvpe, (u64)file, words, entries,
		       is_preloaded_into(file, 0));
}

EXPORT int fexecve(int file, char *const *words, char *const *entries)
{
	return execute((executor *)next.fexecve, file, words, entries,
		       is_preloaded_on() && takes_library(file));
}

EXPORT int execv(const char *file, char *const *words)
{
	return execve(file, words, environ);
}

EXPORT int execvp(const char *file, char *const *words)
{
	return execvpe(file, words, environ);
}

/* Copies variadic arguments, from `first` on, into an array. */
#define GATHER(words, list, first) \
	u32 words##_count = 0; \
	{ \
		__builtin_va_list counted; \
		__builtin_va_start(counted, first); \
		for (const char *word = first; word; word = __builtin_va_arg(counted, char *)) \
			words##_count++; \
		__builtin_va_end(counted); \
	} \
	char *words[words##_count + 1]; \
	__builtin_va_list list; \
	__builtin_va_start(list, first); \
	words[0] = (char *)first; \
	for (u32 at = 1; at <= words##_count; at++) \
		words[at] = __builtin_va_arg(list, char *)

EXPORT int execl(const char *file, const char *first, ...)
{
	GATHER(words, list, first);
	__builtin_va_end(list);
	return execve(file, words, environ);
}

EXPORT int execlp(const char *file, const char *first, ...)
{
	GATHER(words, list, first);
	__builtin_va_end(list);
	return execvpe(file, words, environ);
}

EXPORT int execle(const char *file, const char *first, ...)
{
	char *const *entries;
	GATHER(words, list, first);
	entries = __builtin_va_arg(list, char *const *);
	__builtin_va_end(list);
	return execve(file, words, entries);
}

#endif
