/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* Traced allocator calls: which ones are reported, and as which events. */
#ifndef TRACELLOC_PRELOADED_CALLS_H
#define TRACELLOC_PRELOADED_CALLS_H

#include "leave.h"
#include "next.h"
#include "report.h"
#include "sample.h"
#include "walk.h"

/*
 * Whether the current call is made inside another one. `at` and `outer` are the addresses of their
 * return addresses; inside, the stack has grown. If longjmp(3) has left the outer call, this call is
 * normally at the same depth or above; otherwise the next call above it corrects the state.
 */
static inline int is_inside(u64 at, u64 outer)
{
	return outer && at < outer;
}

static inline int is_sampling(const struct preload_control *control)
{
	return control && control->samples;
}

/* Whether a block of this size, about to be allocated, is not reported. */
static inline int is_hidden(u64 size)
{
	const struct preload_control *control = guard.control;

	return !control || size < control->min_size || size > control->max_size ||
	       (control->samples && !is_sampled(size));
}

static void report_block(const u64 *frame, u64 address, u64 size)
{
	struct preload_control *control = guard.control;
	u64 stack_id;

	if (!control || !begin_report(EVENT_ALLOC))
		return;
	if (control->samples && !note_sampled(address)) {
		end_report();
		return;
	}
	stack_id = capture_stack(control, me.ring, frame);
	emit(EVENT_ALLOC, address, size, stack_id);
	end_report();
}

/* Reports that a block is about to be freed or resized. Returns whether that was reported. */
static int report(u32 kind, u64 address)
{
	const struct preload_control *control = guard.control;

	if (!control || !control->max_size || (control->samples && !take_sampled(address)) ||
	    !begin_report(kind))
		return 0;
	emit(kind, address, 0, 0);
	end_report();
	return 1;
}

/* Reports that a resize failed, so its block stays live. */
static void restore(u64 address)
{
	const struct preload_control *control = guard.control;

	if (!control || (control->samples && !note_sampled(address)) || !begin_report(EVENT_RESTORE))
		return;
	emit(EVENT_RESTORE, address, 0, 0);
	end_report();
}

/*
 * Calls a function that resizes `block`, or allocates one if that is NULL. `frame` is the frame of
 * the traced function; its return address is above. The result is NULL if the block stays live, or
 * if it was freed because no bytes were requested.
 */
#define RESIZER(frame, block, bytes, invoke) \
	({ \
		u64 at = (u64)((frame) + 1); \
		void *moved; \
		if (is_inside(at, me.call)) { \
			moved = invoke; \
		} else { \
			int wanted = is_wanted(guard.control), taken; \
			u64 asked = bytes; \
			int hidden = wanted && is_hidden(asked); \
\
			if (wanted && !hidden && unlikely(is_sampling(guard.control))) \
				wanted = begin_sample(frame); \
			/* Calls made inside, including frees, are part of this one. */ \
			me.call = at; \
			taken = wanted && block && report(EVENT_REALLOC_FREE, (u64)block); \
			moved = invoke; \
			me.call = 0; \
			if (moved && wanted && !hidden) \
				report_block(frame, (u64)moved, asked); \
			else if (!moved && taken && asked) \
				restore((u64)block); \
		} \
		moved; \
	})

#define ALLOCATOR(frame, size, invoke) RESIZER(frame, NULL, size, invoke)

/* Whether new memory is to have no remains of pointers, for a search for leaks. */
static inline int must_clear(void)
{
	const struct preload_control *control = guard.control;

	return control && control->clears;
}

static __attribute__((noinline)) void *traced_malloc(size_t size, const u64 *frame)
{
	return ALLOCATOR(frame, size, must_clear() ? next.calloc(1, size) : next.malloc(size));
}

static __attribute__((noinline)) void *traced_calloc(size_t n, size_t size, const u64 *frame)
{
	return ALLOCATOR(frame, n * size, next.calloc(n, size));
}

static __attribute__((noinline)) void *traced_memalign(void *(*function)(size_t, size_t),
						       size_t alignment, size_t size,
						       const u64 *frame)
{
	return ALLOCATOR(frame, size, function(alignment, size));
}

static __attribute__((noinline)) void *traced_valloc(void *(*function)(size_t), size_t size,
						     const u64 *frame)
{
	return ALLOCATOR(frame, size, function(size));
}

static __attribute__((noinline)) int traced_posix_memalign(void **out, size_t alignment,
							   size_t size, const u64 *frame)
{
	int result = 0;

	ALLOCATOR(frame, size, ({
			  result = next.posix_memalign(out, alignment, size);
			  result ? NULL : *out;
		  }));
	return result;
}

static void *resize(void *block, size_t n, size_t size, int is_array)
{
	if (!block && must_clear()) /* as malloc(3) */
		return next.calloc(n, size);
	return is_array ? next.reallocarray(block, n, size) : next.realloc(block, size);
}

static __attribute__((noinline)) void *traced_realloc(void *block, size_t n, size_t size,
						      int is_array, const u64 *frame)
{
	u64 bytes;

	/* As in the probes: a product that overflows must fail, and is not a resize to 0 bytes. */
	if (__builtin_mul_overflow(n, size, &bytes))
		bytes = -1UL;
	return RESIZER(frame, block, bytes, resize(block, n, size, is_array));
}

/* A function that frees a block, with up to two more arguments. */
typedef void (*releasing)(void *, u64, u64);

static __attribute__((noinline)) void traced_free(releasing function, void *block, u64 a, u64 b,
						  const u64 *frame)
{
	u64 at = (u64)(frame + 1), outer = me.freeing, outer_freed = me.freed;

	if (!block || is_inside(at, me.call)) {
		function(block, a, b);
		return;
	}
	if (!is_wanted(guard.control)) {
		function(block, a, b);
		return;
	}
	if (!is_inside(at, outer)) {
		outer = outer_freed = 0;
		report(EVENT_FREE, (u64)block);
	} else if ((u64)block != outer_freed) {
		report(EVENT_INNER_FREE, (u64)block);
	}
	me.freeing = at;
	me.freed = (u64)block;
	function(block, a, b);
	me.freeing = outer;
	me.freed = outer_freed;
}

#define IS_IDLE likely(!is_wanted(guard.control))
/* Makes an ordinary call, not a tail call, so that the frame stays. */
#define TRACED_BETWEEN(begin, call, end) \
	({ \
		begin(FRAME); \
		__typeof__(call) traced_result = call; \
		end(); \
		traced_result; \
	})
#define TRACED(call) TRACED_BETWEEN(begin_call, call, end_call)
/* Smaller code, one or two nanoseconds slower. */
#define TRACED_RARELY(call) TRACED_BETWEEN(begin_rare_call, call, end_rare_call)

#endif
