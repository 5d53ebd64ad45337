/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/*
 * The memory that a process with libtracelloc.so preloaded shares with the profiler: a memory file
 * (memfd_create(2)) that the library creates and seals against changes of its size. Both sides map
 * parts of it. tracelloc/record/sources/preloaded/ringmerge.pyx includes this file.
 *
 * The profiler validates everything that it reads here, because the process may write anything.
 */
#ifndef TRACELLOC_PRELOADED_AREA_H
#define TRACELLOC_PRELOADED_AREA_H

#include <linux/types.h>
#include "../event.h"

#define PRELOAD_MAGIC 0x32656e616c6c7274ULL
#define PRELOAD_PAGE 4096

/* Number of rings. Each thread takes one; threads that find none share the first one. */
#define PRELOAD_RINGS 256
/*
 * Slots of a ring: 2 to the power of this. The first rings are larger, so that the few threads of
 * most programs are read less often, which costs the profiler less.
 */
#define PRELOAD_SLOTS_LOG2(ring) ((ring) < PRELOAD_LARGE_RINGS ? 16 : 14)
#define PRELOAD_LARGE_RINGS 8
/* Slots reserved for signal handlers: if only these are free, the ring is full. */
#define PRELOAD_SPARE_SLOTS 64
/* Size of the record ring in bytes, a power of two. */
#define PRELOAD_RECORD_BYTES (8U << 20)
/* The table of stacks that have been sent: number of sets and entries per set, powers of two. */
#define PRELOAD_KNOWN_SETS (1U << 15)
#define PRELOAD_KNOWN_WAYS 8
/* Most frames per stack. */
#define PRELOAD_MOST_FRAMES 512
/* Sets of unwind entries, one cache line each; format of struct row_set (maps.h). */
#define PRELOAD_ROW_SETS_LOG2 18
#define PRELOAD_ROW_WAYS 4
#define PRELOAD_KEY_TAG_SHIFT 48
#define PRELOAD_REGION_SHIFT 16

/* Random distances between samples, in bytes, which the profiler writes and threads draw from. */
#define PRELOAD_GAPS 65536
/* The table of sampled blocks, in sets of one cache line, and its filter: a count of up to 255
 * blocks per hash. */
#define PRELOAD_SAMPLED_SETS (1U << 17)
#define PRELOAD_SAMPLED_WAYS 8
#define PRELOAD_FILTER_BYTES 65536

/* Memoized walks per ring, and the most stack words that one depends on. */
#define PRELOAD_MEMOS 16
#define PRELOAD_MEMO_WORDS 160

/* The clock that orders events of different rings. */
enum preload_clock {
	PRELOAD_CLOCK_TSC = 0,     /* the processors' time stamp counters, which are synchronized */
	PRELOAD_CLOCK_COUNTER = 1, /* `counter`, incremented for each event */
};

/*
 * Added to tracelloc_preload_awaited by a profiler that has started the process with its own filters
 * of system calls, and has tried them: they permit what the library does.
 */
#define PRELOAD_VOUCHED 0x8000

/*
 * The shared memory's descriptor is kept at this number or above: a profiler without privileges can
 * open the memory by /proc/PID/fd only.
 */
#define PRELOAD_KEPT_FD 100

/* Values of the library's variable tracelloc_preload_state, which is 0 at first. */
enum preload_state {
	PRELOAD_READY = 1,   /* the file exists */
	PRELOAD_REFUSED = 2, /* the file could not be created: nothing is reported */
	PRELOAD_PRECEDED = 3, /* another malloc precedes the library's: nothing is reported */
	PRELOAD_CONFINED = 4, /* a filter may forbid the library's system calls: likewise */
	PRELOAD_LIMITED = 5,  /* the address space is limited and left to the program: likewise */
	PRELOAD_WITHDRAWN = 6, /* an injected library is not in use: the program may call past it */
};

/* Why the process's reports would be incomplete or impossible. */
enum preload_reason {
	PRELOAD_DEEP_BIND = 1, /* dlopen with RTLD_DEEPBIND: that library bypasses this one */
	PRELOAD_NAMESPACE = 2, /* dlmopen: that library has a C library of its own */
	PRELOAD_NO_CLOCK = 3,  /* the program gives up nearly all system calls, or reading the clock (TSC) */
	PRELOAD_FILTERED = 4,  /* the program filters system calls */
	PRELOAD_NO_ROOM = 5,   /* the rest of the memory can't be mapped */
	PRELOAD_LOCKED = 6,    /* the program locks all of its memory */
};

