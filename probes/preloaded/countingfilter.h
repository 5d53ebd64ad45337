/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* One byte of a filter: how many addresses of a table have this hash. */
#ifndef TRACELLOC_PRELOADED_COUNTINGFILTER_H
#define TRACELLOC_PRELOADED_COUNTINGFILTER_H

#include "base.h"

/* Counts one more or less; 255 stays for good: then the table is always looked at. */
static void change_filter(u8 *filter, int by)
{
	u8 before = __atomic_load_n(filter, __ATOMIC_RELAXED);

	while (before != 255 && !__atomic_compare_exchange_n(filter, &before, (u8)(before + by), 0,
							     __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
		;
}

#endif
