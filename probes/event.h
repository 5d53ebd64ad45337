/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/*
 * The interface between the probes and user space: the layout of both rings, the counters
 * and the control words. tracelloc/record/abi.py mirrors all of it; a test compiles this
 * file with the C compiler and compares sizes, offsets and values.
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
	EVENT_REALLOC_FREE = 3, /* `address` is about to be resized: freed unless that fails */
	EVENT_RESTORE = 4,      /* the resize failed: the block at `address` stays live */
	/* Created by user space from an entry of map `spill`: */
	EVENT_LATE_ALLOC = 5,   /* an earlier allocation; later events of its thread may come
	                           before this one */
	EVENT_INNER_FREE = 6,   /* EVENT_FREE inside another free: the block may be part of
	                           another one and may never have been reported */
	/* In ring `mappings`, for memory from `address` on: */
	EVENT_MAP = 7,          /* the range was mapped and replaced any older mapping */
	EVENT_UNMAP = 8,        /* the range is about to be unmapped; parts may not be mapped */
	EVENT_UNMAP_FAILED = 9, /* the unmapping failed: the range is still mapped */

	/* For all blocks of a process: */
	EVENT_PART = 13, /* a part of its run begins or ends; `address`: enum part_mark */
	EVENT_FORK = 14, /* this thread creates a child process with a copy of its memory */
};

/*
 * One slot of ring `events` (ring.h). `size_tag` holds the requested size in bits
 * 0-55 (user addresses end at 2^56), the event_kind in bits 56-59, the parity of its epoch
 * (spill.h) in bit 60, and the low bits of its lap from bit 61 on.
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
	__u32 image;    /* memory image of the address: struct space */
};

/* What marks parts of a run, such as tests, that a program itself tells apart. */
enum part_mark {
	/* The size is the limit of the peak, in bytes, plus 1; 0: there is none. */
	PART_END = 1,
	/* The size is the part's number. What earlier parts have left is forgotten: */
	PART_PLAIN = 2,  /* without call stacks */
	PART_STACKS = 3, /* with call stacks */
	PART_KEEPS = 4,  /* likewise, and what earlier parts have left is kept for a search */
};

/* Rings of events. */
enum event_ring {
	RING_EVENTS = 0,
	RING_MAPPINGS = 1,
};

#define RINGS 2

/* Each ring has two: slots reserved, and slots taken by the reader. One cache line. */
struct position {
	__u64 count;
	__u64 unused[7];
};

/* Changes at an address since its epoch began, in an entry of map `spill` (spill.h). */
enum spill_flag {
	SPILL_FREED = 1,    /* the block known to user space was freed */
	SPILL_BORN = 2,     /* the described block was allocated and is live */
	SPILL_RESTORED = 4, /* a resize of the block failed: it stays live; alone or with: */
	SPILL_TAKEN = 8,    /* a resize took the block known to user space; with SPILL_FREED, or
	                       with SPILL_RESTORED if an earlier resize of it had failed */
	SPILL_INNER = 16,   /* with SPILL_FREED: freed by a free inside another one */
};

/* Key of map `spill`. */
struct spill_key {
	__u64 address; /* of the block, in the target */
	__u32 image;   /* its memory image: struct space */
	__u32 parity;  /* of the epoch */
};

/* Description of a block: the value of map `spill`. */
struct spilled {
	__u64 size;     /* bytes requested; with SPILL_TAKEN: id of the resizing thread */
	__u64 stack_id; /* as in struct event; with SPILL_TAKEN: number of the resize, which
	                   grows with each resize of a thread */
	__u64 time_ns;  /* of the allocation, or else of the last event */
	__u32 tid;      /* thread that allocated it, restored it or freed it */
	__u32 flags;    /* enum spill_flag */
};

/* Key of map `pairs`. */
struct pair_key {
	__u64 stack_id; /* of the allocations */
	__u64 size;     /* bytes of each block when sampling, else 0 for all sizes */
	__u32 image;
	__u32 parity; /* of the epoch */
};

/*
 * Value of map `pairs`: allocations and their frees, both recorded only in the spill map.
 * Signed: a later epoch may subtract a pair that an earlier one counted.
 */
