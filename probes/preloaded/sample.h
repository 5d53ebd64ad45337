/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/*
 * Sampling by bytes, as in the probes (heap.bpf.c), decided before anything else is done. Most blocks
 * are not sampled. For most frees, one byte of a counting filter shows that; a hash table has the
 * exact addresses. An entry is added before its block is returned to the program and removed before
 * the block is freed, so no other thread looks up that address meanwhile.
 */
#ifndef TRACELLOC_PRELOADED_SAMPLE_H
#define TRACELLOC_PRELOADED_SAMPLE_H

#include "countingfilter.h"
#include "report.h"

static inline u64 hash_of(u64 address)
{
	return (address >> 4) * 0x9e3779b97f4a7c15ULL;
}

static u8 *filter_of(u64 address)
{
	return guard.area + PRELOAD_AT_FILTER + (hash_of(address) >> 48) % PRELOAD_FILTER_BYTES;
}

static u64 *sampled_set(u64 address)
{
	return (u64 *)(guard.area + PRELOAD_AT_SAMPLED) +
	       (hash_of(address) >> 24) % PRELOAD_SAMPLED_SETS * PRELOAD_SAMPLED_WAYS;
}

static int note_sampled(u64 address)
{
	u64 *set = sampled_set(address);

	change_filter(filter_of(address), 1);
	for (u32 way = 0; way < PRELOAD_SAMPLED_WAYS; way++) {
		u64 nothing = 0;

		if (__atomic_compare_exchange_n(&set[way], &nothing, address, 0, __ATOMIC_SEQ_CST,
						__ATOMIC_RELAXED))
			return 1;
	}
	change_filter(filter_of(address), -1);
	count(COUNTER_SAMPLE_TABLE_FULL);
	return 0;
}

/* Removes a block that is about to be freed. Returns whether it was sampled. */
static int take_sampled(u64 address)
{
	u64 *set;

	if (!guard.area || likely(!*filter_of(address)))
		return 0;
	set = sampled_set(address);
	for (u32 way = 0; way < PRELOAD_SAMPLED_WAYS; way++) {
		if (set[way] == address) {
			__atomic_store_n(&set[way], 0, __ATOMIC_SEQ_CST);
			change_filter(filter_of(address), -1);
			return 1;
		}
	}
	return 0;
}

static u64 draw_gap(void)
{
	if (!me.dice)
		me.dice = (ticks() ^ (u64)&me) | 1;
	/* Marsaglia's xorshift64*. */
	me.dice ^= me.dice >> 12;
	me.dice ^= me.dice << 25;
	me.dice ^= me.dice >> 27;
	return ((u64 *)(guard.area + PRELOAD_AT_GAPS))[(me.dice * 0x2545f4914f6cdd1dULL >> 32) % PRELOAD_GAPS];
}

static inline int is_sampled(u64 size)
{
	u64 bytes = size ? size : 1;

	if (unlikely(!me.until_sample)) {
		if (!guard.area && !map_area())
			return 1; /* no shared memory: note_call requests probes instead */
		me.until_sample = draw_gap();
	}
	if (likely(bytes < me.until_sample)) {
		me.until_sample -= bytes;
		return 0;
	}
	me.until_sample = draw_gap();
	return 1;
}

#endif
