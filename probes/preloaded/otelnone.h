/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* An injected library has no probes of OpenTelemetry's profiler (otel.h). */
#ifndef TRACELLOC_PRELOADED_OTELNONE_H
#define TRACELLOC_PRELOADED_OTELNONE_H

#include "base.h"

static inline int otel_is_idle(void)
{
	return 1;
}

static inline void otel_note_alloc(u64 address, u64 size)
{
	(void)address;
	(void)size;
}

static inline void otel_note_free(u64 address)
{
	(void)address;
}

#endif