struct pair_sums {
	__s64 count;
	__s64 bytes;
	__u64 time_ns; /* of the last allocation */
};

/* Value of map `forks`: properties of the process that a thread has created. */
enum fork_flag {
	FORK_SHARES = 1, /* it shares its parent's memory until it executes a program (vfork);
	                    otherwise it has a copy of it at this time */
	FORK_MARKED = 2, /* EVENT_FORK has been sent */
};

/* Behavior of a probed function, in its probes' cookies. */
enum function_kind {
	FUNCTION_CACHE_DRAIN = 0,    /* frees a thread's cached blocks, which the program has freed */
	FUNCTION_ALLOC = 1,          /* f(size) -> block */
	FUNCTION_CALLOC = 2,         /* f(n, size) -> block */
	FUNCTION_POSIX_MEMALIGN = 3, /* f(out, size) -> errno */
	FUNCTION_REALLOC = 4,        /* f(block, size) -> block; on failure the old one stays */
	FUNCTION_REALLOCF = 5,       /* likewise, but on failure the old one is freed */
	FUNCTION_REALLOCARRAY = 6,   /* f(block, n, size) -> block */
	FUNCTION_RESIZE = 7,         /* f(block, size) -> the block's size afterwards */
	FUNCTION_FREE = 8,           /* f(block), which calls no other free */
	FUNCTION_OUTER_FREE = 9,     /* f(block), which may call another free */
	FUNCTION_MAP = 10,           /* f(size) -> start, as mmap */
	FUNCTION_UNMAP = 11,         /* f(start, size) -> 0 */
	FUNCTION_REMAP = 12,         /* f(old, old size, new size, flags) -> start */
	FUNCTION_SBRK = 13,          /* f(increment) -> old break */
	/* Not a function's entry: */
	FUNCTION_RETURN = 14, /* the function's return, if that has its own probe */
	FUNCTION_EXIT = 15,   /* a ret instruction of a function that may throw */
};

/*
 * The cookie of a probe: bits 0-3 hold the function_kind, and bit 4 says whether the function
 * may throw. From bit 8 on, four bits per argument hold its position from 1 to 6, or 0 if all of
 * the function's blocks have the size in bits 44-63. From bit 32 on, twelve bits hold the
 * probe's offset in its page. From bit 24 on, eight bits say where the function stores its return
 * address, if calls leave that in a register: in words below the stack pointer at entry; 0: unknown.
 */
#define COOKIE_KIND 0xf
#define COOKIE_THROWS 0x10 /* also set for exits: 1 << COOKIE_THROWS_SHIFT */
#define COOKIE_THROWS_SHIFT 4
#define COOKIE_ARGUMENT_SHIFT 8
#define COOKIE_ARGUMENT_BITS 4
#define COOKIE_SLOT_SHIFT 24
#define COOKIE_SLOT_MASK 0xff
#define COOKIE_PLACE_SHIFT 32
#define COOKIE_PLACE_MASK 0xfff
#define COOKIE_SIZE_SHIFT 44

/*
 * Where an argument of a USDT probe is (usdt.bpf.c): the sum of `constant`, of a register and of
 * another one shifted, or what is in memory at that address. Registers are numbers of words in
 * struct pt_regs.
 */
#define USDT_NO_REGISTER 0xff
struct usdt_argument {
	__u64 constant;
	__u8 base;      /* a register, or USDT_NO_REGISTER */
	__u8 index;     /* likewise */
	__u8 shift;     /* of the index, in bits */
	__u8 in_memory; /* whether the sum is an address */
	__u8 skip_bits; /* low bits of the sum that are not part of the argument */
	__u8 bytes;     /* 1 to 8; 0: there is no such argument, its value is 0 */
	__u8 is_signed;
	__u8 unused;
};

/* Where the arguments of one place of a probe are. Its cookie is the index in map `usdt_probes`. */
struct usdt_probe {
	struct usdt_argument pointer;
	struct usdt_argument size;
	struct usdt_argument weight; /* bytes that the block stands for */
	struct usdt_argument device; /* number of the GPU */
};
#define USDT_PROBES 4096

