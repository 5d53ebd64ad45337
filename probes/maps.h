/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* The BPF maps. Sizes are given by user space as macros (-D). */

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
/* Threads that ever allocated; entries of dead ones are removed by user space. */
#ifndef MAX_THREADS
#define MAX_THREADS 65536
#endif
/* Distinct stacks that are remembered as sent. */
#ifndef MAX_STACKS
#define MAX_STACKS 262144
#endif
#ifdef SPILL_ENTRIES
/* Stacks that wait beside their ring, 1 KiB each with 127 frames. */
#ifndef MAX_KEPT_STACKS
#define MAX_KEPT_STACKS 16384
#endif
/* Stacks, and sizes when sampling, whose pairs are counted in one epoch. */
#ifndef MAX_PAIRS
#define MAX_PAIRS 65536
#endif
#endif

/* Bytes of stack memory that are read at once, at most. */
#define STACK_WINDOW PAGE_SIZE
/* A frame: the caller's frame pointer, and above it the return address. */
#define STACK_FRAME_BYTES 16

/* Processors that have scratch memory of their own; others share it. */
#ifndef PROCESSORS
#define PROCESSORS 64
#endif
/* Scratch memories of each: more than one walk is under way where one was preempted. */
#define SCRATCHES 2
/*
 * Further ones for all: with many more threads than processors, many may be preempted in the
 * middle of a walk.
 */
#define SHARED_SCRATCHES 128

/*
 * Stack ids that are remembered by their low bits (a power of two): finding one there
 * costs a tenth of a look-up in `known_stacks`.
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
 * Rows by the byte before a return address: a key may lie in any of its set's ways, and
 * the row of the same number belongs to it. A cache line. Written by user space, row
 * before key; 0 is no key.
 */
struct row_set {
	__u64 keys[ROW_WAYS];
	__u64 rows[ROW_WAYS];
};

/*
 * Keys are addresses, below 2^48, with the tag of the address space and its generation
 * above them. The address and the tag's low bits say which set: programs that lie at fixed
 * addresses don't want the same sets, and rows can be given another tag with the same low
 * bits where they are. Tag 0 belongs to nobody.
 */
#define KEY_TAG_SHIFT 48

/*
 * The key of a region of 64 KiB that is generated code throughout: one row is for all of
 * its addresses that have none of their own. Addresses of programs are below 2^47.
 */
#define REGION_SHIFT 16
#define REGION_KEY(address) ((address) >> REGION_SHIFT | 1ULL << 47)

/* Ring of struct miss, in pages: 16 MiB hold 800 of the smaller ones. */
#ifndef MISSES_PAGES
#define MISSES_PAGES 4096
#endif
/* Pages of stack in a miss, the one with the stack pointer included. */
#define SMALL_MISS_PAGES 5
#define LARGE_MISS_PAGES 17

struct small_miss {
	struct miss miss;
	__u8 stack[SMALL_MISS_PAGES * PAGE_SIZE];
};

struct large_miss {
	struct miss miss;
	__u8 stack[LARGE_MISS_PAGES * PAGE_SIZE];
};
#endif

/* What became of the free that realloc begins with: what is to be done if it fails. */
enum taking {
	TAKING_REPORTED = 0,  /* user space has the block, or will have: EVENT_RESTORE */
	TAKING_KEPT = 1,      /* all that is known of the block is in `taken` */
	TAKING_UNMATCHED = 2, /* no block was there: is no longer counted */
	TAKING_LOST = 3,      /* the block was not freed for anybody: is no longer counted */
};

/* The outermost allocator call that a thread is in. */
struct call {
	__u64 sp;      /* stack pointer at entry; 0: not in an allocator */
	__u64 last_sp; /* of the last call that was completed */
	__u64 size;    /* bytes asked for; all ones: does not fit into 64 bits */
	__u64 old;     /* block that realloc was given */
	__u64 out;     /* where posix_memalign writes its result; the block to be resized in place;
	                  how much is mapped, while `old` and `size` are what is unmapped */
	__u64 return_address; /* 0: a return probe has taken its place on the stack */
	__u64 ip;      /* where its entry probe is, if it has no return probe */
	__u64 left;    /* a call was left without returning: a return may come that no record is for */
	__u64 free_sp; /* stack pointer at the last entry of a free that may call another */
	__u64 free_ip; /* where that free's probe is */
	__u64 free_return; /* its return address */
	__u64 until_sample; /* bytes until this thread's next sample; 0: not drawn yet */
	__u32 kind;    /* enum function_kind */
	__u32 hidden;  /* size outside of what the user wants to see */
	__u64 taking;  /* enum taking, of `old` */
	__u64 takings; /* counts the blocks that realloc took; never starts lower again */
	struct spilled taken; /* while TAKING_KEPT */
	__u64 result;  /* what the call made, while that is reported */
#ifdef PYTHON
	__u32 python_scratch; /* the scratch memory that its frames of Python are in, from 1 on, or 0 */
	__u32 python_walked;  /* 1: they are, and the program that reports the call is begun again */
	__u64 python_thread; /* CPython's record of the thread; 0: none is known */
	__u64 python_made;   /* threads that CPython had made when it was looked for last */
	__u64 python_looks;  /* times that it was missing since then */
#endif
};

