/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* The BPF maps. User space sets their sizes as macros (-D). */

/* Flags of bpf(2), BPF_MAP_CREATE. */
#define MAP_NO_PREALLOC (1U << 0)
#define MAP_MMAPABLE (1U << 10)

/* Slots of ring `events` (a power of two). */
#ifndef EVENTS
#define EVENTS 131072
#endif
/* Ring of struct stack, in pages: 4 MiB hold 4,000 of the deepest stacks. */
#ifndef STACKS_PAGES
#define STACKS_PAGES 1024
#endif
/* Threads that have allocated, a power of two. User space frees the slots of ended threads. */
#ifndef MAX_THREADS
#define MAX_THREADS 32768
#endif
/* Slots that a thread may have, from the one that its id names on. */
#define THREAD_SLOTS (MAX_THREADS < 16 ? MAX_THREADS : 16)
/* Threads whose fork user space has not heard of. */
#define MAX_FORKS 65536
/* Distinct stacks remembered as sent. */
#ifndef MAX_STACKS
#define MAX_STACKS 262144
#endif
#ifdef SPILL_ENTRIES
/* Stacks that found no room in their ring, 1 KiB each with 127 frames. */
#ifndef MAX_KEPT_STACKS
#define MAX_KEPT_STACKS 16384
#endif
/* Stacks (when sampling: stacks and sizes) whose pairs one epoch can count. */
#ifndef MAX_PAIRS
#define MAX_PAIRS 65536
#endif
#endif

/* Bytes of stack of which all can be read if one can. No machine has smaller pages. */
#define STACK_PAGE 4096
/* Most bytes of stack memory that one read copies. */
#define STACK_WINDOW STACK_PAGE
/* A frame: the caller's frame pointer, and above it the return address. */
#define STACK_FRAME_BYTES 16

/* Processors with their own scratch memory; higher-numbered ones share it with these. */
#ifndef PROCESSORS
#define PROCESSORS 64
#endif
/* Pieces of scratch memory per processor: a preempted walk keeps its piece. */
#define SCRATCHES 2
/*
 * Further pieces that all processors share: with many more threads than processors, many walks
 * may be preempted.
 */
#define SHARED_SCRATCHES 128

/*
 * Recent stack ids, indexed by their low bits (a power of two). Finding an id there costs a
 * tenth of a look-up in `known_stacks`.
 */
#define RECENT_STACKS 64

#ifdef USE_ROWS
/* Sets of rows (a power of two, 64 bytes each). */
#ifndef ROW_SETS_LOG2
#define ROW_SETS_LOG2 17
#endif
#define ROW_SETS (1U << ROW_SETS_LOG2)
#define ROW_WAYS 4

/*
 * Rows by the byte before a return address. A key may lie in any way of its set; its row has
 * the same index. One cache line. User space writes the row before the key; key 0 is empty.
 */
struct row_set {
	__u64 keys[ROW_WAYS];
	__u64 rows[ROW_WAYS];
};

/*
 * A key is an address below 2^48, with the tag of the address space and its generation above
 * it. The address and the tag's low bits select the set, so programs at the same fixed addresses
 * use different sets, and a row can get another tag with the same low bits in place. Tag 0 is
 * unused.
 */
#define KEY_TAG_SHIFT 48

/* Regions of generated code of 64 KiB: REGION_KEY is the key of one. Its row serves all addresses
   in the region that have no row of their own. */
#define REGION_SHIFT 16

/* Ring of struct miss, in pages: 16 MiB hold 800 of the smaller ones. */
#ifndef MISSES_PAGES
#define MISSES_PAGES 4096
#endif
/* STACK_PAGEs in a miss, including the one with the stack pointer. */
#define SMALL_MISS_PAGES 5
#define LARGE_MISS_PAGES 17

struct small_miss {
	struct miss miss;
	__u8 stack[SMALL_MISS_PAGES * STACK_PAGE];
};

struct large_miss {
	struct miss miss;
	__u8 stack[LARGE_MISS_PAGES * STACK_PAGE];
};
#endif

/* State of the free that realloc begins with. It decides how a failed realloc is undone. */
enum taking {
	TAKING_REPORTED = 0,  /* user space gets to know of the free: send EVENT_RESTORE */
	TAKING_KEPT = 1,      /* only `taken` describes the block: add it again */
	TAKING_UNMATCHED = 2, /* no block was there: uncount the unmatched free */
	TAKING_LOST = 3,      /* the free was not reported: uncount the lost free */
};

