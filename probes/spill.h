/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/*
 * Exact figures when ring `events` is full: events go to map `spill` instead, which stores
 * each address's net change, not each event. User space: tracelloc/record/kernel/drain.py.
 *
 * Protocol
 *   control.epoch only grows, and only user space changes it. An event belongs to the
 *   epoch that its program reads first. The first one that finds the ring full sets
 *   control.full of that epoch's parity, then goes to the map. Later events of the same
 *   epoch go to the map as well, even if the ring has room again. When user space finds
 *   the epoch's `full` set, it begins the next epoch, whose events go to the ring, and
 *   waits until every program that may have read the old epoch has ended. It applies the
 *   old epoch's events from the ring, then its entries from the map, clears `full`, and
 *   applies the new epoch's events.
 *
 * Why nothing gets out of order
 *   Of two events on one address, or by one thread, the program that reports the first
 *   has ended before the target can get to the second: a block is freed after its free
 *   is reported, and its address is handed out after that. So the second program sees
 *   what the first one wrote. (1) Epochs never go back along an address. (2) Within an
 *   epoch, once an event of an address went to the map, `full` is set, and the later ones
 *   go there too. Thus epoch by epoch, the ring before the map, and each of these in its
 *   own order, is the order in which things happened on each address, and to each thread.
 *   (3) No two programs handle one address at a time, so entries need no lock. (4) When
 *   user space reads an epoch's entries, nobody writes any of that parity: the next epoch
 *   that has it begins after `full` was cleared. No clock is involved.
 *
 * Size of the map
 *   An entry holds its address's change since the epoch's ring was full. A block that is
 *   allocated and freed in between leaves no entry: `pairs` counts both by the allocating
 *   stack. So the map has to hold only net changes, older blocks that were freed and new
 *   blocks that are live, independent of the number of events. Without room, the event is
 *   counted as lost, by kind. Every event changes the number of blocks by one, so that
 *     blocks that there are = blocks in the table + reuses - unmatched frees
 *       + odd restores + lost allocations - lost frees + lost restores
 *       + freed blocks from before tracing began
 *   independent of losses. (This does not hold for bytes: a free does not know its size.)
 */

#ifdef SPILL_ENTRIES
/*
 * Counts a block that was allocated and freed (1), or undoes that (-1). Only sums are kept,
 * by size only if samples are weighted by size.
 */
static __always_inline void count_pair(u32 image, u32 parity, const struct spilled *block, s64 sign)
{
	struct pair_key key = {.stack_id = block->stack_id, .image = image, .parity = parity};
	struct pair_sums none = {};
	struct pair_sums *sums;

#if defined(SAMPLE_BYTES) || defined(USDT_WEIGHTS)
	key.size = block->size;
#endif
	sums = pairs.lookup(&key);
	if (!sums) {
		/* Fails if another program was faster; then the entry exists, too. */
		pairs.insert(&key, &none);
		sums = pairs.lookup(&key);
	}
	if (!sums) {
		count(COUNTER_LOST_PAIRS);
		return;
	}
	__sync_fetch_and_add(&sums->count, sign);
	__sync_fetch_and_add(&sums->bytes, sign * (s64)block->size);
	sums->time_ns = block->time_ns;
}

/* An allocation, or a block that a failed resize gives back. False if there is no room. */
static __always_inline bool spill_birth(struct spill_key *key, const struct spilled *block)
{
	struct spilled *entry = spill.lookup(key);
	struct spilled fresh = *block;

	fresh.flags = SPILL_BORN;
	if (!entry)
		return !spill.insert(key, &fresh);
	if (entry->flags & SPILL_BORN)
		count_pair(key->image, key->parity, entry, 1);
	if ((entry->flags & SPILL_BORN) || entry->flags == SPILL_RESTORED)
		count(COUNTER_SPILL_REUSES);
	entry->size = fresh.size;
	entry->stack_id = fresh.stack_id;
	entry->time_ns = fresh.time_ns;
	entry->tid = fresh.tid;
	entry->flags = (entry->flags & (SPILL_FREED | SPILL_INNER)) | SPILL_BORN;
	return true;
}

/* Ends an entry's block that was allocated in this epoch; an older block's free remains. */
static __always_inline void end_birth(struct spill_key *key, struct spilled *entry)
{
	count_pair(key->image, key->parity, entry, 1);
	if (entry->flags & SPILL_FREED)
		entry->flags &= ~SPILL_BORN;
	else
		spill.delete(key);
}

/* A free; `inner`: SPILL_INNER or 0. False if there is no room. */
static __always_inline bool spill_free(struct spill_key *key, const struct spilled *freed,
				       u32 inner)
{
	struct spilled *entry = spill.lookup(key);
	struct spilled fresh = *freed;

	fresh.flags = SPILL_FREED | inner;
	if (!entry)
		return !spill.insert(key, &fresh);
	if (entry->flags & SPILL_BORN)
		end_birth(key, entry);
	else if (entry->flags == SPILL_RESTORED)
		spill.delete(key);
	else if (!inner)
		count(COUNTER_SPILL_UNMATCHED);
	return true;
}

/* The free that realloc begins with. */
static __always_inline u32 spill_taking(struct spill_key *key, const struct spilled *freed,
					struct call *call)
{
	struct spilled *entry = spill.lookup(key);
	struct spilled fresh = *freed;

	fresh.flags = SPILL_FREED | SPILL_TAKEN;
	fresh.size = fresh.tid;
	fresh.stack_id = ++call->takings;
	if (!entry)
		return spill.insert(key, &fresh) ? TAKING_LOST : TAKING_REPORTED;
	if (entry->flags & SPILL_BORN) {
		call->taken = *entry;
		end_birth(key, entry);
		return TAKING_KEPT;
	}
	if (entry->flags == SPILL_RESTORED) {
		entry->size = fresh.size;
		entry->stack_id = fresh.stack_id;
		entry->flags = SPILL_RESTORED | SPILL_TAKEN;
		return TAKING_REPORTED;
	}
	count(COUNTER_SPILL_UNMATCHED);
	return TAKING_UNMATCHED;
}

/* The end of a resize that failed, of a TAKING_REPORTED. False if there is no room. */
static __always_inline bool spill_restore(struct spill_key *key, const struct spilled *restored)
{
	struct spilled *entry = spill.lookup(key);
	struct spilled fresh = *restored;

	fresh.flags = SPILL_RESTORED;
	if (!entry)
		return !spill.insert(key, &fresh);
	if (entry->flags == (SPILL_FREED | SPILL_TAKEN))
		spill.delete(key);
	else if (entry->flags == (SPILL_RESTORED | SPILL_TAKEN))
		entry->flags = SPILL_RESTORED;
	else
		count(COUNTER_SPILL_ODD_RESTORES);
	return true;
}
#endif
