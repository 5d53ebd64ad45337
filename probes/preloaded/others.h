/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/*
 * Allocation functions that only some libraries define: C++'s operators new and delete, jemalloc's
 * mallocx and related functions, C23's sized frees. Each calls the next definition and is reported
 * like malloc.
 *
 *   - A function is reported only if its next definition is in a malloc library. C++'s own operators
 *     call malloc, which is reported anyway.
 *   - A C++ library that is opened later (dlopen) brings operators for itself and its dependencies.
 *     So a C++ function that has no next definition at process start is removed from this library's
 *     symbol table: that library then finds its own operators, as it would without this library. (No
 *     C program calls the operators that it was linked with as weak symbols: libitm has such, for
 *     C++ programs.)
 *   - jemalloc's functions stay in the symbol table, because programs that test for them (weak
 *     symbols) may call them at any time. If there is no next definition even then, they do what
 *     malloc does.
 *   - An exception may leave operator new. Code that throws calls __cxa_allocate_exception first
 *     (Itanium C++ ABI: Exception Handling, 2.4.2), so the operator's call ends there. The memory of
 *     the exception itself, which is freed later, does not belong to that call.
 *
 * Functions with fewer arguments get additional ones in registers, which they ignore (System V ABI,
 * 3.2.3).
 */
#ifndef TRACELLOC_PRELOADED_OTHERS_H
#define TRACELLOC_PRELOADED_OTHERS_H

#include "calls.h"
#include "search.h"

typedef u64 (*other_function)(u64, u64, u64, u64);

/* (name, kind) of each; first the functions that may be removed from the symbol table. */
#define OTHERS(each) \
	each(_Znwm, OPERATOR) \
	each(_Znam, OPERATOR) \
	each(_ZnwmRKSt9nothrow_t, OPERATOR) \
	each(_ZnamRKSt9nothrow_t, OPERATOR) \
	each(_ZnwmSt11align_val_t, OPERATOR) \
	each(_ZnamSt11align_val_t, OPERATOR) \
	each(_ZnwmSt11align_val_tRKSt9nothrow_t, OPERATOR) \
	each(_ZnamSt11align_val_tRKSt9nothrow_t, OPERATOR) \
	each(_ZdlPv, RELEASE) \
	each(_ZdaPv, RELEASE) \
	each(_ZdlPvm, RELEASE) \
	each(_ZdaPvm, RELEASE) \
	each(_ZdlPvRKSt9nothrow_t, RELEASE) \
	each(_ZdaPvRKSt9nothrow_t, RELEASE) \
	each(_ZdlPvSt11align_val_t, RELEASE) \
	each(_ZdaPvSt11align_val_t, RELEASE) \
	each(_ZdlPvmSt11align_val_t, RELEASE) \
	each(_ZdaPvmSt11align_val_t, RELEASE) \
	each(_ZdlPvSt11align_val_tRKSt9nothrow_t, RELEASE) \
	each(_ZdaPvSt11align_val_tRKSt9nothrow_t, RELEASE) \
	each(__cxa_allocate_exception, EXCEPTION) \
	each(mallocx, MALLOCX) \
	each(rallocx, RALLOCX) \
	each(xallocx, XALLOCX) \
	each(dallocx, RELEASE) \
	each(sdallocx, RELEASE) \
	each(free_sized, RELEASE) \
	each(free_aligned_sized, RELEASE) \
	each(cfree, RELEASE)

#define NUMBERED(name, kind) OTHER_##name,
enum other { OTHERS(NUMBERED) N_OTHERS, N_HIDDEN = OTHER_mallocx };

#define NAMED(name, kind) #name,
static const char *const other_names[N_OTHERS] = { OTHERS(NAMED) };

static u64 call_unknown(enum other n, u64 a, u64 b, u64 c, u64 d);