/* The first page, the only one that an idle process has mapped. */
struct preload_control {
	__u64 magic;
	__u32 pid;        /* process id in its own namespace; written by the library */
	__u32 registered; /* whether membarrier(2) reaches the process; written by the library */
	__u64 size_bytes; /* size of the file; written by the library */
	__u32 state;      /* enum preload_state as of the start; written by the preloaded library */
	__u32 is_late;    /* the awaited profiler did not come in time; written by the library */
	__u32 why_not;    /* enum preload_reason; written by the library */
	__u32 gave_up;    /* a thread waited for `max_stall`; set by the library, cleared by the profiler */
	__u64 waited;     /* time that threads have waited for the profiler, in ticks; written by the library */
	__u64 next;   /* address of the malloc that is called; written by the preloaded library */
	__u64 unused;
	/*
	 * Id of the profiler's thread while it wants events, else 0. This word is on that thread's
	 * list of robust futexes: if the profiler dies, the kernel clears the id, and the process
	 * is idle from its next call on.
	 */
	__u32 holder;
	__u32 leaving; /* no thread may begin a call until probes are attached (leave.h); set by both */
	__u32 gap_holder[14];
	/* Written by the profiler: */
	/* Smallest reported block, in bytes, and largest; largest 0: frees are not reported, either. */
	__u64 min_size;
	__u64 max_size;
	__u32 clock;      /* enum preload_clock */
	__u32 max_frames; /* of a stack */
	__u32 may_call;   /* whether threads may make system calls: the process has no seccomp filter */
	__u32 samples;    /* whether only sampled blocks are reported */
	__u64 max_stall;  /* a thread's longest wait for the profiler, in ticks of the time stamp counter */
	__u64 clears;     /* whether malloc(3) returns cleared memory, without remains of pointers */
	__u64 unused_too[2];
	struct space space; /* `loads` is written by the library */
	__u8 gap[63 & -sizeof(struct space)];
	__u64 counter; /* of PRELOAD_CLOCK_COUNTER */
	__u64 gap_counter[7];
	__u64 records_reserved; /* bytes of the record ring, since the start; written by the library */
	__u64 gap_reserved[7];
	__u64 records_taken; /* likewise; written by the profiler */
	__u64 gap_taken[7];
	__u64 counters[COUNTERS]; /* by enum counter; written by the library */
};

/* A memoized walk: the stack words that it read, their places and values (memo.h). */
struct preload_memo {
	__u64 sp; /* stack pointer where the walk began; 0: unused entry */
	__u64 pc;
	__u64 bp;
	__u64 state;   /* state of the address space (state_of) */
	__u64 owner;   /* image and lineage (owner_of) */
	__u64 stack_id;
	__u32 n_words;
	__u32 uses_bp; /* whether the walk depends on bp */
	__u64 words[PRELOAD_MEMO_WORDS];
	__u32 places[PRELOAD_MEMO_WORDS]; /* offsets from sp, in bytes */
};

/* One thread's ring and working memory. */
struct preload_ring {
	__u64 reserved; /* slots, since the start; written by the thread */
	__u64 gap_reserved[7];
	__u64 taken; /* slots, since the start; written by the profiler */
	__u64 gap_taken[7];
	__u32 owner; /* the thread's id; 0: free. The profiler clears it after the thread has ended */
	__u32 lock;  /* only in the first ring: id of the thread that uses it now */
	__u32 busy;  /* a walk is under way */
	__u32 inside; /* a call is under way; in the first ring: number of such calls */
	__u64 gap_owner[2];
	/* Used by the thread only. The result of a walk whose stack is to be sent: */
	__u64 hash;
	__u64 stack_id;
	__u64 missing; /* address without an unwind entry; 0: the walk has come to an end */
	__u32 flags;
	__u32 n_frames;
	__u8 page[PRELOAD_PAGE]; /* copy of a page outside the thread's own stack */
	__u64 frames[PRELOAD_MOST_FRAMES + 1]; /* and a generation (STACK_DATED) */
	struct preload_memo memos[PRELOAD_MEMOS];
	__u64 walk[7]; /* struct walk (stack.h) */
};

/*
 * Kinds of records in the record ring. A record's header is 8 bytes: the kind above
 * PRELOAD_RECORD_KIND_SHIFT, below it the length including the header, a multiple of 8. A header
 * of 0 is not written yet: the profiler zeroes records that it has taken.
 */
enum preload_record {
	PRELOAD_RECORD_PAD = 1,   /* padding */
	PRELOAD_RECORD_STACK = 2, /* struct stack, with the used frames only */
	PRELOAD_RECORD_MISS = 3,  /* struct miss, followed by the contents of its stack pages */
};
#define PRELOAD_RECORD_KIND_SHIFT 32

/* Most stack pages in a miss. */
#define PRELOAD_MISS_PAGES 17

struct preload_row_set {
	__u64 keys[PRELOAD_ROW_WAYS];
	__u64 rows[PRELOAD_ROW_WAYS];
};

/* Offsets of all parts in the file. */
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
#define PRELOAD_SLOTS_BYTES(ring) PRELOAD_CEIL(sizeof(struct event) << PRELOAD_SLOTS_LOG2(ring))
/* The slots of a ring; those of the one after the last are the end. */
#define PRELOAD_SLOTS_AT(ring) \
	(PRELOAD_AT_SLOTS + ((ring) < PRELOAD_LARGE_RINGS ? \
		(ring) * PRELOAD_SLOTS_BYTES(0) : \
		PRELOAD_LARGE_RINGS * PRELOAD_SLOTS_BYTES(0) + \
			((ring) - PRELOAD_LARGE_RINGS) * PRELOAD_SLOTS_BYTES(PRELOAD_LARGE_RINGS)))
#define PRELOAD_BYTES PRELOAD_SLOTS_AT(PRELOAD_RINGS)

#endif
