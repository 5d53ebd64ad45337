/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/*
 * The record ring: stacks, each sent once, and misses, which are stacks that the profiler has to
 * finish. All threads write to it, but rarely. A thread reserves a record's place by
 * compare-and-swap and writes its header last. The profiler zeroes the records that it has taken. A
 * record is never split: if it would be, padding comes before it.
 */
#ifndef TRACELLOC_PRELOADED_RECORDS_H
#define TRACELLOC_PRELOADED_RECORDS_H

#include "report.h"

/*
 * Reserves a record of this many bytes, not counting its header. Returns NULL if events are not
 * wanted any more, or if there is no room in time.
 */
static u64 *reserve_record(struct preload_control *control, u64 bytes, u64 *length)
{
	u8 *ring = guard.area + PRELOAD_AT_RECORDS;
	u64 whole = (bytes + 8 + 7) & ~7ULL, begun = ticks();

	for (u32 tries = 0;; tries++) {
		u64 from = *(volatile u64 *)&control->records_reserved;
		u64 taken = load_acquire(&control->records_taken);
		u64 at = from % PRELOAD_RECORD_BYTES;
		u64 padding = at + whole > PRELOAD_RECORD_BYTES ? PRELOAD_RECORD_BYTES - at : 0;

		if (from + padding + whole - taken > PRELOAD_RECORD_BYTES) {
			if (!is_wanted(control) || !may_wait(control, tries, begun)) {
				count(COUNTER_LOST_STACKS);
				return NULL;
			}
			continue;
		}
		if (!__atomic_compare_exchange_n(&control->records_reserved, &from,
						 from + padding + whole, 0, __ATOMIC_SEQ_CST,
						 __ATOMIC_RELAXED))
			continue;
		if (padding)
			__atomic_store_n((u64 *)(ring + at),
					 padding | (u64)PRELOAD_RECORD_PAD << PRELOAD_RECORD_KIND_SHIFT,
					 __ATOMIC_RELEASE);
		*length = whole;
		return (u64 *)(ring + (from + padding) % PRELOAD_RECORD_BYTES);
	}
}

static void finish_record(u64 *record, u32 kind, u64 length)
{
	__atomic_store_n(record, length | (u64)kind << PRELOAD_RECORD_KIND_SHIFT, __ATOMIC_RELEASE);
}

/* Whether the stack with this id has been sent. */
static int is_known(u64 stack_id)
{
	u64 *set = (u64 *)(guard.area + PRELOAD_AT_KNOWN) +
		   (stack_id >> 6) % PRELOAD_KNOWN_SETS * PRELOAD_KNOWN_WAYS;

	/* An event with the stack comes after the stack. */
	for (u32 way = 0; way < PRELOAD_KNOWN_WAYS; way++)
		if (load_acquire(&set[way]) == stack_id)
			return 1;
	return 0;
}

/* Marks the stack as sent. If its set is full, it replaces another stack, which is sent again. */
static void note_known(u64 stack_id)
{
	u64 *set = (u64 *)(guard.area + PRELOAD_AT_KNOWN) +
		   (stack_id >> 6) % PRELOAD_KNOWN_SETS * PRELOAD_KNOWN_WAYS;
	u32 at = stack_id >> 40 & (PRELOAD_KNOWN_WAYS - 1);

	for (u32 way = 0; way < PRELOAD_KNOWN_WAYS; way++)
		if (!*(volatile u64 *)&set[way]) {
			at = way;
			break;
		}
	store_release(&set[at], stack_id);
}

/* Sends a stack to the profiler. */
static void send_stack(struct preload_control *control, u64 stack_id, const u64 *frames, u32 n,
		       u32 flags)
{
	u64 length, *record = reserve_record(control, 16 + 8UL * n, &length);
	struct stack *stack = (struct stack *)(record + 1);

	if (!record)
		return;
	stack->stack_id = stack_id;
	stack->n_frames = n;
	stack->flags = flags;
	stack->image = control->space.image;
	copy_words(stack->frames, frames, n);
	finish_record(record, PRELOAD_RECORD_STACK, length);
	note_known(stack_id);
}

#endif
