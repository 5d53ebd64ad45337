/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/*
 * libtracelloc.so: reports allocations and frees of the process that it is preloaded in, through
 * memory that it shares with the profiler (area.h), in the records of the probes (event.h).
 *
 * Contract
 *   Defines malloc and its kin, and what other malloc libraries have beside them (others.h). Calls
 *   the next definition in the order of symbols, which it finds by itself: nothing of the C library
 *   is called but dl_iterate_phdr(3). If the program calls another malloc before this one, it says
 *   so, and nobody will want events.
 *   System calls are made when the process begins, when a ring is taken, where a stack grows
 *   into pages never seen, and where a thread has to wait; none of them changes errno. Nothing
 *   allocates. Idle, a call costs two loads and a jump.
 *
 * Whether anybody wants events
 *   `holder` in the shared page says so; if the profiler dies, the kernel clears it. Each call
 *   looks once, at its beginning, and whether OpenTelemetry's profiler does (otel.h). A forked
 *   child finds zeros in `guard` (MADV_WIPEONFORK) and is idle, and does not have the shared
 *   memory (MADV_DONTFORK; see fork_by); a child of vfork(2) has its parent's memory, and
 *   reports for it.
 *
 * Order
 *   A free is stamped before it happens, an allocation after it has happened. Let event x of an
 *   address come before event y of it, in another thread: the block was handed over, either
 *   within the malloc library (x a free, y an allocation) or by the program (x an allocation, y a
 *   free). Then x's thread has written something after stamping x that y's thread has read before
 *   stamping y. The stamp comes from
 *     - the time stamp counter, where the kernel finds that all processors' run as one (it
 *       lists `tsc` among its clock sources). lfence lets it be read only after all loads before
 *       it are done, and x's write is seen by others only after x's stamp was read, as
 *       instructions retire in order. The handing over takes longer than a step of the counter;
 *     - or a counter in the shared memory, for each event one more, by a locked addition: its
 *       order is that of the additions.
 *   So x has the lower stamp. Within a ring stamps grow.
 *
 * The cut
 *   A slot is reserved before it is stamped. The profiler reads the clock (T), then makes all
 *   threads of the process pass a memory barrier (membarrier(2)), then reads how many slots
 *   are reserved in each ring. Whoever stamps below T had reserved before the barrier: the
 *   profiler sees it. (With the counter, or where the process could not be registered, reserving
 *   is a locked addition itself.) Slots that are reserved but not written have stamps
 *   above those before them in their ring. So below T, and below the last written stamp of each
 *   ring that has an unwritten slot, all is there: that is merged, the rest waits (lanemerge.pyx).
 *   A thread that was preempted in between holds others up until it runs again.
 *
 * Leaving
 *   Calls that would pass by these functions (a library that binds to the C library itself, or has
 *   another one), and programs that give up what this needs, have probes take its place, between
 *   one call of an allocator and the next (leave.h).
 *
 * Full rings
 *   A thread waits, before it reserves, until there is room or nobody wants events any more.
 *   Nothing is lost. If that takes longer than `max_stall` (the profiler was stopped, say), the
 *   thread says so (`gave_up`): until the profiler has made room, no thread waits, and events that
 *   find none are counted instead of reported.
 *
 * Signal handlers
 *   Slots are reserved by one instruction, so a handler that allocates gets the next one. A walk
 *   that interrupts another one is not made: COUNTER_LOST_STACKS.
 */
#define _GNU_SOURCE
#include <elf.h>
#include <link.h>
#include <stddef.h>
#include "area.h"
#include "../row.h"

typedef __u64 u64;
typedef __u32 u32;
typedef __u8 u8;

#ifndef __x86_64__
#error "only x86-64"
#endif

#define EXPORT __attribute__((visibility("default")))
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

#include "kernel.h"
#include "next.h"
#include "filters.h"

/* RTLD_DEEPBIND of glibc's dlopen(3); musl has nothing of the kind. */
#define LANE_RTLD_DEEPBIND 8
/* How often, and for how long each time, an executed program waits for its profiler: a second. */
#define BEGIN_WAITS 5000
#define BEGIN_WAIT_NS 150000

/* Wiped when the process forks: its child is to be idle. Pages of its own. */
static struct guard {
	struct lane_control *control; /* NULL: idle for good */
	u8 *area;                     /* all of the file, once events were wanted */
	u8 *place;                    /* where that is going to be */
	u32 mapping;                  /* a thread is mapping it */
	u8 rest[LANE_PAGE - 28];
} guard __attribute__((aligned(LANE_PAGE)));

