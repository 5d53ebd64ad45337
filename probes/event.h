/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/*
 * What the probes tell user space: the layout of both rings, the counters and
 * the control words. tracelloc/record/abi.py mirrors every line of it; a test compiles
 * this file with the C compiler and compares sizes, offsets and values.
 */
#ifndef TRACELLOC_EVENT_H
#define TRACELLOC_EVENT_H

/* Longest call stack kept, in frames. Deeper ones are marked truncated. */
#ifndef MAX_FRAMES
#define MAX_FRAMES 127
#endif

/* What happened to a block. */
enum event_kind {
	EVENT_ALLOC = 1,        /* an allocator returned `address` */
	EVENT_FREE = 2,         /* `address` is about to be freed */
	EVENT_REALLOC_FREE = 3, /* `address` is about to be resized: free for now */
	EVENT_RESTORE = 4,      /* that resize failed: `address` lives on as it was */
	/* Made by user space, of an entry of map `spill`: */
	EVENT_LATE_ALLOC = 5,   /* an allocation at a past time, after which its thread may have
	                           done other things that come before this event */
	EVENT_INNER_FREE = 6,   /* as EVENT_FREE, made by another free: perhaps of a block that
	                           was never reported, being part of another one */
	/* In ring `mappings`, of memory from `address` on: */
	EVENT_MAP = 7,          /* it was mapped, in place of what was there */
	EVENT_UNMAP = 8,        /* it is about to be unmapped, as far as it is mapped */
	EVENT_UNMAP_FAILED = 9, /* that failed: what this thread was to unmap is still there */

	/* What happened to all blocks of a process: */
	EVENT_FORK = 14, /* this thread makes a child process with a copy of its memory */
};

/*
 * One slot of ring `events` (ring.h). `size_tag` holds the requested size in bits
 * 0-55 (user addresses end at 2^56), the event_kind in bits 56-59, in bit 60 the parity
 * of the epoch it belongs to (spill.h), and from bit 61 on the low bits of its lap.
 */
#define EVENT_SIZE_BITS 56
#define EVENT_KIND_MASK 0xf
#define EVENT_PARITY_BIT 60
#define EVENT_LAP_BIT 61

struct event {
	__u64 address;  /* of the block, in the target */
	__u64 size_tag; /* bytes asked for, kind, epoch; bytes are 0 for frees */
	__u64 stack_id; /* hash of the call stack; 0: not an allocation, or no stack */
	__u64 time_ns;  /* CLOCK_MONOTONIC at the last tick of the kernel's timer */
	__u32 tid;      /* thread that made the call (initial PID namespace) */
	__u32 image;    /* what the address is in: struct space */
};

/* Rings of events. */
enum event_ring {
	RING_EVENTS = 0,
	RING_MAPPINGS = 1,
};

#define RINGS 2

/* Two of each ring: slots that were reserved, slots that were taken. A cache line. */
struct position {
	__u64 count;
	__u64 unused[7];
};

/* What an entry of map `spill` says of its address since the epoch began (spill.h). */
enum spill_flag {
	SPILL_FREED = 1,    /* the block that user space knows of was freed */
	SPILL_BORN = 2,     /* the block that is described was allocated, and lives */
	SPILL_RESTORED = 4, /* the block that a resize took lives on; alone or with: */
	SPILL_TAKEN = 8,    /* a resize took the block that user space knows of; with
	                       SPILL_FREED or, where a restored block was taken, SPILL_RESTORED */
	SPILL_INNER = 16,   /* with SPILL_FREED: by a free inside another one */
};

/* Key of map `spill`. */
struct spill_key {
	__u64 address; /* of the block, in the target */
	__u32 image;   /* what it is in: struct space */
	__u32 parity;  /* of the epoch */
};

/* What is known of a block; the value of map `spill`. */
struct spilled {
	__u64 size;     /* bytes asked for; while SPILL_TAKEN: by which thread */
	__u64 stack_id; /* as in struct event; while SPILL_TAKEN: number of the taking, which
	                   is higher for a thread's later ones */
	__u64 time_ns;  /* of birth, or else of the last event */
	__u32 tid;      /* thread that allocated it, restored it or freed it */
	__u32 flags;    /* enum spill_flag */
};

/* Key of map `pairs`. */
struct pair_key {
	__u64 stack_id; /* of the allocations */
	__u64 size;     /* bytes of each block when sampling, else 0: of any size */
	__u32 image;
	__u32 parity; /* of the epoch */
};

/*
 * Value of map `pairs`: allocations whose frees followed, both seen by the spill map only.
 * Signed: a pair may turn out to be none in a later epoch than it was counted in.
 */
struct pair_sums {
	__s64 count;
	__s64 bytes;
	__u64 time_ns; /* of the birth of the last one */
};

