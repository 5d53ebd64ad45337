/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* The library's state per process and per thread. */
#ifndef TRACELLOC_PRELOADED_STATE_H
#define TRACELLOC_PRELOADED_STATE_H

#include "area.h"
#include "processor.h"

/* Per process. Zeroed in forked children, so that they are idle; so it has a page of its own. */
struct guard {
	struct preload_control *control; /* NULL: idle forever */
	u8 *area;                     /* the whole file, mapped when events are first wanted */
	u8 *place;                    /* address reserved for `area` */
	u32 mapping;                  /* a thread is mapping it */
	u8 rest[LARGEST_PAGE - 28];
};
static struct guard guard __attribute__((aligned(LARGEST_PAGE)));

/* Per thread. Small, because thread-local variables reduce the room of the thread's stack. */
struct thread {
	struct preload_ring *ring;
	struct preload_ring *noted; /* ring in which a call is marked as under way; NULL: none */
	struct event *slots;
	u64 taken;   /* slots that the profiler had taken at the last check */
	u64 call;    /* address of the return address of the allocator call under way; 0: none */
	u64 freeing; /* likewise, of the free under way */
	u64 freed;   /* the block that it frees */
	u64 until_sample; /* bytes until the next sample; 0: to be drawn */
	u64 dice;         /* state of the random generator; 0: unset */
	u64 low, high;    /* known range of the thread's own stack (stack.h); 0: unknown */
	u64 hole;         /* highest page known to be below the stack */
	u64 outermost;    /* frame of the outermost call under way */
	u32 inside;       /* calls under way, including signal handlers', that may use the shared memory */
	u32 throws;       /* the call under way is an operator new, which an exception may leave */
	u32 tid;
	u32 slots_log2;   /* of the ring */
};

#endif
