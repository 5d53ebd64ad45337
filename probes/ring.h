/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/*
 * Rings of events: slots in array maps that user space has mapped, too. A BPF ring buffer
 * would take two calls and a lock for each event, for which all processors wait: more than
 * the rest of emitting.
 *
 * Protocol
 *   A ring has two positions, which only grow: how many slots were reserved, and how many of
 *   these user space has taken. Slot n lies at n modulo the ring's size, which is a power of
 *   two; it is reserved by counting it, at once, while there is room. The bits above
 *   EVENT_LAP_BIT of its size_tag, which is written last, say in which lap it was written:
 *   what user space has from a lap before is not taken for the new one, nor for one that is
 *   being written. (x86-64 lets others see writes in their order.)
 *
 * Order
 *   Of two programs, one of which ends before the other one begins, the first has the lower
 *   slot. User space takes slots in their order, and waits for each until it is written.
 */

/* Slots that others may reserve while one program tries to. */
#define RESERVE_TRIES 64

/* Reserves a slot of a ring of this size. False: it is full. */
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

		/* It may have been taken since: then it is not next any more. */
		if ((s64)waiting >= slots)
			return false;
		if (__sync_val_compare_and_swap(&reserved->count, next, next + 1) == next) {
			*slot = next;
			return true;
		}
	}
	return false;
}

/* How many slots of a ring have not been taken, of those up to this one. */
static __always_inline u64 waiting_slots(u32 ring, u64 slot)
{
	u32 at_taken = 2 * ring + 1;
	struct position *taken = positions.lookup(&at_taken);

	return taken ? slot - *(volatile u64 *)&taken->count : 0;
}

/* Writes what says that a slot is written. */
static __always_inline void finish_slot(struct event *event, u64 slot, u32 slots, u64 size_tag)
{
	u64 lap = slot / slots + 1;

	asm volatile("" : : : "memory");
	*(volatile u64 *)&event->size_tag = size_tag | lap << EVENT_LAP_BIT;
}
