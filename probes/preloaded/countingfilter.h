/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* A counting filter: each byte counts the addresses in a table that have its hash. */
#ifndef TRACELLOC_PRELOADED_COUNTINGFILTER_H
#define TRACELLOC_PRELOADED_COUNTINGFILTER_H

#include "base.h"

/* Adds `by` to a byte. A byte of 255 never changes: the table is always searched then. */
static void change_filter(u8 *filter, int by)
{
	u8 before = __atomic_load_n(filter, __ATOMIC_RELAXED);

	while (before != 255 && !__atomic_compare_exchange_n(filter, &before, (u8)(before + by), 0,
							     __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
		;
}

#endif
