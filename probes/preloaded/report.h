/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* Event reporting: a thread takes a ring, waits for a free slot, and writes the event there. */
#ifndef TRACELLOC_PRELOADED_REPORT_H
#define TRACELLOC_PRELOADED_REPORT_H

#include "stack.h"
#include "thread.h"

static struct preload_ring *ring_at(u32 number)
{
	return (struct preload_ring *)(guard.area + PRELOAD_AT_RINGS + number * PRELOAD_RING_BYTES);
}

/* Takes a ring for this thread; the shared first one if no other is free. Returns 0 on failure. */
static __attribute__((noinline)) int take_ring(void)
{
	u32 number = 0;

	if ((!guard.area && !map_area()) || !may_call(guard.control))
		return 0;
	me.tid = system_call(SYS_gettid, 0, 0, 0, 0, 0, 0);
	for (u32 n = 1; n < PRELOAD_RINGS && !number; n++) {
		u32 nobody = 0;

		if (!ring_at(n)->owner &&
		    __atomic_compare_exchange_n(&ring_at(n)->owner, &nobody, me.tid, 0,
						__ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
			number = n;
	}
	me.slots = (struct event *)(guard.area + PRELOAD_SLOTS_AT(number));
	me.slots_log2 = PRELOAD_SLOTS_LOG2(number);
	me.ring = ring_at(number);
	me.taken = 0;
	me.ring->busy = 0;
	find_stack(guard.control);
	for (u32 n = 0; number && n < PRELOAD_MEMOS; n++)
		me.ring->memos[n].sp = 0;
	return 1;
}

/* Waits for the lock of the shared first ring. Returns whether this thread has it now. */
static __attribute__((noinline)) int lock_ring(struct preload_control *control, struct preload_ring *ring)
{
	u64 begun = ticks();

	for (u32 tries = 0, nobody = 0;; tries++, nobody = 0) {
		if (__atomic_compare_exchange_n(&ring->lock, &nobody, me.tid, 0, __ATOMIC_ACQUIRE,
						__ATOMIC_RELAXED))
			break;
		/* If this thread has the lock, this is a signal handler that interrupted it. */
		if (nobody == me.tid || !is_wanted(control) || !may_wait(control, tries, begun))
			return 0;
	}
	me.taken = 0;
	return 1;
}

/* Counters of lost events, by kind. */
static const u8 lost_counters[] = {
	[EVENT_ALLOC] = COUNTER_LOST_ALLOCS, [EVENT_FREE] = COUNTER_LOST_FREES,
	[EVENT_REALLOC_FREE] = COUNTER_LOST_FREES, [EVENT_RESTORE] = COUNTER_LOST_RESTORES,
	[EVENT_INNER_FREE] = COUNTER_LOST_INNER_FREES, [EVENT_PART] = COUNTER_LOST_FREES,
};

/* Counts an event that can't be reported, if events are still wanted. */
static __attribute__((noinline)) void lose(u32 kind)
{
	if (is_wanted(guard.control))
		count(lost_counters[kind]);
}

/* Prepares a ring for an event: the thread's own, or the shared one. Returns 0 if it is lost. */
static int begin_report(u32 kind)
{
	/* The profiler may have given this thread's ring to another one. */
	if (unlikely(!me.ring || (me.ring != ring_at(0) && me.ring->owner != me.tid)) && !take_ring())
		lose(kind);
	else if (likely(me.ring != ring_at(0)) || lock_ring(guard.control, me.ring))
		return 1;
	else
		lose(kind);
	return 0;
}

static inline void end_report(void)
{
	if (unlikely(me.ring == ring_at(0)))
		__atomic_store_n(&me.ring->lock, 0, __ATOMIC_RELEASE);
}

/* Slots of this thread's ring that others than signal handlers may use. */
static inline u64 most_slots(void)
{
	return (1UL << me.slots_log2) - PRELOAD_SPARE_SLOTS;
}

/* Waits for a free slot. Returns whether there is one. */
static int await_slot(struct preload_control *control, struct preload_ring *ring)
{
	u64 begun = ticks();

	for (u32 tries = 0;; tries++) {
		me.taken = load_acquire(&ring->taken);
		if (ring->reserved - me.taken < most_slots())
			return 1;
		if (!is_wanted(control) || !may_wait(control, tries, begun))
			return 0;
	}
}

static inline void emit(u32 kind, u64 address, u64 size, u64 stack_id)
{
	struct preload_control *control = guard.control;
	struct preload_ring *ring = me.ring;
	u64 slot;
	struct event *event;

	if (unlikely(*(volatile u64 *)&ring->reserved - me.taken >= most_slots()) &&
	    !await_slot(control, ring)) {
		lose(kind);
		return;
	}
	if (unlikely(control->clock == PRELOAD_CLOCK_COUNTER || !control->registered))
		slot = __atomic_fetch_add(&ring->reserved, 1, __ATOMIC_SEQ_CST);
	else
		slot = take_number(&ring->reserved);
	event = &me.slots[slot & ((1UL << me.slots_log2) - 1)];
	event->time_ns = stamp_now(control);
	event->address = BLOCK_ADDRESS(address);
	event->stack_id = stack_id;
	event->tid = me.tid;
	event->image = control->space.image;
	__atomic_store_n(&event->size_tag,
			 size | (u64)kind << EVENT_SIZE_BITS |
				 ((slot >> me.slots_log2) + 1) << EVENT_LAP_BIT,
			 __ATOMIC_RELEASE);
}

#endif