/* Targets until the next definitions are found, and if there are none. */
#define UNKNOWN(name, kind) \
	static u64 unknown_##name(u64 a, u64 b, u64 c, u64 d) \
	{ \
		return call_unknown(OTHER_##name, a, b, c, d); \
	}
OTHERS(UNKNOWN)

#define UNKNOWN_OF(name, kind) unknown_##name,
static const other_function unknown[N_OTHERS] = { OTHERS(UNKNOWN_OF) };
static other_function others[N_OTHERS] = { OTHERS(UNKNOWN_OF) };
/* By function: whether its next definition is in a malloc library. */
static u8 reports[N_OTHERS];

static __attribute__((noinline)) void *traced_new(other_function function, u64 size, u64 a, u64 b,
						  const u64 *frame)
{
	u32 outer = me.throws;
	void *block;

	begin_rare_call(frame);
	block = ALLOCATOR(frame, size, ({
		me.throws = 1;
		void *made = (void *)function(size, a, b, 0);
		/* An exception was thrown and caught inside: the call continues. */
		if (unlikely(!me.throws))
			begin_rare_call(frame);
		me.throws = outer;
		made;
	}));
	end_rare_call();
	return block;
}

static __attribute__((noinline)) void traced_release(other_function function, void *block, u64 a,
						     u64 b, const u64 *frame)
{
	begin_call(frame);
	traced_free((releasing)(void *)function, block, a, b, frame);
	end_call();
}

static __attribute__((noinline)) void *traced_mallocx(u64 size, u64 flags, const u64 *frame)
{
	return ALLOCATOR(frame, size, (void *)others[OTHER_mallocx](size, flags, 0, 0));
}

static __attribute__((noinline)) u64 traced_rallocx(u64 block, u64 size, u64 flags,
						    const u64 *frame)
{
	return (u64)RESIZER(frame, (void *)block, size,
			    (void *)others[OTHER_rallocx](block, size, flags, 0));
}

/* Resizes in place; succeeds if the block's usable size is then large enough. */
static __attribute__((noinline)) u64 traced_xallocx(u64 block, u64 size, u64 extra, u64 flags,
						    const u64 *frame)
{
	u64 usable = 0;

	RESIZER(frame, (void *)block, size, ({
		usable = others[OTHER_xallocx](block, size, extra, flags);
		usable >= size ? (void *)block : NULL;
	}));
	return usable;
}

#define IS_PASSED_ON(name) (!reports[OTHER_##name] || IS_IDLE)

/* A call inside another one is also a tail call, because an exception may leave it. */
#define OPERATOR(name) \
	TRACES(u64, name, (u64 size, u64 a, u64 b), (size, a, b), IS_PASSED_ON(name), \
	       others[OTHER_##name](size, a, b, 0), \
	       is_inside((u64)(FRAME + 1), me.call) ? \
		       others[OTHER_##name](size, a, b, 0) : \
		       (u64)traced_new(others[OTHER_##name], size, a, b, FRAME))

#define RELEASE(name) \
	TRACES(void, name, (void *block, u64 a, u64 b), (block, a, b), IS_PASSED_ON(name), \
	       (void)others[OTHER_##name]((u64)block, a, b, 0), \
	       traced_release(others[OTHER_##name], block, a, b, FRAME))

#define MALLOCX(name) \
	TRACES(u64, name, (u64 size, u64 flags), (size, flags), IS_PASSED_ON(name), \
	       others[OTHER_##name](size, flags, 0, 0), \
	       TRACED_RARELY((u64)traced_mallocx(size, flags, FRAME)))

#define RALLOCX(name) \
	TRACES(u64, name, (u64 block, u64 size, u64 flags), (block, size, flags), \
	       IS_PASSED_ON(name), others[OTHER_##name](block, size, flags, 0), \
	       TRACED_RARELY(traced_rallocx(block, size, flags, FRAME)))

#define XALLOCX(name) \
	TRACES(u64, name, (u64 block, u64 size, u64 extra, u64 flags), \
	       (block, size, extra, flags), IS_PASSED_ON(name), \
	       others[OTHER_##name](block, size, extra, flags), \
	       TRACED_RARELY(traced_xallocx(block, size, extra, flags, FRAME)))

#define EXCEPTION(name) \
	EXPORT u64 name(u64 size) \
	{ \
		if (unlikely(me.throws) && me.call) { \
			me.throws = 0; \
			me.call = 0; \
			end_rare_call(); \
		} \
		return others[OTHER_##name](size, 0, 0, 0); \
	}

#define DEFINED(name, kind) kind(name)
OTHERS(DEFINED)

/* Replacements for functions without a next definition that a program calls nevertheless. */

static u64 lacking_allocate(u64 size, u64 alignment, u64 b, u64 c)
{
	(void)b, (void)c;
	/* A value that is not a valid alignment is some other argument. */
	if (alignment && alignment <= PRELOAD_PAGE && !(alignment & (alignment - 1)))
		return (u64)memalign(alignment, size);
	return (u64)malloc(size);
}

static u64 lacking_mallocx(u64 size, u64 flags, u64 b, u64 c)
{
	u64 alignment = 1UL << (flags & 63);
	u8 *block;

	(void)b, (void)c;
	if (alignment <= sizeof(u64) * 2)
		return (u64)(flags & 64 ? calloc(1, size) : malloc(size));
	block = memalign(alignment, size);
	for (u64 n = 0; block && flags & 64 && n < size; n++)
		block[n] = 0;
	return (u64)block;
}

/* The old size is unknown, so the new part can't be zeroed: a request for that fails. */
static u64 lacking_rallocx(u64 block, u64 size, u64 flags, u64 c)
{
	(void)c;
	return flags & 64 || (flags & 63) > 4 ? 0 : (u64)realloc((void *)block, size);
}

static u64 lacking_xallocx(u64 block, u64 size, u64 extra, u64 flags)
{
	(void)block, (void)size, (void)extra, (void)flags;
	return 0;
}

static u64 lacking_free(u64 block, u64 a, u64 b, u64 c)
{
	(void)a, (void)b, (void)c;
	free((void *)block);
	return 0;
}

#define LACKING_OPERATOR lacking_allocate
#define LACKING_RELEASE lacking_free
#define LACKING_MALLOCX lacking_mallocx
#define LACKING_RALLOCX lacking_rallocx
#define LACKING_XALLOCX lacking_xallocx
#define LACKING_EXCEPTION lacking_xallocx
#define LACKING(name, kind) LACKING_##kind,
static const other_function lacking[N_OTHERS] = { OTHERS(LACKING) };

static void begin_once(void);

/* Looks the function up on each call: its library may have been loaded later, or unloaded. */
static __attribute__((noinline)) u64 call_unknown(enum other n, u64 a, u64 b, u64 c, u64 d)
{
	other_function function;

	begin_once();
	function = others[n];
	if (function == unknown[n])
		function = (other_function)find_one(other_names[n]);
	return (function ? function : lacking[n])(a, b, c, d);
}

/* Removes the C++ functions without a next definition from this library's symbol table. */
static int hide_lacking(struct dl_phdr_info *object, size_t size, void *argument)
{
	void **found = argument;
	const struct symbols symbols = symbols_of(object);
	u64 low = -1UL, high = 0, length = 0;
	int failed = 1;

	(void)size;
	if (!has_address(object, &next))
		return 0;
	for (u32 n = 0; n < N_HIDDEN; n++) {
		const Elf64_Sym *symbol = found[n] ? NULL : find_symbol(&symbols, other_names[n]);

		if (!symbol)
			continue;
		low = (u64)symbol < low ? (u64)symbol : low;
		high = (u64)(symbol + 1) > high ? (u64)(symbol + 1) : high;
	}
	/* The kernel rejects what is not aligned to its pages. */
	for (u64 page = PRELOAD_PAGE; failed && page <= LARGEST_PAGE; page *= 4) {
		low &= -page;
		length = high > low ? PRELOAD_CEIL(high - low) : 0;
		failed = !length || system_call(SYS_mprotect, low, length, PROT_READ | PROT_WRITE,
						0, 0, 0);
	}
	if (failed)
		return 1;
	for (u32 n = 0; n < N_HIDDEN; n++) {
		Elf64_Sym *symbol = found[n] ? NULL :
					       (Elf64_Sym *)find_symbol(&symbols, other_names[n]);

		if (symbol) {
			symbol->st_value = 0;
			symbol->st_shndx = SHN_UNDEF;
		}
	}
	system_call(SYS_mprotect, low, length, PROT_READ, 0, 0, 0);
	return 1;
}

/* Finds all next definitions. */
static void find_others(void)
{
	void *found[N_OTHERS] = {0};
	struct finding finding = {
		.names = other_names, .n = N_OTHERS, .found = found, .with_malloc = reports,
	};

	if (!dl_iterate_phdr)
		return;
	dl_iterate_phdr(look_into, &finding);
	for (u32 n = 0; n < N_OTHERS; n++)
		if (found[n])
			others[n] = (other_function)found[n];
	dl_iterate_phdr(hide_lacking, found);
}

#endif