/* The outermost allocator call that a thread is in. */
struct call {
	__u64 sp;      /* stack pointer at entry; 0: not in an allocator */
	__u64 last_sp; /* of the last completed call */
	__u64 size;    /* bytes requested; all ones: does not fit into 64 bits */
	__u64 old;     /* block passed to realloc */
	__u64 out;     /* where posix_memalign writes its result; the block resized in place;
	                  bytes mapped, while `old` and `size` are the unmapped range */
	__u64 return_address; /* 0: a return probe has replaced it on the stack */
	__u64 ip;      /* address of its entry probe, if it has no return probe */
	__u64 left;    /* a call was left without a return: an unrecorded return may come */
	__u64 free_sp; /* stack pointer at the last entry of a free that may call another */
	__u64 free_ip; /* address of that free's probe */
	__u64 free_return; /* its return address */
	__u32 slot;    /* where the call's function stores its return address (aarch64.h), */
	__u32 free_slot; /* and the free's */
	__u64 until_sample; /* bytes until this thread's next sample; 0: not drawn yet */
	__u32 kind;    /* enum function_kind */
	__u32 hidden;  /* filtered out by size, or not sampled */
	__u64 taking;  /* enum taking, of `old` */
	__u64 takings; /* counts the blocks that realloc took; starts higher in each new record */
	struct spilled taken; /* while TAKING_KEPT */
	__u64 result;  /* the call's block or mapping, while it is reported */
	__u64 device;  /* 1 + number of the GPU that has the block; 0: none */
#ifdef PYTHON
	__u32 python_scratch; /* 1 + number of the scratch memory with its Python frames, or 0 */
	__u32 python_walked;  /* 1: the frames were walked; the reporting program is called again */
	__u64 python_thread; /* CPython's record of the thread; 0 if unknown */
	__u64 python_made;   /* threads that CPython had created at the last search for it */
	__u64 python_looks;  /* failed searches since then */
#endif
};

#ifdef USE_ROWS
/*
 * Whether walks are remembered. With deep stacks, walks and memos together would exceed the
 * verifier's limits.
 */
#define REMEMBERS (MAX_FRAMES <= 127)
/* Remembered walks, and the most words of each. Powers of two. */
#define MEMOS (REMEMBERS ? 32 : 1)
#define MEMO_WORDS 128
#define MEMO_GROUP 8 /* that are compared together */

/* A remembered walk (memo.h). */
struct memo {
	__u64 sp;       /* stack pointer at its start; 0: nothing is remembered */
	__u64 pc;
	__u64 bp;       /* compared under this mask: */
	__u64 bp_mask;  /* all ones if the walk used bp, else 0 */
	__u64 state;    /* of the mappings: the tag of struct space */
	__u64 owner;    /* image and lineage of struct space */
	__u64 stack_id; /* of the stack that was found */
	__u64 n_words;
	/* During the walk: */
	__u64 from_sp;        /* stack pointer at its start */
	__u64 far;            /* not 0: a word was too far away, or no memo may be kept */
	__u64 bp_at_start;    /* 1 while bp has its initial value */
	__u64 bp_unnoted;     /* 1 while the last bp that was read has not been used; */
	__u64 saved_bp;       /* its value, */
	__u64 saved_bp_address; /* and where it was read */
	__u64 words[MEMO_WORDS + MEMO_GROUP];  /* the words that were read, */
	__u32 places[MEMO_WORDS + MEMO_GROUP]; /* and their distances from `sp` in bytes */
};
#endif

#ifdef PYTHON
/* Bytes read at once below a frame, where most of its callers lie. A power of two. */
#define PYTHON_WINDOW 2048
/* At least the bytes that are read of a frame itself. */
#define PYTHON_SLACK 256
#endif

/* Working memory of a stack walk, too large for a program's own stack (scratch.h). */
struct scratch {
	__u64 taken; /* 1 while a program uses it */
	__u64 recent[RECENT_STACKS]; /* recent stack ids that are known to be sent */
	struct stack stack;
#ifdef PYTHON
	struct python_stack python;
	__u64 python_frame; /* the next frame to read */
	__u64 python_hash;  /* of the frames read so far */
	__u64 python_base;  /* address of the first byte in `python_window` */
	__u64 python_last;  /* largest distance from there of a frame in the window */
	__u64 python_named; /* number of frames whose names were handled */
	__u64 python_unsent; /* 1: some names were not sent, for lack of room */
	__u8 python_window[PYTHON_WINDOW + PYTHON_SLACK];
	struct python_code python_code;
#endif
#ifdef USE_ROWS
	__u64 loaded;   /* bytes of the stack that are in `window` */
	__u64 base;     /* address of the first one */
	__u64 bad;      /* not 0: part of the stack could not be read */
	__u64 guessed;  /* STACK_GUESSED, or 0 */
	__u64 lasting;  /* the bits that all rows of a walk have */
	struct memo memos[MEMOS];
#endif
	__u8 window[STACK_WINDOW + STACK_FRAME_BYTES]; /* copy of a part of the stack */
};

/* Positions of each ring of events (ring.h). Read and written by user space through mmap. */
BPF_F_TABLE("array", u32, struct position, positions, 2 * RINGS, MAP_MMAPABLE);

/* Allocations and frees: slot -> event. Reader: tracelloc/record/kernel/ring.py. */
BPF_F_TABLE("array", u32, struct event, events, EVENTS, MAP_MMAPABLE);

/* Wakes the reader; its content has no meaning. */
BPF_RINGBUF_OUTPUT(wakeups, 1);

