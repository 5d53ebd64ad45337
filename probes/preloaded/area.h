/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/*
 * The memory that a process with libtracelloc.so preloaded shares with the profiler: a memory file
 * (memfd_create(2)) that the library creates and seals against changes of its size. Both sides map
 * parts of it. tracelloc/record/sources/preloaded/ringmerge.pyx includes this file.
 *
 * The profiler checks all that it reads here: the process may write anything.
 */
#ifndef TRACELLOC_PRELOADED_AREA_H
#define TRACELLOC_PRELOADED_AREA_H

#include <linux/types.h>
#include "../event.h"

#define PRELOAD_MAGIC 0x31656e616c6c7274ULL
#define PRELOAD_PAGE 4096

/* Rings, of which each thread takes one; the first is for all that find none. */
#define PRELOAD_RINGS 256
/* Slots of a ring: a power of two. */
#define PRELOAD_SLOTS 16384
/* Slots that new calls leave free for signal handlers: with no more left, a ring is full. */
#define PRELOAD_SPARE_SLOTS 64
/* Bytes of the ring of records: a power of two. */
#define PRELOAD_RECORD_BYTES (8U << 20)
/* Stacks that are remembered as sent: sets of eight, powers of two. */
#define PRELOAD_KNOWN_SETS (1U << 15)
#define PRELOAD_KNOWN_WAYS 8
/* Most frames of a stack. */
#define PRELOAD_MOST_FRAMES 512
/* Sets of unwind entries, each a cache line: keys and rows as in struct row_set (maps.h). */
#define PRELOAD_ROW_SETS_LOG2 18
#define PRELOAD_ROW_WAYS 4
#define PRELOAD_KEY_TAG_SHIFT 48
#define PRELOAD_REGION_SHIFT 16

/* Distances between samples in bytes, to be drawn from; the profiler. */
#define PRELOAD_GAPS 65536
/* Sampled blocks, by sets of a cache line, and how many there are of each hash, up to 255. */
#define PRELOAD_SAMPLED_SETS (1U << 17)
#define PRELOAD_SAMPLED_WAYS 8
#define PRELOAD_FILTER_BYTES 65536

/* Walks that a ring's threads remember, and the words that each goes by. */
#define PRELOAD_MEMOS 16
#define PRELOAD_MEMO_WORDS 160

/* What orders events of different rings. */
enum preload_clock {
	PRELOAD_CLOCK_TSC = 0,     /* the processors' time stamp counters, which run as one */
	PRELOAD_CLOCK_COUNTER = 1, /* `counter`, one more for each event */
};

/* Value of the library's variable tracelloc_preload_state, 0 at first. */
enum preload_state {
	PRELOAD_READY = 1,   /* the file is there */
	PRELOAD_REFUSED = 2, /* it could not be made: nothing will ever be reported */
	PRELOAD_PRECEDED = 3, /* another malloc comes before the library's: nothing will be reported */
	PRELOAD_CONFINED = 4, /* a filter may forbid system calls that the library makes: likewise */
	PRELOAD_LIMITED = 5,  /* the address space is limited, and the memory is for the program: likewise */
};

/* Why what the process reports would not be all, or none of it could be reported. */
enum preload_reason {
	PRELOAD_DEEP_BIND = 1, /* a library was opened to call the C library's functions past it */
	PRELOAD_NAMESPACE = 2, /* a library was opened in another namespace, with a C library of its own */
	PRELOAD_NO_CLOCK = 3,  /* the program gives up nearly all system calls, or reading the clock */
	PRELOAD_FILTERED = 4,  /* the program filters system calls */
	PRELOAD_NO_ROOM = 5,   /* the rest of the memory can't be mapped */
	PRELOAD_LOCKED = 6,    /* the program locks all of its memory */
};

/* The first page: all that an idle process has mapped. */
struct preload_control {
	__u64 magic;
	__u32 pid;        /* of the process, as it sees itself; the library */
	__u32 registered; /* whether membarrier(2) reaches the process; the library */
	__u64 size_bytes; /* of the file; the library */
	__u32 unused_first;
	__u32 is_late;    /* a profiler was waited for, and did not come in time; the library */
	__u32 why_not;    /* enum preload_reason; the library */
	__u32 gave_up;    /* a thread has waited for `max_stall`; the library, cleared by the profiler */
	__u64 unused[3];
	/*
	 * The id of the profiler's thread while events are wanted, else 0. It is on that thread's
	 * list of robust futexes: when the profiler dies, of whatever, the kernel takes the id
	 * away, and the process is idle from the next call on.
	 */
	__u32 holder;
	__u32 leaving; /* no thread may begin a call until probes are attached (leave.h); both */
	__u32 gap_holder[14];
	/* The profiler: */
	__u64 min_size; /* of blocks that are reported, in bytes */
	__u64 max_size;
	__u32 clock;      /* enum preload_clock */
	__u32 max_frames; /* of a stack */
	__u32 may_call;   /* whether threads may make system calls: no seccomp filter is seen */
	__u32 samples;    /* whether only blocks that samples fall into are reported */
	__u64 max_stall;  /* a thread's longest wait for the profiler, in ticks of the time stamp counter */
	__u64 unused_too[3];
	struct space space; /* `loads` is the library's */
	__u8 gap[63 & -sizeof(struct space)];
	__u64 counter; /* of PRELOAD_CLOCK_COUNTER */
	__u64 gap_counter[7];
	__u64 records_reserved; /* bytes of the ring of records, since the start; the library */
	__u64 gap_reserved[7];
	__u64 records_taken; /* the profiler */
	__u64 gap_taken[7];
	__u64 counters[COUNTERS]; /* by enum counter; the library */
};