/*
 * The size in `size_tag`, if a program weighs what it reports. The lower bits are the weight, the number of blocks
 * that this block represents: (1 + mantissa / 2^12) * 2^exponent, with the mantissa in the lowest
 * bits. The upper bits are the block's size.
 */
#define WEIGHT_MANTISSA_BITS 12
#define WEIGHT_BITS 17
#define WEIGHT_MOST_EXPONENT 31
#define WEIGHED_SIZE_BITS 39

/* How a stack walk ended. */
enum stack_flag {
	STACK_TRUNCATED = 1,  /* deeper than MAX_FRAMES */
	STACK_UNREADABLE = 2, /* the next frame's memory could not be read */
	STACK_BROKEN = 4,     /* the next frame is not further up the stack */
	STACK_GUESSED = 8,    /* some callers were found by frame pointer, for lack of CFI */
	STACK_LOST_MISS = 16, /* ring `misses` full: the callers above are unknown */
	/* Set by user space, which finishes stacks that the probes could not. */
	STACK_SHORT_COPY = 32, /* the stack continues beyond the copied memory */
	STACK_BAD_CFI = 64,    /* unusable call-frame information */
	STACK_UNMAPPED = 128,  /* an address where no code is mapped */
	/* Type of the record. */
	STACK_PYTHON = 256, /* a struct python_stack */
	STACK_CODE = 512,   /* named by a struct python_stack and by no event */
	STACK_NAMES = 1024, /* no stack: a struct python_code */
	/* Set by user space. */
	STACK_EARLIER = 2048, /* no stack: what blocks from before tracing have in common */
	/* Passes code that may be unmapped: a last word behind the frames is the generation. */
	STACK_DATED = 4096,
	/* In a test: words are the id of the code's stack, and a Python frame as in python_stack. */
	STACK_PLACED = 8192,
};

/* One record of ring `stacks`: sent once per distinct stack, only the used frames. */
struct stack {
	__u64 stack_id; /* hash of lineage, flags and frames, never 0 */
	__u16 n_frames;
	__u16 flags;                  /* enum stack_flag */
	__u32 image;                  /* memory image of its process: struct space */
	__u64 frames[MAX_FRAMES + 1]; /* return addresses, innermost first */
};

/* Most Python frames in a stack. */
#define PYTHON_FRAMES 256
/* Bit of a frame's first word: CPython entered its loop for it. A word of this bit alone stands
   for an entry of the loop for the frames before it. */
#define PYTHON_ENTRY 1
/* The programs that walk Python frames, by their index in the map. They tail-call each other. */
enum python_program {
	PYTHON_WALKER = 0,
	PYTHON_ALLOCATOR = 1, /* allocator_call */
	PYTHON_MAPPING = 2,   /* mapping_call */
	PYTHON_NAMER = 3,
};
#define PYTHON_PROGRAMS 4

/* Offset from which code objects are read to distinguish them. */
#define PYTHON_CODE_AT 24

/*
 * Another record of ring `stacks`, distinguished from struct stack by its flags: the stack of a
 * thread in CPython, sent once. Each Python frame has two words, innermost first. The first is
 * the address of its code object, with PYTHON_ENTRY. The second holds the offset of its current
 * instruction in bytes and, from bit 32 on, the identity of the code object (python.bpf.c).
 */
struct python_stack {
	__u64 stack_id;
	__u16 n_words; /* from `code_id` on */
	__u16 flags;
	__u32 image;
	__u64 code_id; /* id of the native stack */
	__u64 device;  /* 1 + number of the GPU that has the block; 0: none */
	__u64 words[2 * PYTHON_FRAMES];
};

/* Bytes copied of a code object, its names, and its line table. */
#define PYTHON_OBJECT_BYTES 256
#define PYTHON_NAME_BYTES 256
#define PYTHON_FILE_BYTES 320
#define PYTHON_LINES_BYTES 2048

/* A copied piece of the program's memory: its address and the bytes that were readable. */
struct python_piece {
	__u64 address;
	__u64 n_bytes;
};

/*
 * Another record of ring `stacks`, distinguished by its flags: the names of a code object, copied
 * while the object is certainly alive, and sent before the first stack with a frame of it.
 */
