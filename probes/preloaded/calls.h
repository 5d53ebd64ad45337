/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* Traced allocator calls: which calls count, and the events that they report. */
#ifndef TRACELLOC_PRELOADED_CALLS_H
#define TRACELLOC_PRELOADED_CALLS_H

#include "leave.h"
#include "next.h"
#include "otel.h"
#include "report.h"
#include "sample.h"
#include "walk.h"

/*
 * Whether a call made now, whose return address is at `at`, is inside the one that has its own
 * at `outer`: the stack has grown since. (A call that longjmp has left lies at the same depth or
 * above; if it does not, the next one outside it sets this right.)
 */
static inline int is_inside(u64 at, u64 outer)
{
	return outer && at < outer;
}

static inline int is_sampling(const struct preload_control *control)
{
	return control && control->samples;
}

/* Whether a block of this size, that is about to be allocated, is not to be reported. */
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

/* A block is about to be freed, for now or for good. Whether that was reported. */
static int report(u32 kind, u64 address)
{
	const struct preload_control *control = guard.control;

	if (!control || (control->samples && !take_sampled(address)) || !begin_report(kind))
		return 0;
	emit(kind, address, 0, 0);
	end_report();
	return 1;
}

/* A resize failed: its block stays live. */
static void restore(u64 address)
{
	const struct preload_control *control = guard.control;

	if (!control || (control->samples && !note_sampled(address)) || !begin_report(EVENT_RESTORE))
		return;
	emit(EVENT_RESTORE, address, 0, 0);
	end_report();
}

/*
 * A function that resizes a block, NULL: it allocates. `frame` is its own, above which its return
 * address is. Its result is NULL where the block lives on, and where it was freed for no bytes.
 */
#define RESIZER(frame, block, bytes, invoke) \
	({ \
		u64 at = (u64)((frame) + 1); \
		void *moved; \
		if (is_inside(at, me.call)) { \
			moved = invoke; \
		} else { \
			int wanted = is_wanted(guard.control), hidden, taken; \
			u64 asked = bytes; \
\
			if (block && unlikely(!otel_is_idle())) \
				otel_note_free((u64)block); \
			hidden = wanted && is_hidden(asked); \
			if (wanted && !hidden && unlikely(is_sampling(guard.control))) \
				wanted = begin_sample(frame); \
			/* What happens inside, a free as well, is part of this. */ \
			me.call = at; \
			taken = wanted && block && report(EVENT_REALLOC_FREE, (u64)block); \
			moved = invoke; \
			me.call = 0; \
			if (moved && !wanted) \
				otel_note_alloc((u64)moved, asked); \
			else if (moved && !hidden) \
				report_block(frame, (u64)moved, asked); \
			else if (!moved && taken && asked) \
				restore((u64)block); \
		} \
		moved; \
	})

#define ALLOCATOR(frame, size, invoke) RESIZER(frame, NULL, size, invoke)

static __attribute__((noinline)) void *traced_malloc(size_t size, const u64 *frame)
{
	return ALLOCATOR(frame, size, next.malloc(size));
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
	return is_array ? next.reallocarray(block, n, size) : next.realloc(block, size);
}

static __attribute__((noinline)) void *traced_realloc(void *block, size_t n, size_t size,
						      int is_array, const u64 *frame)
{
	u64 bytes;

	/* As for the probes: what overflows can't succeed, and is not a resize to nothing. */
	if (__builtin_mul_overflow(n, size, &bytes))
		bytes = -1UL;
	return RESIZER(frame, block, bytes, resize(block, n, size, is_array));
}

/* A function that frees, with up to two arguments more. */
typedef void (*releasing)(void *, u64, u64);

static __attribute__((noinline)) void traced_free(releasing function, void *block, u64 a, u64 b,
						  const u64 *frame)
{
	u64 at = (u64)(frame + 1), outer = me.freeing, outer_freed = me.freed;

	if (!block || is_inside(at, me.call)) {
		function(block, a, b);
		return;
	}
	if (unlikely(!otel_is_idle()))
		otel_note_free((u64)block);
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

#define FRAME ((const u64 *)__builtin_frame_address(0))
#define IS_IDLE likely(!is_wanted(guard.control) && otel_is_idle())
/* A call that is no jump: the frame stays. */
#define TRACED_BETWEEN(begin, call, end) \
	({ \
		begin(FRAME); \
		__typeof__(call) traced_result = call; \
		end(); \
		traced_result; \
	})
#define TRACED(call) TRACED_BETWEEN(begin_call, call, end_call)
/* Smaller, and slower by a nanosecond or two. */
#define TRACED_RARELY(call) TRACED_BETWEEN(begin_rare_call, call, end_rare_call)

#endif