/* What a thread keeps: little, for it is taken from its stack. */
struct thread {
	struct lane_ring *ring;
	struct lane_ring *noted; /* where it says that a call is under way; NULL: none is */
	struct event *slots;
	u64 taken;   /* slots that the profiler had taken when last looked */
	u64 call;    /* where the return address of the allocator's call under way is; 0: none */
	u64 freeing; /* the same of a free */
	u64 freed;   /* what that frees */
	u64 until_sample; /* bytes; 0: to be drawn */
	u64 dice;         /* of pseudo-random numbers; 0: none yet */
	u64 low, high;    /* of its own stack, as far as it is known (stack.h); 0: it is not */
	u64 hole;         /* what is in this page or below is none of it */
	u64 outermost;    /* frame of the first of the calls under way */
	u32 inside;       /* calls under way, signal handlers' included, that use the shared memory */
	u32 throws;       /* the call under way is an operator new, which an exception may leave */
	u32 tid;
};
static __thread struct thread me __attribute__((tls_model("initial-exec")));

/* Says whether a call is under way that may have to do with the shared memory. */
static inline void note_inside(int by)
{
	__asm__ volatile("addl %1, %0" : "+m"(me.inside) : "er"(by) : "memory");
}

static inline int is_wanted(const struct lane_control *control)
{
	return control && *(volatile u32 *)&control->holder & FUTEX_TID_MASK;
}

static inline void count(u32 which)
{
	__atomic_fetch_add(&guard.control->counters[which], 1, __ATOMIC_RELAXED);
}

/*
 * Waits a moment for the profiler, longer where many have passed. `begun` is when the first one
 * was. Returns whether to go on waiting.
 */
static int may_wait(struct lane_control *control, u32 tries, u64 begun)
{
	struct { u64 seconds, nanoseconds; } time = {0, 50000};

	if (__builtin_ia32_rdtsc() - begun > *(volatile u64 *)&control->max_stall)
		__atomic_store_n(&control->gave_up, 1, __ATOMIC_SEQ_CST);
	if (*(volatile u32 *)&control->gave_up)
		return 0;
	if (tries > 50 && may_call(control))
		system_call(SYS_nanosleep, (u64)&time, 0, 0, 0, 0, 0);
	else
		for (u32 n = 0; n < 50; n++)
			__builtin_ia32_pause();
	return 1;
}

static inline u64 stamp_now(struct lane_control *control)
{
	u32 low, high;

	if (unlikely(control->clock == LANE_CLOCK_COUNTER))
		return __atomic_fetch_add(&control->counter, 1, __ATOMIC_SEQ_CST);
	__asm__ volatile("lfence\n\trdtsc" : "=a"(low), "=d"(high) : : "memory");
	return (u64)high << 32 | low;
}

/*
 * Maps all of the file: the page that is mapped is shared, so a copy of it can be longer. Where is
 * noted before: a signal handler may fork in between, and the child goes on here (see fork_by).
 */