/* Value of map `forks`: what the probes say of the process that a thread has made. */
enum fork_flag {
	FORK_SHARES = 1, /* it has its parent's memory until it executes a program (vfork), else a
	                    copy of it as it is now */
	FORK_MARKED = 2, /* EVENT_FORK has been sent */
};

/* What a probed function does, for its probes' cookies. */
enum function_kind {
	FUNCTION_ALLOC = 1,          /* f(size) -> block */
	FUNCTION_CALLOC = 2,         /* f(n, size) -> block */
	FUNCTION_POSIX_MEMALIGN = 3, /* f(out, size) -> errno */
	FUNCTION_REALLOC = 4,        /* f(block, size) -> block; the old one stays if it fails */
	FUNCTION_REALLOCF = 5,       /* the same, but the old one goes in any case */
	FUNCTION_REALLOCARRAY = 6,   /* f(block, n, size) -> block */
	FUNCTION_RESIZE = 7,         /* f(block, size) -> the size it has now */
	FUNCTION_FREE = 8,           /* f(block), which calls no other free */
	FUNCTION_OUTER_FREE = 9,     /* f(block), which may call another free */
	FUNCTION_MAP = 10,           /* f(size) -> start, as mmap */
	FUNCTION_UNMAP = 11,         /* f(start, size) -> 0 */
	FUNCTION_REMAP = 12,         /* f(old, old size, new size, flags) -> start */
	FUNCTION_SBRK = 13,          /* f(increment) -> old break */
	/* Not a function's entry: */
	FUNCTION_RETURN = 14, /* its return, where that has a probe of its own */
	FUNCTION_EXIT = 15,   /* a ret instruction of one that may throw */
};

/*
 * The cookie of a probe: function_kind in bits 0-3, whether the function may throw in bit 4,
 * from bit 8 on four bits for each argument with its position from 1 to 6, or 0 where all of
 * the function's blocks have the size in bits 44-63, and from bit 32 on where in its page the
 * probe is.
 */
#define COOKIE_KIND 0xf
#define COOKIE_THROWS 0x10 /* of an exit, too: 1 << COOKIE_THROWS_SHIFT */
#define COOKIE_THROWS_SHIFT 4
#define COOKIE_ARGUMENT_SHIFT 8
#define COOKIE_ARGUMENT_BITS 4
#define COOKIE_PLACE_SHIFT 32
#define COOKIE_PLACE_MASK 0xfff
#define COOKIE_SIZE_SHIFT 44

/*
 * The cookie of a probe on what a program reports by itself (otel.bpf.c): for each argument, from
 * the first one on, the number of a register (ax, bx, cx, dx, si, di, bp, sp, r8 … r15), and
 * whether the argument is in memory, so far from where that points.
 */
#define OTEL_PLACE_BITS 21
#define OTEL_REGISTER 0xf
#define OTEL_IN_MEMORY 0x10
#define OTEL_DISPLACEMENT_BITS 16 /* the upper ones */

/*
 * The bytes in `size_tag` of such an event: how many blocks the block stands for, in the lower
 * bits, and above them its size. That is (1 + mantissa / 2^12) * 2^exponent; the mantissa is in
 * the lower bits.
 */
#define WEIGHT_MANTISSA_BITS 12
#define WEIGHT_BITS 17
#define WEIGHT_MOST_EXPONENT 31
#define WEIGHED_SIZE_BITS 39

/* How a stack walk ended. */
enum stack_flag {
	STACK_TRUNCATED = 1,  /* deeper than MAX_FRAMES */
	STACK_UNREADABLE = 2, /* the next frame's memory could not be read */
	STACK_BROKEN = 4,     /* the next frame does not lie further up the stack */
	STACK_GUESSED = 8,    /* some callers were found by frame pointer, for want of better */
	STACK_LOST_MISS = 16, /* ring `misses` full: what is above could not be found */
	/* Set by user space, which finishes stacks that the probes could not. */
	STACK_SHORT_COPY = 32, /* it goes on beyond the memory that was copied */
	STACK_BAD_CFI = 64,    /* call-frame information that can't be used */
	STACK_UNMAPPED = 128,  /* an address where no code is mapped */
	/* What else it is. */
	STACK_PYTHON = 256, /* a struct python_stack */
	STACK_CODE = 512,   /* one that such a stack names, and no event */
	STACK_NAMES = 1024, /* no stack: a struct python_code */
};

/* One record of ring `stacks`: sent once per distinct stack, only the used frames. */
struct stack {
	__u64 stack_id; /* hash of lineage, flags and frames, never 0 */
	__u16 n_frames;
	__u16 flags;              /* enum stack_flag */
	__u32 image;              /* whose it was: struct space */
	__u64 frames[MAX_FRAMES]; /* return addresses, innermost first */
};