/* A remembered walk: where each word was read, and what it was (memo.h). */
struct preload_memo {
	__u64 sp; /* where the walk began; 0: none */
	__u64 pc;
	__u64 bp;
	__u64 state;   /* of the address space */
	__u64 owner;   /* image and lineage */
	__u64 stack_id;
	__u32 n_words;
	__u32 uses_bp; /* whether the caller's frame pointer counts */
	__u64 words[PRELOAD_MEMO_WORDS];
	__u32 places[PRELOAD_MEMO_WORDS]; /* bytes from sp */
};

/* One thread's ring, and what it works with. */
struct preload_ring {
	__u64 reserved; /* slots, since the start; the thread */
	__u64 gap_reserved[7];
	__u64 taken; /* slots, since the start; the profiler */
	__u64 gap_taken[7];
	__u32 owner; /* the thread's id; 0: nobody. Cleared by the profiler when the thread is gone */
	__u32 lock;  /* of the first ring: the id of the thread that uses it now */
	__u32 busy;  /* a walk is under way */
	__u32 inside; /* a call is under way; of the first ring: how many are */
	__u64 gap_owner[6];
	/* The thread's own: */
	__u8 page[PRELOAD_PAGE]; /* a copy of one that is not of its own stack */
	__u64 frames[PRELOAD_MOST_FRAMES];
	struct preload_memo memos[PRELOAD_MEMOS];
};

/* What a record of the ring of records is. Its head is 8 bytes: its length with the head, a
   multiple of 8, below this. A head of 0 is not written yet: who takes records leaves zeros. */
enum preload_record {
	PRELOAD_RECORD_PAD = 1,   /* nothing */
	PRELOAD_RECORD_STACK = 2, /* struct stack with its used frames */
	PRELOAD_RECORD_MISS = 3,  /* struct miss with the memory of its pages */
};
#define PRELOAD_RECORD_KIND_SHIFT 32

/* Pages of stack in a miss, at most. */
#define PRELOAD_MISS_PAGES 17

struct preload_row_set {
	__u64 keys[PRELOAD_ROW_WAYS];
	__u64 rows[PRELOAD_ROW_WAYS];
};

/* Where everything is in the file. */
#define PRELOAD_CEIL(bytes) (((bytes) + PRELOAD_PAGE - 1) / PRELOAD_PAGE * PRELOAD_PAGE)
#define PRELOAD_AT_ROWS PRELOAD_CEIL(sizeof(struct preload_control))
#define PRELOAD_AT_KNOWN (PRELOAD_AT_ROWS + (sizeof(struct preload_row_set) << PRELOAD_ROW_SETS_LOG2))
#define PRELOAD_AT_RECORDS (PRELOAD_AT_KNOWN + 8UL * PRELOAD_KNOWN_SETS * PRELOAD_KNOWN_WAYS)
#define PRELOAD_AT_GAPS (PRELOAD_AT_RECORDS + PRELOAD_RECORD_BYTES)
#define PRELOAD_AT_FILTER (PRELOAD_AT_GAPS + 8UL * PRELOAD_GAPS)
#define PRELOAD_AT_SAMPLED (PRELOAD_AT_FILTER + PRELOAD_FILTER_BYTES)
#define PRELOAD_AT_RINGS (PRELOAD_AT_SAMPLED + 8UL * PRELOAD_SAMPLED_SETS * PRELOAD_SAMPLED_WAYS)
#define PRELOAD_RING_BYTES PRELOAD_CEIL(sizeof(struct preload_ring))
#define PRELOAD_AT_SLOTS (PRELOAD_AT_RINGS + PRELOAD_RINGS * PRELOAD_RING_BYTES)
#define PRELOAD_SLOTS_BYTES PRELOAD_CEIL(PRELOAD_SLOTS * sizeof(struct event))
#define PRELOAD_BYTES (PRELOAD_AT_SLOTS + PRELOAD_RINGS * PRELOAD_SLOTS_BYTES)

#endif
