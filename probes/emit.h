/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* Sends events to user space: through ring `events`, or through map `spill` if it is full. */

/* Waiting slots above which the probes wake the reader; otherwise it polls. */
#define WAKE_SLOTS (EVENTS / 2)
/* Slots between two checks of that. */
#define WATCHFUL_SLOTS 16

/* Bits of control.clock that hold the timer tick, in place of its lowest nanoseconds (1 ms). */
#define TICK_MASK ((1ULL << 20) - 1)

/*
 * The time of the timer's last tick. Reading the clock for each event would cost more than
 * the rest of emitting, so only the first event after a tick reads it. Time and tick share
 * one word, so a preempted program cannot pair a time with another tick. User space clears
 * the word before the tick's lowest bits recur.
 */
static __always_inline u64 tick_ns(struct control *words)
{
	volatile u64 *clock = &words->clock;
	u64 tick = bpf_jiffies64() & TICK_MASK;
	u64 seen = *clock;

	if (!seen || (seen & TICK_MASK) != tick) {
		seen = (bpf_ktime_get_ns() & ~TICK_MASK) | tick;
		*clock = seen;
	}
	return seen & ~TICK_MASK;
}

/* Writes an event into a slot that was reserved. */
static __always_inline void write_slot(struct event *event, u64 slot, u32 slots, u32 kind,
				       const struct spill_key *key, const struct spilled *block)
{
	event->address = key->address;
	event->stack_id = block->stack_id;
	event->time_ns = block->time_ns;
	event->tid = block->tid;
	event->image = key->image;
	finish_slot(event, slot, slots, block->size | (u64)kind << EVENT_SIZE_BITS |
					(u64)key->parity << EVENT_PARITY_BIT);
}

/* Puts an event into the ring. False if the ring is full. */
static __always_inline bool send(struct control *words, u32 kind, const struct spill_key *key,
				 const struct spilled *block)
{
	struct event *event;
	u64 slot = 0;
	u32 at;

	if (!reserve_slot(RING_EVENTS, EVENTS, &slot))
		return false;
	at = slot & (EVENTS - 1);
	event = events.lookup(&at);
	if (!event)
		return false;
	write_slot(event, slot, EVENTS, kind, key, block);
	if (!(slot % WATCHFUL_SLOTS) && !words->woken &&
	    waiting_slots(RING_EVENTS, slot) > WAKE_SLOTS) {
		words->woken = 1;
		wakeups.ringbuf_output(&slot, sizeof(slot), BPF_RB_FORCE_WAKEUP);
	}
	return true;
}

/* The known properties of an event's block. */
static __always_inline struct spilled describe(struct control *words, u64 id, u64 size,
					       u64 stack_id)
{
	struct spilled block = {
		.size = size,
		.stack_id = stack_id,
		.time_ns = tick_ns(words),
		.tid = (u32)id,
	};

	return block;
}

/* The key of an event on this address now: the process's image and the epoch's parity. */
static __always_inline struct spill_key key_now(struct control *words, u64 id, u64 address)
{
	volatile struct control *shared = words;
	struct space *space = get_space(id);
	struct spill_key key = {
		.address = address,
		.image = space ? space->image : 0,
		.parity = shared->epoch & 1,
	};

	return key;
}

/* Sends this epoch's further events to the map. Later programs see the flag first. */
static __always_inline void close_ring(struct control *words, const struct spill_key *key)
{
	volatile u32 *full = &words->full[key->parity & 1];

	*full = 1;
}

/*
 * Puts an event into the ring if its epoch still uses the ring. False if the event has to go
 * to the map.
 */
static __always_inline bool sent(struct control *words, u32 kind, const struct spill_key *key,
				 const struct spilled *block)
{
#ifdef SPILL_ENTRIES
	volatile u32 *full = &words->full[key->parity & 1];

	if (!*full) {
		if (send(words, kind, key, block))
			return true;
		close_ring(words, key);
	}
	count(COUNTER_SPILLED);
	return false;
#else
	return send(words, kind, key, block);
#endif
}

#ifndef SPILL_ENTRIES
#define spill_birth(key, block) false
#define spill_free(key, block, inner) false
#define spill_taking(key, block, call) TAKING_LOST
#define spill_restore(key, block) false
#define count_pair(image, parity, block, sign)
#endif

/* A block was allocated. */
static __always_inline void emit_alloc(struct control *words, u64 id, u64 address, u64 size,
				       u64 stack_id)
{
	struct spill_key key = key_now(words, id, address);
	struct spilled block = describe(words, id, size, stack_id);

	if (!sent(words, EVENT_ALLOC, &key, &block) && !spill_birth(&key, &block))
		count(COUNTER_LOST_ALLOCS);
}

/* A block is about to be freed. `kind`: EVENT_FREE or EVENT_INNER_FREE. */
static __always_inline void emit_free(struct control *words, u64 id, u32 kind, u64 address)
{
	struct spill_key key = key_now(words, id, address);
	struct spilled block = describe(words, id, 0, 0);

	if (!sent(words, kind, &key, &block) &&
	    !spill_free(&key, &block, kind == EVENT_INNER_FREE ? SPILL_INNER : 0))
		count(kind == EVENT_INNER_FREE ? COUNTER_LOST_INNER_FREES : COUNTER_LOST_FREES);
}

/* A block is about to be resized. It counts as freed unless the resize fails. */
static __always_inline void emit_taking(struct control *words, u64 id, struct call *call)
{
	struct spill_key key = key_now(words, id, call->old);
	struct spilled block = describe(words, id, 0, 0);

	call->taking = TAKING_REPORTED;
	if (sent(words, EVENT_REALLOC_FREE, &key, &block))
		return;
	call->taking = spill_taking(&key, &block, call);
	if (call->taking == TAKING_LOST)
		count(COUNTER_LOST_FREES);
}

/* The resize failed: the block stays live. */
static __always_inline void emit_restore(struct control *words, u64 id, struct call *call)
{
	struct spill_key key = key_now(words, id, call->old);
	struct spilled block = describe(words, id, 0, 0);

	if (call->taking == TAKING_LOST) {
		uncount(COUNTER_LOST_FREES);
	} else if (call->taking == TAKING_UNMATCHED) {
		uncount(COUNTER_SPILL_UNMATCHED);
	} else if (call->taking == TAKING_KEPT) {
		/* `pairs` counts the block's free, so the map must undo that; the ring cannot. */
		close_ring(words, &key);
		count(COUNTER_SPILLED);
		if (spill_birth(&key, &call->taken))
			count_pair(key.image, key.parity, &call->taken, -1);
		else
			count(COUNTER_LOST_RESTORES);
	} else if (!sent(words, EVENT_RESTORE, &key, &block) && !spill_restore(&key, &block)) {
		count(COUNTER_LOST_RESTORES);
	}
}

#ifdef FOLLOW
/*
 * This thread creates a process. The event's position among the others says which of them the
 * child's copy of the memory includes. Events in the map have no position. In that case no
 * event is sent, and user space, for which this thread stops, finds out.
 */
static __always_inline void mark_fork(struct control *words, u64 id, bool shares)
{
	u32 tid = id;
	u32 said = shares ? FORK_SHARES : 0;
	struct spill_key key = key_now(words, id, 0);
	struct spilled process = describe(words, id, 0, 0);
	volatile u32 *full = &words->full[key.parity & 1];

	if (!shares && !*full && send(words, EVENT_FORK, &key, &process))
		said |= FORK_MARKED;
	forks.update(&tid, &said);
}
#endif