/* Most frames of Python in a stack. */
#define PYTHON_FRAMES 256
/* Part of a frame's first word: CPython's loop was entered for it. Alone: for those before. */
#define PYTHON_ENTRY 1
/* Programs that call each other where frames of Python are walked, by their places in the map. */
enum python_program {
	PYTHON_WALKER = 0,
	PYTHON_ALLOCATOR = 1, /* allocator_call */
	PYTHON_MAPPING = 2,   /* mapping_call */
	PYTHON_NAMER = 3,
};
#define PYTHON_PROGRAMS 4

/* From where on code objects are looked at to tell one from another. */
#define PYTHON_CODE_AT 24

/*
 * One record of ring `stacks` as well, told from struct stack by its flags: the stack of a
 * thread in CPython, sent once. Two words for each frame of Python, innermost first: where
 * its code object is, and PYTHON_ENTRY; how far it has come in it, in bytes, and from bit 32
 * on what the object is (python.h).
 */
struct python_stack {
	__u64 stack_id;
	__u16 n_words; /* from `code_id` on */
	__u16 flags;
	__u32 image;
	__u64 code_id; /* the stack of what CPython is made of */
	__u64 words[2 * PYTHON_FRAMES];
};

/* What is copied of a code object, its names, and its table of lines. */
#define PYTHON_OBJECT_BYTES 256
#define PYTHON_NAME_BYTES 256
#define PYTHON_FILE_BYTES 320
#define PYTHON_LINES_BYTES 2048

/* A piece of the program's memory: so many bytes as could be read. */
struct python_piece {
	__u64 address;
	__u64 n_bytes;
};

/*
 * One record of ring `stacks`, told by its flags, too: what a code object is called, copied
 * while it is certainly there. Before the first stack that has it in its frames.
 */
struct python_code {
	__u64 id; /* tells it from others */
	__u16 n_words; /* from `code` on */
	__u16 flags;
	__u32 image;
	__u64 code;     /* where it is */
	__u64 identity; /* as in a frame's second word, from bit 32 on */
	struct python_piece pieces[4]; /* of what follows */
	__u8 object[PYTHON_OBJECT_BYTES];
	__u8 name[PYTHON_NAME_BYTES];
	__u8 file[PYTHON_FILE_BYTES];
	__u8 lines[PYTHON_LINES_BYTES];
};

/* Registers that call-frame information may ask for, in a miss. */
enum miss_register {
	MISS_IP = 0,
	MISS_SP = 1,
	MISS_BP = 2,
	MISS_BX = 3,
	MISS_R12 = 4,
	MISS_R13 = 5,
	MISS_R14 = 6,
	MISS_R15 = 7,
	MISS_REGISTERS = 8,
};

/*
 * One record of ring `misses`: a stack that can't be followed because a row is missing.
 * User space finishes it from the registers and the copy of its memory that follows,
 * in pages, of which the first one holds the stack pointer.
 */
struct miss {
	__u64 stack_id;      /* made up for this record: what its event has */
	__u32 generation;    /* of the rows that were looked at */
	__u32 image;         /* what the addresses are in: struct space */
	__u64 missing;       /* address without a row: what makes others wait, too */
	__u64 stack_address; /* of the copy's first byte */
	__u32 stack_pages;   /* which of its pages could be copied: a bit for each */
	__u32 tid;
	__u64 registers[MISS_REGISTERS];
};