#ifdef SPILL_ENTRIES
/*
 * address, image, parity of the epoch -> changes at the address since `events` was full in
 * that epoch. Read and emptied by user space. The map takes memory only for its entries, about
 * 128 bytes each.
 */
BPF_F_TABLE("hash", struct spill_key, struct spilled, spill, SPILL_ENTRIES, MAP_NO_PREALLOC);

/*
 * stack id -> stacks for which ring `stacks` had no room. Their frames never change, so their
 * order does not matter. Read and emptied by user space.
 */
BPF_F_TABLE("hash", u64, struct stack, kept_stacks, MAX_KEPT_STACKS, MAP_NO_PREALLOC);

/* stack, image, parity -> blocks allocated and freed within the overflow. */
BPF_F_TABLE("hash", struct pair_key, struct pair_sums, pairs, MAX_PAIRS, MAP_NO_PREALLOC);
#endif

#ifdef PYTHON
/* enum python_program -> the programs that walk Python frames and those that they return to
   (python.h). User space fills one such map for each kind of link. */
BPF_TABLE("prog", u32, u32, python_programs, PYTHON_PROGRAMS);
#endif

#ifdef USDT
/* The cookie of a probe -> where its arguments are. Written by user space through mmap. */
BPF_F_TABLE("array", u32, struct usdt_probe, usdt_probes, USDT_PROBES, MAP_MMAPABLE);
#endif

#ifdef TRACE_MAPPINGS
#ifndef MAPPINGS
#define MAPPINGS 65536
#endif

/* Mappings and unmappings: slot -> event. Reader: tracelloc/record/kernel/ring.py. */
BPF_F_TABLE("array", u32, struct event, mappings, MAPPINGS, MAP_MMAPABLE);
#endif

/* Stacks that events name by id, each sent once. */
BPF_RINGBUF_OUTPUT(stacks, STACKS_PAGES);

/* Slot -> the thread (current_id) that has it, or 0. Taken by probes, freed by user space through
   mmap. */
BPF_F_TABLE("array", u32, u64, threads, MAX_THREADS, MAP_MMAPABLE);

/* Slot -> the call that its thread is in. An array costs half as much as a hash: each event looks
   for the record at least once. */
BPF_F_TABLE("array", u32, struct call, calls, MAX_THREADS, 0);

/* Scratch memory: the pieces of each processor in turn, then the shared ones. */
BPF_F_TABLE("array", u32, struct scratch, scratches, PROCESSORS * SCRATCHES + SHARED_SCRATCHES, 0);

#ifdef USE_ROWS
/* Number of a set -> rows. Read and written by user space through mmap. */
BPF_F_TABLE("array", u32, struct row_set, rows, ROW_SETS, MAP_MMAPABLE);

/* Stacks that user space has to finish. Reader: tracelloc/record/kernel/ring.py. */
BPF_RINGBUF_OUTPUT(misses, MISSES_PAGES);
#endif

/* stack id -> nothing: stacks that ring `stacks` has carried. */
BPF_F_TABLE("hash", u64, u64, known_stacks, MAX_STACKS, MAP_NO_PREALLOC);

/* enum counter -> number of times, only growing. Read by user space through mmap. */
BPF_F_TABLE("array", u32, u64, counters, COUNTERS, MAP_MMAPABLE);

#ifdef SAMPLE_BYTES
/* Live sampled blocks: some hundred thousand are enough for any estimate. */
#ifndef MAX_SAMPLED
#define MAX_SAMPLED 1048576
#endif
#define GAPS 65536

/* Distances between samples in bytes, drawn at random. Filled by user space. */
BPF_F_TABLE("array", u32, u64, gaps, GAPS, MAP_MMAPABLE);

/* address -> nothing: sampled blocks that are live. */
BPF_F_TABLE("hash", u64, u64, sampled, MAX_SAMPLED, MAP_NO_PREALLOC);
#endif

/* Address spaces traced at the same time. */
#ifndef MAX_SPACES
#define MAX_SPACES 1
#endif

/* Slot -> address space. Read and written by user space through mmap. */
BPF_F_TABLE("array", u32, struct space, spaces, MAX_SPACES, MAP_MMAPABLE);

#ifdef FOLLOW
/* Processes whose slots are indexed by the low bits of their ids (a power of two). */
#define NEAR_SPACES 1024

/* Low bits of a tgid -> tgid << 32 | slot + 1 of the last such process. Written by user space
   through mmap. */
BPF_F_TABLE("array", u32, u64, near_spaces, NEAR_SPACES, MAP_MMAPABLE);

/* tgid -> slot in `spaces`. Processes that share memory share a slot. */
BPF_F_TABLE("hash", u32, u32, space_of, 2 * MAX_SPACES, 0);

/* tid -> enum fork_flag of the process that this thread has just created. Removed by user space. */
BPF_F_TABLE("hash", u32, u32, forks, MAX_FORKS, MAP_NO_PREALLOC);
#endif

/* 0 -> the control words. Read and written by user space through mmap. */
BPF_F_TABLE("array", u32, struct control, control, 1, MAP_MMAPABLE);