struct python_code {
	__u64 id; /* of this record */
	__u16 n_words; /* from `code` on */
	__u16 flags;
	__u32 image;
	__u64 code;     /* address of the object */
	__u64 identity; /* as in a frame's second word, from bit 32 on */
	struct python_piece pieces[4]; /* of the four copies below */
	__u8 object[PYTHON_OBJECT_BYTES];
	__u8 name[PYTHON_NAME_BYTES];
	__u8 file[PYTHON_FILE_BYTES];
	__u8 lines[PYTHON_LINES_BYTES];
};

/* Registers in a miss: those that call-frame information may use. */
enum miss_register {
	MISS_IP = 0,
	MISS_SP = 1,
	MISS_BP = 2, /* 64-bit Arm: x29 */
	MISS_OTHERS = 3, /* rbx, r12 to r15; 64-bit Arm: x19 to x28 */
#if defined(__aarch64__) || defined(__TARGET_ARCH_arm64)
	MISS_REGISTERS = 13,
#else
	MISS_REGISTERS = 8,
#endif
};

/*
 * One record of ring `misses`: a stack that cannot be unwound because a row is missing.
 * User space finishes it from the registers and from the copy of the stack's pages that
 * follows. The first page holds the stack pointer.
 */
struct miss {
	__u64 stack_id;      /* made up for this record; its event carries it, too */
	__u32 generation;    /* of the rows that the walk used */
	__u32 image;         /* memory image of the addresses: struct space */
	__u64 missing;       /* address without a row; other stacks may wait for the same row */
	__u64 stack_address; /* of the copy's first byte */
	__u32 stack_pages;   /* pages that were copied, one bit each */
	__u32 tid;
	__u64 registers[MISS_REGISTERS];
};

/*
 * Another record of ring `misses`, distinguished by `stack_id` of 0: a library that the loader
 * has just mapped, at `stack_address` (l_addr in <link.h>). The program may unmap it before user space
 * reads the mappings.
 */
struct loaded_library {
	struct miss miss;
	char path[256];
};

/* Errors and losses, counted since the start. Index into `counters`. */
enum counter {
	COUNTER_LOST_ALLOCS = 0,       /* no room for an event: an allocation is missing */
	COUNTER_LOST_FREES = 1,        /* no room for an event: a freed block looks live */
	COUNTER_LOST_RESTORES = 2,     /* no room for an event: a live block looks freed */
	COUNTER_LOST_STACKS = 3,       /* no room for a stack: sent again at its next occurrence */
	COUNTER_STACK_TABLE_FULL = 4,  /* `known_stacks` full: stacks are sent repeatedly */
	COUNTER_CALL_TABLE_FULL = 5,   /* no slot in `threads`: a call of this thread is missing */
	COUNTER_UNPAIRED_RETURNS = 6,  /* an allocator returned whose entry is not on record */
	COUNTER_ABANDONED_CALLS = 7,   /* an allocator was left without returning (longjmp) */
	COUNTER_UNREADABLE_RESULTS = 8, /* posix_memalign's result could not be read */
	COUNTER_EARLIER_CALLS = 9,     /* calls that were under way when tracing began */
	COUNTER_SAMPLE_TABLE_FULL = 10, /* `sampled` full: a sampled block is missing */
	COUNTER_MISSES = 11,            /* stacks that user space has to finish */
	COUNTER_LOST_MISSES = 12,       /* stacks cut short because ring `misses` was full */
	COUNTER_SPILLED = 13,           /* events that went to map `spill`, `events` being full */
	COUNTER_SPILL_REUSES = 14,      /* spilled allocations at the address of a live block */
	COUNTER_SPILL_UNMATCHED = 15,   /* spilled frees at an address without a live block */
	COUNTER_SPILL_ODD_RESTORES = 16, /* spilled failed resizes that had not taken a block */
	COUNTER_LOST_PAIRS = 17,        /* `pairs` full: pairs missing from the totals */
	COUNTER_LOST_INNER_FREES = 18, /* no room for a free inside another, perhaps of no block */
	COUNTER_LOST_MAPPINGS = 19,     /* ring `mappings` full: an event is missing */
	COUNTER_SKIPPED_RUNS = 20,      /* tracepoint programs that the kernel skipped; user space
	                                   gets the number from the kernel, not from here */
	COUNTER_IMPOSSIBLE_SIZES = 21,  /* allocations ignored: they would end beyond all memory */
	COUNTER_LOST_PYTHON_FRAMES = 22, /* stacks of which some Python frames were unreadable */
	COUNTERS = 23,
};