#ifdef USE_ROWS
/*
 * Whether walks are remembered: not deep ones, which are so much for the verifier that it
 * would refuse them together with that.
 */
#define REMEMBERS (MAX_FRAMES <= 127)
/* Walks that are remembered (a power of two), and the most words that one goes by (likewise). */
#define MEMOS (REMEMBERS ? 32 : 1)
#define MEMO_WORDS 128

/* A walk that was made (memo.h). */
struct memo {
	__u64 sp;       /* where it began; 0: nothing is remembered */
	__u64 pc;
	__u64 bp;       /* as far as it mattered: */
	__u64 bp_mask;  /* all ones, or 0 */
	__u64 state;    /* of what was mapped: the tag of struct space */
	__u64 owner;    /* whose stack it was: image and lineage of struct space */
	__u64 stack_id; /* of what was found */
	__u64 n_words;
	/* While it is made: */
	__u64 from_sp;        /* where it begins */
	__u64 far;            /* not 0: a word was too far away, or the walk is not to be remembered */
	__u64 bp_at_start;    /* 1 while bp is as it was in the beginning */
	__u64 bp_unnoted;     /* 1 while bp is what was read last and has not been used, */
	__u64 saved_bp;       /* namely this, */
	__u64 saved_bp_address; /* from there */
	__u64 words[MEMO_WORDS];  /* what was read, */
	__u32 places[MEMO_WORDS]; /* in bytes above `sp` */
};
#endif

#ifdef PYTHON
/* Bytes that are read at once before a frame: its callers mostly lie there. A power of two. */
#define PYTHON_WINDOW 2048
/* What is read of a frame itself, or more. */
#define PYTHON_SLACK 256
#endif

/* What walking a stack works with: too large for a program's own stack (scratch.h). */
struct scratch {
	__u64 taken; /* by a program */
	__u64 recent[RECENT_STACKS]; /* ids among the last ones here, known to be sent */
	struct stack stack;
#ifdef PYTHON
	struct python_stack python;
	__u64 python_frame; /* the frame to be read next */
	__u64 python_hash;  /* of those that were */
	__u64 python_base;  /* address of the first byte in `python_window` */
	__u64 python_last;  /* a frame that begins after that byte, but not later than this, is there */
	__u64 python_named; /* frames whose names user space has, or will have */
	__u64 python_unsent; /* 1: not so, for want of room */
	__u8 python_window[PYTHON_WINDOW + PYTHON_SLACK];
	struct python_code python_code;
#endif
#ifdef USE_ROWS
	__u64 loaded;   /* bytes of the stack that are in `window` */
	__u64 base;     /* address of the first one */
	__u64 bad;      /* not 0: something of the stack could not be read */
	__u64 guessed;  /* STACK_GUESSED, or 0 */
	struct memo memos[MEMOS];
#endif
	__u8 window[STACK_WINDOW + STACK_FRAME_BYTES]; /* the part of the stack that is looked at */
};

/* Where each ring of events is (ring.h). Read and written by user space through mmap. */
BPF_F_TABLE("array", u32, struct position, positions, 2 * RINGS, MAP_MMAPABLE);

/* Blocks that come and go: slot -> event. Reader: tracelloc/record/kernel/ring.py. */
BPF_F_TABLE("array", u32, struct event, events, EVENTS, MAP_MMAPABLE);

/* Wakes the reader up; what is in it says nothing. */
BPF_RINGBUF_OUTPUT(wakeups, 1);

#ifdef SPILL_ENTRIES
/*
 * address, process, parity of the epoch -> what became of blocks there since `events` was
 * full in that epoch. Read and emptied by user space. Memory is taken for what is in it
 * only, about 128 bytes an entry.
 */
