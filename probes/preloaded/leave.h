/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/*
 * Handing over to probes, between one allocator call and the next. A thread requests it (`leave`)
 * and waits if the process's reports would become incomplete or impossible; the profiler may
 * request it, too. Either sets `leaving`, and no thread begins a call any more. The profiler waits
 * until no thread is in a call, takes all reported events, attaches its probes and clears `holder`,
 * so that all threads continue. The calls of a signal handler that interrupts a call belong to
 * that call. No thread waits for longer than `max_stall`.
 *
 * A thread that begins a call writes `inside` of its ring before it reads `leaving`; the profiler
 * writes `leaving`, makes all threads pass a memory barrier, and reads `inside`: one of both sees
 * the other.
 */
#ifndef TRACELLOC_PRELOADED_LEAVE_H
#define TRACELLOC_PRELOADED_LEAVE_H

#include "report.h"

static inline void note_in_ring(struct preload_ring *ring, int is_inside)
{
	if (likely(ring != ring_at(0)))
		store_release(&ring->inside, is_inside);
	else
		__atomic_fetch_add(&ring->inside, is_inside ? 1 : -1, __ATOMIC_SEQ_CST);
}

/* Requests probes, since the library's reports are about to become incomplete. Waits for them. */
static __attribute__((noinline)) void leave(u32 why)
{
	struct preload_control *control = guard.control;
	u64 begun = ticks();

	if (!control)
		return;
	control->why_not = why;
	if (!is_wanted(control))
		return;
	__atomic_store_n(&control->leaving, 1, __ATOMIC_SEQ_CST);
	/* A signal handler that interrupted a call must not wait: that call would never end. */
	for (u32 tries = 0; !me.inside && is_wanted(control) && may_wait(control, tries, begun);)
		tries++;
	/* The clock can't be read any more, so nothing can be stamped. */
	if (why == PRELOAD_NO_CLOCK)
		__atomic_store_n(&control->holder, 0, __ATOMIC_SEQ_CST);
}

static inline int is_leaving(const struct preload_control *control)
{
	return *(volatile u32 *)&control->leaving && is_wanted(control);
}

/* Waits before a call begins while probes are being attached. Signal handlers may run here. */
static __attribute__((noinline)) void wait_outside(struct preload_control *control)
{
	u64 begun = ticks();
	int waits = 1;

	do {
		note_in_ring(me.noted, 0);
		note_inside(-1);
		for (u32 tries = 0; waits && is_leaving(control); tries++)
			waits = may_wait(control, tries, begun);
		note_inside(1);
		note_in_ring(me.noted, 1);
	} while (waits && is_leaving(control));
}

/*
 * Whether the call that seems to contain this one has ended without returning, by an exception or
 * longjmp(3): its stack was deeper.
 */
static inline int is_left(u64 frame)
{
	return frame >= me.outermost && me.outermost >= me.low && frame < me.high;
}

/* Marks that a call is under way that may be reported; `frame` is the frame of its function. */
static inline void note_call(struct preload_control *control, const u64 *frame)
{
	if (unlikely(me.inside != 1) && is_left((u64)frame))
		me.inside = 1;
	if (unlikely(me.inside != 1))
		return;
	me.outermost = (u64)frame;
	if (unlikely(me.noted != NULL))
		note_in_ring(me.noted, 0); /* of the call that was left */
	if (unlikely(!me.ring || !guard.area) && !take_ring()) {
		if (!guard.area) {
			note_inside(-1);
			leave(PRELOAD_NO_ROOM);
			note_inside(1);
		}
		return;
	}
	me.noted = me.ring;
	note_in_ring(me.noted, 1);
	if (unlikely(*(volatile u32 *)&control->leaving))
		wait_outside(control);
}

/* Begins a call. With sampling, only a call that makes a sampled block is marked (RESIZER). */
static inline void begin_call(const u64 *frame)
{
	struct preload_control *control = guard.control;

	note_inside(1);
	if (likely(control) && !control->samples && likely(is_wanted(control)))
		note_call(control, frame);
}

/* Marks the current call, which makes a sampled block. Returns whether to report it. */
static __attribute__((noinline)) int begin_sample(const u64 *frame)
{
	struct preload_control *control = guard.control;

	if (control && is_wanted(control))
		note_call(control, frame);
	return is_wanted(control);
}

static inline void end_call(void)
{
	if (me.noted && me.inside == 1) {
		note_in_ring(me.noted, 0);
		me.noted = NULL;
	}
	/* 0 if a call inside this one was taken for the only one. */
	if (likely(me.inside))
		note_inside(-1);
}

static __attribute__((noinline)) void begin_rare_call(const u64 *frame)
{
	begin_call(frame);
}

static __attribute__((noinline)) void end_rare_call(void)
{
	end_call();
}

#endif