/* What the probes report; set by user space. */
enum reporting {
	REPORTING_STOPPED = 0, /* nothing */
	REPORTING_LIVE = 1,
	REPORTING_PAUSED = 2,  /* only execs: no allocations and no frees */
};

/* Words that user space and the probes share through memory. One element. */
struct control {
	__u32 reporting;  /* enum reporting; set by user space */
	__u32 woken;      /* set when a wake-up is sent, cleared by the reader */
	__u64 clock;      /* time and number of a tick (emit.h); cleared by the reader */
	__u64 epoch;      /* number of overflows handled so far; set by user space only */
	__u32 full[2];    /* by the epoch's parity: events go to map `spill`. Set by the probes,
	                     cleared by user space */
	__u32 tgid;       /* the traced process; unused with FOLLOW */
	__u32 stop_at_loads; /* whether a thread stops when the loader has finished */
	__u64 kept_stacks; /* map `kept_stacks` has entries. Set by probes, cleared by the reader */
	__u64 sessions;   /* 1 if entry programs decide whether the return is trapped, else 0 */
};

/* Offsets of CPython's frame structures in bytes; set by user space. */
struct python {
	__u64 interpreter;      /* address of the pointer to the main interpreter; 0: no CPython */
	__u64 namespace_device; /* the PID namespace of its thread ids, */
	__u64 namespace_inode;  /* or 0 for the namespace of current_id (space.h) */
	__u16 threads;     /* in an interpreter: the newest thread; before it, the number created */
	__u16 next;        /* in a thread's record: the next one */
	__u16 thread_id;   /* its id */
	__u16 frame;       /* its innermost frame, or: */
	__u16 has_inner;   /* whether `frame` points to a structure with the frame's pointer, */
	__u16 inner;       /* and its offset there */
	__u16 code;        /* in a frame: its code object */
	__u16 previous;    /* its caller's frame */
	__u16 instruction; /* its current instruction */
	__u16 entry;       /* the word with the byte that says whether the loop was entered for it, */
	__u16 entry_shift; /* the bits below that byte, */
	__u16 least_entry; /* and the byte's lowest value if the loop was entered */
	__u16 has_shims;   /* whether such an entry frame belongs to no Python function */
	__u16 has_no_versions; /* whether code objects have no version numbers */
	__u16 head;        /* without the GIL: bytes that each object has more at its beginning */
	__u16 unused;
};

/* One address space, as the probes and user space share it. */
struct space {
	__u64 tag;          /* generation << 16 | tag in the keys of its rows; user space */
	__u64 trampoline;   /* where the kernel sends hijacked returns; 0: not known yet */
	__u64 loader_state; /* address of the loader's r_debug.r_state; 0: not known */
	__u64 unloading;    /* the loader is unmapping; probes only. With the preloaded library:
	                       number of threads in dlclose(3); the library */
	__u64 loads;        /* number of unmappings by the loader; probes only */
	__u64 changes;      /* number of other unmappings that user space has found */
	__u32 image;        /* number of the memory image; changes at each exec */
	__u32 moves;        /* execs by a thread other than the first one */
	__u64 first_library; /* the loader's record (struct link_map) of the last library that stays
	                        mapped; user space. 0: unknown */
	__u64 sent_library; /* likewise, of the last one sent in this generation; probes only */
	__u64 loader_calls; /* calls of the loader's hook, before and after each change */
	__u64 lineage;      /* the image at the start of its chain of forks, or its own image:
	                       stacks have the same ids in both */
	__u64 tag_image;    /* the image of `tag`; set after `tag`, by user space */
	struct python python;
};

/* First bit of the generation in a space's tag. The generation is loads + changes. */
#define TAG_BITS 16
/* Low bits of a tag that select the sets of its rows. */
#define ROW_SALT_BITS 6

#endif