static __attribute__((noinline)) int map_area(void)
{
	u32 nobody = 0;
	long area;

	while (!__atomic_compare_exchange_n(&guard.mapping, &nobody, 1, 0, __ATOMIC_ACQUIRE,
					    __ATOMIC_RELAXED)) {
		nobody = 0;
		__builtin_ia32_pause();
	}
	if (!guard.area && guard.control) {
		area = -1;
		if (may_call(guard.control))
			area = system_call(SYS_mmap, 0, LANE_BYTES, PROT_NONE,
					   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (area > 0) {
			guard.place = (u8 *)area;
			area = system_call(SYS_mremap, (u64)guard.control, 0, LANE_BYTES,
					   MREMAP_MAYMOVE | MREMAP_FIXED, area, 0);
		}
		if (area > 0)
			guard.area = (u8 *)area;
	}
	__atomic_store_n(&guard.mapping, 0, __ATOMIC_RELEASE);
	return guard.area != NULL;
}

#include "stack.h"

static struct lane_ring *ring_at(u32 number)
{
	return (struct lane_ring *)(guard.area + LANE_AT_RINGS + number * LANE_RING_BYTES);
}

/* Takes a ring for this thread; the first one, which is for many, if no other is free. */
static __attribute__((noinline)) int take_ring(void)
{
	u32 number = 0;

	if ((!guard.area && !map_area()) || !may_call(guard.control))
		return 0;
	me.tid = system_call(SYS_gettid, 0, 0, 0, 0, 0, 0);
	for (u32 n = 1; n < LANE_RINGS && !number; n++) {
		u32 nobody = 0;

		if (!ring_at(n)->owner &&
		    __atomic_compare_exchange_n(&ring_at(n)->owner, &nobody, me.tid, 0,
						__ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
			number = n;
	}
	me.slots = (struct event *)(guard.area + LANE_AT_SLOTS + number * LANE_SLOTS_BYTES);
	me.ring = ring_at(number);
	me.taken = 0;
	me.ring->busy = 0;
	find_stack(guard.control);
	for (u32 n = 0; number && n < LANE_MEMOS; n++)
		me.ring->memos[n].sp = 0;
	return 1;
}

/* Waits for the first ring, which threads have by turns. Whether this one has it now. */
static __attribute__((noinline)) int lock_ring(struct lane_control *control, struct lane_ring *ring)
{
	u64 begun = __builtin_ia32_rdtsc();

	for (u32 tries = 0, nobody = 0;; tries++, nobody = 0) {
		if (__atomic_compare_exchange_n(&ring->lock, &nobody, me.tid, 0, __ATOMIC_ACQUIRE,
						__ATOMIC_RELAXED))
			break;
		/* A signal handler, in what it has interrupted. Whoever else has it may wait as well. */
		if (nobody == me.tid || !is_wanted(control) || !may_wait(control, tries, begun))
			return 0;
	}
	me.taken = 0;
	return 1;
}

/* By the kind of an event: what counts it if it is lost. */
static const u8 lost_counters[] = {
	[EVENT_ALLOC] = COUNTER_LOST_ALLOCS, [EVENT_FREE] = COUNTER_LOST_FREES,
	[EVENT_REALLOC_FREE] = COUNTER_LOST_FREES, [EVENT_RESTORE] = COUNTER_LOST_RESTORES,
	[EVENT_INNER_FREE] = COUNTER_LOST_INNER_FREES,
};

/* An event can't be reported. Nobody asks for it any more, or it is counted. */
static __attribute__((noinline)) void lose(u32 kind)
{
	if (is_wanted(guard.control))
		count(lost_counters[kind]);
}

/* Whether this thread has a ring, its own or by turns, for an event of a kind. */
static int begin_report(u32 kind)
{
	/* A ring that was given to somebody else is none of ours. */
	if (unlikely(!me.ring || (me.ring != ring_at(0) && me.ring->owner != me.tid)) && !take_ring())
		lose(kind);
	else if (likely(me.ring != ring_at(0)) || lock_ring(guard.control, me.ring))
		return 1;
	else
		lose(kind);
	return 0;
}

static inline void end_report(void)
{
	if (unlikely(me.ring == ring_at(0)))
		__atomic_store_n(&me.ring->lock, 0, __ATOMIC_RELEASE);
}

/* Whether there is room for an event; waits for it. */
static int await_slot(struct lane_control *control, struct lane_ring *ring)
{
	u64 begun = __builtin_ia32_rdtsc();

	for (u32 tries = 0;; tries++) {
		me.taken = *(volatile u64 *)&ring->taken;
		if (ring->reserved - me.taken < LANE_SLOTS - LANE_SPARE_SLOTS)
			return 1;
		if (!is_wanted(control) || !may_wait(control, tries, begun))
			return 0;
	}
}

static inline void emit(u32 kind, u64 address, u64 size, u64 stack_id)
{
	struct lane_control *control = guard.control;
	struct lane_ring *ring = me.ring;
	u64 slot = 1;
	struct event *event;

	if (unlikely(*(volatile u64 *)&ring->reserved - me.taken >= LANE_SLOTS - LANE_SPARE_SLOTS) &&
	    !await_slot(control, ring)) {
		lose(kind);
		return;
	}
	if (unlikely(control->clock == LANE_CLOCK_COUNTER || !control->registered))
		slot = __atomic_fetch_add(&ring->reserved, 1, __ATOMIC_SEQ_CST);
	else
		__asm__ volatile("xaddq %0, %1" : "+r"(slot), "+m"(ring->reserved) : : "memory");
	event = &me.slots[slot % LANE_SLOTS];
	event->time_ns = stamp_now(control);
	event->address = address;
	event->stack_id = stack_id;
	event->tid = me.tid;
	event->image = control->space.image;
	__atomic_store_n(&event->size_tag,
			 size | (u64)kind << EVENT_SIZE_BITS |
				 (slot / LANE_SLOTS + 1) << EVENT_LAP_BIT,
			 __ATOMIC_RELEASE);
}

#include "records.h"
#include "walk.h"
#include "sample.h"
#include "otel.h"
#include "leave.h"

/*
 * Whether a call made now, whose return address is at `at`, is inside the one that has its own
 * at `outer`: the stack has grown since. (A call that longjmp has left lies at the same depth or
 * above; if it does not, the next one outside it sets this right.)
 */
static inline int is_inside(u64 at, u64 outer)
{
	return outer && at < outer;
}

static inline int is_sampling(const struct lane_control *control)
{
	return control && control->samples;
}

/* Whether a block of this size, that is about to be allocated, is not to be reported. */
static inline int is_hidden(u64 size)
{
	const struct lane_control *control = guard.control;

	return !control || size < control->min_size || size > control->max_size ||
	       (control->samples && !is_sampled(size));
}

static void report_block(const u64 *frame, u64 address, u64 size)
{
	struct lane_control *control = guard.control;
	u64 stack_id;

	if (!control || !begin_report(EVENT_ALLOC))
		return;
	if (control->samples && !note_sampled(address)) {
		end_report();
		return;
	}
	stack_id = capture_stack(control, me.ring, frame);
	emit(EVENT_ALLOC, address, size, stack_id);
	end_report();
}

/* A block is about to be freed, for now or for good. Whether that was reported. */
static int report(u32 kind, u64 address)
{
	const struct lane_control *control = guard.control;

	if (!control || (control->samples && !take_sampled(address)) || !begin_report(kind))
		return 0;
	emit(kind, address, 0, 0);
	end_report();
	return 1;
}

/* The block that a resize was to take lives on. */
static void restore(u64 address)
{
	const struct lane_control *control = guard.control;

	if (!control || (control->samples && !note_sampled(address)) || !begin_report(EVENT_RESTORE))
		return;
	emit(EVENT_RESTORE, address, 0, 0);
	end_report();
}

/*
 * A function that resizes a block, NULL: it allocates. `frame` is its own, above which its return
 * address is. Its result is NULL where the block lives on, and where it was freed for no bytes.
 */
#define RESIZER(frame, block, bytes, invoke) \
	({ \
		u64 at = (u64)((frame) + 1); \
		void *moved; \
		if (is_inside(at, me.call)) { \
			moved = invoke; \
		} else { \
			int wanted = is_wanted(guard.control), hidden, taken; \
			u64 asked = bytes; \
\
			if (block && unlikely(!otel_is_idle())) \
				otel_note_free((u64)block); \
			hidden = wanted && is_hidden(asked); \
			if (wanted && !hidden && unlikely(is_sampling(guard.control))) \
				wanted = begin_sample(frame); \
			/* What happens inside, a free as well, is part of this. */ \
			me.call = at; \
			taken = wanted && block && report(EVENT_REALLOC_FREE, (u64)block); \
			moved = invoke; \
			me.call = 0; \
			if (moved && !wanted) \
				otel_note_alloc((u64)moved, asked); \
			else if (moved && !hidden) \
				report_block(frame, (u64)moved, asked); \
			else if (!moved && taken && asked) \
				restore((u64)block); \
		} \
		moved; \
	})

#define ALLOCATOR(frame, size, invoke) RESIZER(frame, NULL, size, invoke)

static __attribute__((noinline)) void *traced_malloc(size_t size, const u64 *frame)
{
	return ALLOCATOR(frame, size, next.malloc(size));
}

static __attribute__((noinline)) void *traced_calloc(size_t n, size_t size, const u64 *frame)
{
	return ALLOCATOR(frame, n * size, next.calloc(n, size));
}

static __attribute__((noinline)) void *traced_memalign(void *(*function)(size_t, size_t),
						       size_t alignment, size_t size,
						       const u64 *frame)
{
	return ALLOCATOR(frame, size, function(alignment, size));
}

static __attribute__((noinline)) void *traced_valloc(void *(*function)(size_t), size_t size,
						     const u64 *frame)
{
	return ALLOCATOR(frame, size, function(size));
}

static __attribute__((noinline)) int traced_posix_memalign(void **out, size_t alignment,
							   size_t size, const u64 *frame)
{
	int result = 0;

	ALLOCATOR(frame, size, ({
			  result = next.posix_memalign(out, alignment, size);
			  result ? NULL : *out;
		  }));
	return result;
}

static void *resize(void *block, size_t n, size_t size, int is_array)
{
	return is_array ? next.reallocarray(block, n, size) : next.realloc(block, size);
}

static __attribute__((noinline)) void *traced_realloc(void *block, size_t n, size_t size,
						      int is_array, const u64 *frame)
{
	u64 bytes;

	/* As for the probes: what overflows can't succeed, and is not a resize to nothing. */
	if (__builtin_mul_overflow(n, size, &bytes))
		bytes = -1UL;
	return RESIZER(frame, block, bytes, resize(block, n, size, is_array));
}

/* A function that frees, with up to two arguments more. */
typedef void (*releasing)(void *, u64, u64);

static __attribute__((noinline)) void traced_free(releasing function, void *block, u64 a, u64 b,
						  const u64 *frame)
{
	u64 at = (u64)(frame + 1), outer = me.freeing, outer_freed = me.freed;

	if (!block || is_inside(at, me.call)) {
		function(block, a, b);
		return;
	}
	if (unlikely(!otel_is_idle()))
		otel_note_free((u64)block);
	if (!is_wanted(guard.control)) {
		function(block, a, b);
		return;
	}
	if (!is_inside(at, outer)) {
		outer = outer_freed = 0;
		report(EVENT_FREE, (u64)block);
	} else if ((u64)block != outer_freed) {
		report(EVENT_INNER_FREE, (u64)block);
	}
	me.freeing = at;
	me.freed = (u64)block;
	function(block, a, b);
	me.freeing = outer;
	me.freed = outer_freed;
}

#define FRAME ((const u64 *)__builtin_frame_address(0))
#define IS_IDLE likely(!is_wanted(guard.control) && otel_is_idle())
/* A call that is no jump: the frame stays. */
#define TRACED_BETWEEN(begin, call, end) \
	({ \
		begin(FRAME); \
		__typeof__(call) traced_result = call; \
		end(); \
		traced_result; \
	})
#define TRACED(call) TRACED_BETWEEN(begin_call, call, end_call)
/* Smaller, and slower by a nanosecond or two. */
#define TRACED_RARELY(call) TRACED_BETWEEN(begin_rare_call, call, end_rare_call)

EXPORT void *malloc(size_t size)
{
	return IS_IDLE ? next.malloc(size) : TRACED(traced_malloc(size, FRAME));
}

EXPORT void free(void *block)
{
	if (IS_IDLE) {
		next.free(block);
	} else {
		begin_call(FRAME);
		traced_free((releasing)(void *)next.free, block, 0, 0, FRAME);
		end_call();
	}
}

EXPORT void *calloc(size_t n, size_t size)
{
	return IS_IDLE ? next.calloc(n, size) : TRACED(traced_calloc(n, size, FRAME));
}

EXPORT void *realloc(void *block, size_t size)
{
	return IS_IDLE ? next.realloc(block, size) : TRACED(traced_realloc(block, 1, size, 0, FRAME));
}

EXPORT void *reallocarray(void *block, size_t n, size_t size)
{
	return IS_IDLE ? next.reallocarray(block, n, size) :
			 TRACED_RARELY(traced_realloc(block, n, size, 1, FRAME));
}

EXPORT int posix_memalign(void **out, size_t alignment, size_t size)
{
	return IS_IDLE ? next.posix_memalign(out, alignment, size) :
			 TRACED_RARELY(traced_posix_memalign(out, alignment, size, FRAME));
}

EXPORT void *aligned_alloc(size_t alignment, size_t size)
{
	return IS_IDLE ? next.aligned_alloc(alignment, size) :
			 TRACED_RARELY(traced_memalign(next.aligned_alloc, alignment, size, FRAME));
}

EXPORT void *memalign(size_t alignment, size_t size)
{
	return IS_IDLE ? next.memalign(alignment, size) :
			 TRACED_RARELY(traced_memalign(next.memalign, alignment, size, FRAME));
}

EXPORT void *valloc(size_t size)
{
	return IS_IDLE ? next.valloc(size) : TRACED_RARELY(traced_valloc(next.valloc, size, FRAME));
}

EXPORT void *pvalloc(size_t size)
{
	return IS_IDLE ? next.pvalloc(size) : TRACED_RARELY(traced_valloc(next.pvalloc, size, FRAME));
}

#include "others.h"

/* Zeros in the place of shared memory, which this process alone has. */
static int map_zeros(void *at, u64 bytes)
{
	return system_call(SYS_mmap, (u64)at, bytes, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == (long)at;
}

/*
 * Forks. In the child the shared memory is not there. Nobody uses it, unless this is in a signal
 * handler that has interrupted a call, which the child may go on with: that finds zeros, which
 * say that nobody wants events. It may also just have been about to look whether somebody does.
 */
static int fork_by(int (*function)(void))
{
	struct lane_control *control = guard.control;
	u8 *area = guard.area, *place = guard.place;
	int pid = function();

	if (!pid && control && !guard.control && map_zeros(control, LANE_PAGE) && me.inside &&
	    (!place || map_zeros(place, LANE_BYTES))) {
		guard.area = area;
		guard.control = control;
	}
	return pid;
}

EXPORT int fork(void)
{
	return fork_by(next.fork);
}

EXPORT int _Fork(void)
{
	return fork_by(next._Fork);
}

static int note_unloads(struct dl_phdr_info *object, size_t size, void *count)
{
	(void)size;
	*(u64 *)count = object->dlpi_subs;
	return 1;
}

/* How many objects the loader has unmapped since the process began. */
static u64 count_unloads(void)
{
	u64 count = 0;

	if (dl_iterate_phdr)
		dl_iterate_phdr(note_unloads, &count);
	return count;
}

/*
 * What is unmapped may be followed by something else at the same addresses: no unwind entry counts
 * meanwhile, and those from before are outdated if anything was unmapped.
 */
EXPORT int dlclose(void *library)
{
	struct lane_control *control = guard.control;
	int (*close)(void *) = (int (*)(void *))find_one("dlclose");
	u64 before;
	int result;

	if (!close)
		return -1;
	if (!control)
		return close(library);
	__atomic_fetch_add(&control->space.unloading, 1, __ATOMIC_SEQ_CST);
	before = count_unloads();
	result = close(library);
	if (count_unloads() != before)
		__atomic_fetch_add(&control->space.loads, 1, __ATOMIC_SEQ_CST);
	__atomic_fetch_sub(&control->space.unloading, 1, __ATOMIC_SEQ_CST);
	return result;
}

/*
 * A library that binds to what it needs before all else calls the C library's functions past
 * these, and so does one in another namespace. A jump, for the C library looks at who has called it.
 */
EXPORT void *dlopen(const char *file, int mode)
{
	void *(*open)(const char *, int) = (void *(*)(const char *, int))find_one("dlopen");

	if (!open)
		return NULL;
	if (mode & LANE_RTLD_DEEPBIND)
		leave(LANE_DEEP_BIND);
	return open(file, mode);
}

EXPORT void *dlmopen(long namespace, const char *file, int mode)
{
	void *(*open)(long, const char *, int) =
		(void *(*)(long, const char *, int))find_one("dlmopen");

	if (!open)
		return NULL;
	leave(LANE_NAMESPACE);
	return open(namespace, file, mode);
}

/*
 * A program that locks its memory would lock what it shares with the profiler as well, some of it
 * for nothing. That goes before, once there are probes.
 */
EXPORT int mlockall(int flags)
{
	int (*lock)(int) = (int (*)(int))find_one("mlockall");

	if (!lock)
		return -1;
	leave(LANE_LOCKED);
	if (guard.area && !is_wanted(guard.control)) {
		system_call(SYS_munmap, (u64)guard.area, LANE_BYTES, 0, 0, 0, 0);
		guard.area = guard.place = NULL;
	}
	return lock(flags);
}

/* Whether the shared memory has been made, or could not be: for the profiler. */
EXPORT volatile u32 tracelloc_lane_state;

/* What the library's malloc calls: the profiler finds by it which malloc library that is. */
EXPORT void *volatile tracelloc_lane_next;

/*
 * How many profilers have a probe at the next function: the kernel counts them here, in each
 * process that they trace and in no other, and also takes away those that have died
 * (uprobes' reference counters). In the file, for it is found by where it is there.
 */
EXPORT __attribute__((section(".probes"))) volatile __u16 tracelloc_lane_awaited = 0;

/* Called when that is decided, before the first allocation. */
EXPORT __attribute__((noinline)) void tracelloc_lane_ready(void)
{
	__asm__ volatile("nop");
}

/* A process that is traced already, and has begun another program, waits for its profiler. */
static void await_profiler(struct lane_control *control)
{
	struct { u64 seconds, nanoseconds; } time = {0, BEGIN_WAIT_NS};

	for (u32 waits = 0; tracelloc_lane_awaited && !is_wanted(control); waits++) {
		if (waits == BEGIN_WAITS) {
			control->is_late = 1;
			return;
		}
		system_call(SYS_nanosleep, (u64)&time, 0, 0, 0, 0, 0);
	}
}

/* A limit of the process's resources, prlimit(2). 0: it is not known. */
static u64 limit_of(u32 resource)
{
	struct { u64 now, most; } limit = {0, 0};

	system_call(SYS_prlimit64, 0, resource, 0, (u64)&limit, 0, 0);
	return limit.now;
}

/* Makes the shared memory. Without it the process is as if this were not here. The state then. */
static enum lane_state make_area(void)
{
	struct lane_control *control;
	long file, page;

	if (is_confined()) {
		has_filter = 1;
		return LANE_CONFINED;
	}
	otel_begin();
	if (limit_of(RLIMIT_AS) != RLIM_INFINITY)
		return LANE_LIMITED;
	/* To grow a file beyond the limit would end the process. */
	if (limit_of(RLIMIT_FSIZE) < LANE_BYTES)
		return LANE_REFUSED;
	/* Shared memory can't be told to be wiped; this page says where it is, and can. */
	if (system_call(SYS_madvise, (u64)&guard, LANE_PAGE, MADV_WIPEONFORK, 0, 0, 0))
		return LANE_REFUSED;
	file = system_call(SYS_memfd_create, (u64) "tracelloc-lane", MFD_CLOEXEC | MFD_ALLOW_SEALING,
			   0, 0, 0, 0);
	if (file < 0)
		return LANE_REFUSED;
	page = -1;
	if (!system_call(SYS_ftruncate, file, LANE_BYTES, 0, 0, 0, 0) &&
	    !system_call(SYS_fcntl, file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, 0,
			 0, 0))
		page = system_call(SYS_mmap, 0, LANE_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file,
				   0);
	system_call(SYS_close, file, 0, 0, 0, 0, 0);
	if (page < 0)
		return LANE_REFUSED;
	control = (struct lane_control *)page;
	if (system_call(SYS_madvise, page, LANE_PAGE, MADV_DONTFORK, 0, 0, 0)) {
		system_call(SYS_munmap, page, LANE_PAGE, 0, 0, 0, 0);
		return LANE_REFUSED;
	}
	system_call(SYS_madvise, page, LANE_PAGE, MADV_DONTDUMP, 0, 0, 0);
	control->size_bytes = LANE_BYTES;
	control->pid = system_call(SYS_getpid, 0, 0, 0, 0, 0, 0);
	control->registered = !system_call(SYS_membarrier,
					   MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0, 0, 0, 0);
	__atomic_store_n(&control->magic, LANE_MAGIC, __ATOMIC_RELEASE);
	guard.control = control;
	return is_preceded ? LANE_PRECEDED : LANE_READY;
}

/* Whoever allocates first, or else the loader, begins; others wait until that is done. */
static __attribute__((noinline, used)) void begin_once(void)
{
	static u32 begun, done;

	if (!__atomic_exchange_n(&begun, 1, __ATOMIC_ACQ_REL)) {
		enum lane_state state = LANE_REFUSED;

		first_stack = (u64)__builtin_frame_address(0);
		if (find_next())
			state = make_area();
		find_others();
		tracelloc_lane_next = next.malloc;
		tracelloc_lane_state = state;
		tracelloc_lane_ready();
		if (guard.control && !is_preceded)
			await_profiler(guard.control);
		__atomic_store_n(&done, 1, __ATOMIC_RELEASE);
	}
	while (!__atomic_load_n(&done, __ATOMIC_ACQUIRE))
		__builtin_ia32_pause();
}

#include "exec.h"

/* glibc passes the environment, and may not have noted it yet; musl has, and passes nothing. */
__attribute__((constructor)) static void construct(int n, char **words, char **entries)
{
	(void)n;
	(void)words;
	begin_once();
	restore_environment(&environ && environ ? environ : entries);
}

#include "boot.h"