BPF_F_TABLE("hash", struct spill_key, struct spilled, spill, SPILL_ENTRIES, MAP_NO_PREALLOC);

/*
 * stack id -> stacks that ring `stacks` had no room for; their frames never change, so
 * there is no order to keep. Read and emptied by user space.
 */
BPF_F_TABLE("hash", u64, struct stack, kept_stacks, MAX_KEPT_STACKS, MAP_NO_PREALLOC);

/* stack, process, parity -> blocks that came and went without user space's seeing them. */
BPF_F_TABLE("hash", struct pair_key, struct pair_sums, pairs, MAX_PAIRS, MAP_NO_PREALLOC);
#endif

#ifdef PYTHON
/* enum python_program -> what walks frames of Python, and whom it goes back to (python.h). User
   space; one for each kind of link. */
BPF_TABLE("prog", u32, u32, python_programs, PYTHON_PROGRAMS);
#endif

#ifdef TRACE_MAPPINGS
#ifndef MAPPINGS
#define MAPPINGS 65536
#endif

/* What is mapped and unmapped: slot -> event. Reader: tracelloc/record/kernel/ring.py. */
BPF_F_TABLE("array", u32, struct event, mappings, MAPPINGS, MAP_MMAPABLE);
#endif

/* Stacks that events name by id, each sent once. */
BPF_RINGBUF_OUTPUT(stacks, STACKS_PAGES);

/* pid_tgid -> the call this thread is in. Not preallocated. */
BPF_F_TABLE("hash", u64, struct call, calls, MAX_THREADS, MAP_NO_PREALLOC);

/* One entry of zeros, never written: what new entries of `calls` start as. */
BPF_F_TABLE("array", u32, struct call, no_call, 1, 0);

/* Scratch memories of all processors, one processor's after the other's. */
BPF_F_TABLE("array", u32, struct scratch, scratches, PROCESSORS * SCRATCHES + SHARED_SCRATCHES, 0);

#ifdef USE_ROWS
/* Number of a set -> rows. Read and written by user space through mmap. */
BPF_F_TABLE("array", u32, struct row_set, rows, ROW_SETS, MAP_MMAPABLE);

/* Stacks that are left to user space. Reader: tracelloc/record/kernel/ring.py. */
BPF_RINGBUF_OUTPUT(misses, MISSES_PAGES);
#endif

/* stack id -> nothing: stacks that ring `stacks` has carried. */
BPF_F_TABLE("hash", u64, u64, known_stacks, MAX_STACKS, MAP_NO_PREALLOC);

/* enum counter -> number of times, only growing. Read by user space through mmap. */
BPF_F_TABLE("array", u32, u64, counters, COUNTERS, MAP_MMAPABLE);

#ifdef SAMPLE_BYTES
/* Sampled blocks that are alive: some hundred thousand are plenty for any estimate. */
#ifndef MAX_SAMPLED
#define MAX_SAMPLED 1048576
#endif
#define GAPS 65536

/* Distances between samples in bytes, to be drawn from. Filled by user space. */
BPF_F_TABLE("array", u32, u64, gaps, GAPS, MAP_MMAPABLE);

/* address -> nothing: blocks that were sampled and are not freed. */
BPF_F_TABLE("hash", u64, u64, sampled, MAX_SAMPLED, MAP_NO_PREALLOC);
#endif

/* Address spaces that are traced at a time. */
#ifndef MAX_SPACES
#define MAX_SPACES 1
#endif

/* Slot -> address space. Read and written by user space through mmap. */
BPF_F_TABLE("array", u32, struct space, spaces, MAX_SPACES, MAP_MMAPABLE);

#ifdef FOLLOW
/* Processes whose slots are found by the low bits of their ids (a power of two). */
#define NEAR_SPACES 1024

/* Low bits of a tgid -> tgid << 32 | slot + 1 of the last such process. Written by user space
   through mmap. */
BPF_F_TABLE("array", u32, u64, near_spaces, NEAR_SPACES, MAP_MMAPABLE);

/* tgid -> slot in `spaces`. Processes that share memory share a slot. */
BPF_F_TABLE("hash", u32, u32, space_of, 2 * MAX_SPACES, 0);

/* tid -> enum fork_flag, of what this thread has just made. Removed by user space. */
BPF_F_TABLE("hash", u32, u32, forks, MAX_THREADS, MAP_NO_PREALLOC);
#endif

/* 0 -> the control words. Read and written by user space through mmap. */
BPF_F_TABLE("array", u32, struct control, control, 1, MAP_MMAPABLE);
