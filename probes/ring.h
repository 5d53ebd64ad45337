/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/*
 * Rings of events: slots in array maps that user space maps, too. A BPF ring buffer would take
 * two helper calls per event and a lock that all processors contend for, which costs more than
 * the rest of emitting.
 *
 * Protocol
 *   A ring has two positions, which only grow: the number of slots reserved, and the number of
 *   slots taken by user space. Slot n lies at index n modulo the ring's size, a power of two.
 *   A program reserves a slot by advancing the count atomically if there is room. It writes
 *   size_tag last; its bits from EVENT_LAP_BIT on are the lap. So user space mistakes neither
 *   an event of an earlier lap nor an unfinished one for a new event.
 *
 * Order
 *   If one program ends before another one begins, the first has the lower slot. User space
 *   takes slots in order, and waits until each one is written.
 */

/* Attempts to reserve a slot; each fails only if another program reserves one meanwhile. */
#define RESERVE_TRIES 64

/* Reserves a slot of a ring of `slots` slots. False if the ring is full. */
static __always_inline bool reserve_slot(u32 ring, u32 slots, u64 *slot)
{
	u32 at_reserved = 2 * ring, at_taken = at_reserved + 1;
	struct position *reserved = positions.lookup(&at_reserved);
	struct position *taken = positions.lookup(&at_taken);

	if (!reserved || !taken)
		return false;
#pragma clang loop unroll(disable)
	for (u32 tries = 0; tries < RESERVE_TRIES; tries++) {
		u64 next = *(volatile u64 *)&reserved->count;
		u64 waiting = next - *(volatile u64 *)&taken->count;

		/* Negative if user space has taken slot `next` meanwhile. */
		if ((s64)waiting >= slots)
			return false;
		if (__sync_val_compare_and_swap(&reserved->count, next, next + 1) == next) {
			*slot = next;
			return true;
		}
	}
	return false;
}

/* The number of slots before this one that user space has not taken. */
static __always_inline u64 waiting_slots(u32 ring, u64 slot)
{
	u32 at_taken = 2 * ring + 1;
	struct position *taken = positions.lookup(&at_taken);

	return taken ? slot - *(volatile u64 *)&taken->count : 0;
}

/* Marks a slot as written. */
static __always_inline void finish_slot(struct event *event, u64 slot, u32 slots, u64 size_tag)
{
	u64 lap = slot / slots + 1;

	store_last(&event->size_tag, size_tag | lap << EVENT_LAP_BIT);
}