/* What went wrong or missing, counted since the start. Index into `counters`. */
enum counter {
	COUNTER_LOST_ALLOCS = 0,       /* no room for an event: an allocation unseen */
	COUNTER_LOST_FREES = 1,        /* no room for an event: a block looks alive that is not */
	COUNTER_LOST_RESTORES = 2,     /* no room for an event: a block looks freed that is not */
	COUNTER_LOST_STACKS = 3,       /* no room for a stack: sent again at its next occurrence */
	COUNTER_STACK_TABLE_FULL = 4,  /* `known_stacks` full: stacks are sent again and again */
	COUNTER_CALL_TABLE_FULL = 5,   /* `calls` full: a call of this thread went unseen */
	COUNTER_UNPAIRED_RETURNS = 6,  /* an allocator returned that was not seen to start */
	COUNTER_ABANDONED_CALLS = 7,   /* an allocator was left without returning (longjmp) */
	COUNTER_UNREADABLE_RESULTS = 8, /* posix_memalign's result could not be read */
	COUNTER_EARLIER_CALLS = 9,     /* calls that were under way when tracing began */
	COUNTER_SAMPLE_TABLE_FULL = 10, /* `sampled` full: a sampled block went unseen */
	COUNTER_MISSES = 11,            /* stacks that were left to user space to finish */
	COUNTER_LOST_MISSES = 12,       /* of these, ring `misses` was full: they are cut short */
	COUNTER_SPILLED = 13,           /* events that went to map `spill`, `events` being full */
	COUNTER_SPILL_REUSES = 14,      /* of these: allocations where a block was alive */
	COUNTER_SPILL_UNMATCHED = 15,   /* of these: frees where no block was alive */
	COUNTER_SPILL_ODD_RESTORES = 16, /* of these: failed resizes where nothing was taken */
	COUNTER_LOST_PAIRS = 17,        /* `pairs` full: missing from what was allocated and freed */
	COUNTER_LOST_INNER_FREES = 18, /* no room for a free inside another one: perhaps of no block */
	COUNTER_LOST_MAPPINGS = 19,     /* ring `mappings` full: a mapping or its end unseen */
	COUNTER_SKIPPED_RUNS = 20,      /* tracepoint programs that the kernel left out; user space
	                                   asks it, nothing is counted here */
	COUNTER_IMPOSSIBLE_SIZES = 21,  /* allocations left out: they would end beyond all memory */
	COUNTER_LOST_PYTHON_FRAMES = 22, /* stacks whose frames of Python could not be read, or not all */
	COUNTERS = 23,
};

/* What the probes report, as user space has it. */
enum reporting {
	REPORTING_STOPPED = 0, /* nothing */
	REPORTING_LIVE = 1,
	REPORTING_PAUSED = 2,  /* no allocation and no free, only programs that are begun */
};

/* Words that user space and the probes share through memory. One element. */
struct control {
	__u32 reporting;  /* enum reporting; set by user space */
	__u32 woken;      /* set when a wake-up is sent, cleared by the reader */
	__u64 clock;      /* CLOCK_MONOTONIC at a tick, and which tick (emit.h); cleared by the reader */
	__u64 epoch;      /* counts how often an overflow was dealt with; user space only */
	__u32 full[2];    /* by the epoch's parity: events go to map `spill`. Set by the probes,
	                     cleared by user space */
	__u32 tgid;       /* the process that is traced; not used with FOLLOW */
	__u32 stop_at_loads; /* whether a thread is to stop when the loader is done */
	__u64 kept_stacks; /* map `kept_stacks` holds some. Set by the probes, cleared by the reader */
	__u64 sessions;   /* 1: returns run the programs of entries that ask for it, else 0 */
};

/* Where CPython keeps its frames, in bytes; user space. */
struct python {
	__u64 interpreter;      /* where the address of the main interpreter is; 0: no CPython */
	__u64 namespace_device; /* the PID namespace of its thread ids, */
	__u64 namespace_inode;  /* or 0: as ours */
	__u16 threads;     /* in an interpreter: the newest thread; before it, how many were made */
	__u16 next;        /* in a thread's record: the next one */
	__u16 thread_id;   /* its id */
	__u16 frame;       /* its innermost frame, or: */
	__u16 has_inner;   /* what that points to has the frame, */
	__u16 inner;       /* there */
	__u16 code;        /* in a frame: its code object */
	__u16 previous;    /* its caller's frame */
	__u16 instruction; /* the instruction it has come to */
	__u16 entry;       /* the word with the byte that says whether the loop was entered for it, */
	__u16 entry_shift; /* the bits before that byte, */
	__u16 least_entry; /* which is at least this then */
	__u16 has_shims;   /* such a frame is none of Python's, but stands before them */
	__u16 has_no_versions; /* code objects have no number of their own */
	__u16 unused[2];
};

/* The same for one address space: what the probes need to know of it. */
struct space {
	__u64 tag;          /* generation << 16 | what the keys of its rows carry; user space */
	__u64 trampoline;   /* where the kernel sends hijacked returns; 0: not known yet */
	__u64 loader_state; /* address of the loader's r_debug.r_state; 0: not known */
	__u64 unloading;    /* the loader is unmapping; probes only. Where the process walks its own
	                       stacks: how many threads are in dlclose(3); the library */
	__u64 loads;        /* times that the loader has unmapped something; probes only */
	__u64 changes;      /* other such times, as user space has found out */
	__u32 image;        /* number of the memory image: another one after each exec */
	__u32 moves;        /* times that another thread than the first began a program */
	__u64 loader_calls; /* times that the loader was about to change what is mapped, or had */
	__u64 lineage;      /* the image that this one was forked off, over all forks, or its own:
	                       stacks have the same ids in both */
	struct python python;
};

/* Where in a space's tag the generation begins. The generation is loads + changes. */
#define TAG_BITS 16
/* Low bits of a tag on which the places of its rows depend. */
#define ROW_SALT_BITS 6

#endif
