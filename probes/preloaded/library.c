/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/*
 * libtracelloc.so: reports allocations and frees of the process that it is preloaded in, through
 * memory that it shares with the profiler (area.h), in the records of the probes (event.h).
 *
 * Contract
 *   Defines malloc and related functions, and those of other malloc libraries (others.h). They call
 *   the next definition in symbol order, which this library itself finds: it calls no function of
 *   the C library but dl_iterate_phdr(3). If the program calls another malloc before this one, the
 *   library reports that, and the profiler requests no events.
 *   The library makes system calls at process start, when a thread takes a ring, when a stack has
 *   grown into new pages, and while a thread waits. None of them changes errno. The library never
 *   allocates. If it is idle, a call costs a load and a jump.
 *
 * Whether events are wanted
 *   `holder` in the shared page is set while the profiler wants events; if the profiler dies, the
 *   kernel clears it. Each call checks once, at its beginning, whether the profiler
 *   wants events. A forked child does not have the shared memory
 *   (MADV_DONTFORK; see fork_by); its `guard` is zeroed (MADV_WIPEONFORK), so it is idle, unless
 *   the profiler has it begin again (begin_in_child). A child of vfork(2) runs in its parent's memory and reports for its parent.
 *
 * Order
 *   A thread stamps a free before it happens, and an allocation after it has happened. Consider two
 *   events of one address in different threads, first x, then y. The block was handed over, either
 *   within the malloc library (x is a free, y an allocation) or by the program (x is an allocation,
 *   y a free). So x's thread has written something after stamping x that y's thread has read before
 *   stamping y. Stamps come from one of two clocks:
 *     - The time stamp counter, if the kernel finds that all processors' counters are synchronized
 *       (it lists `tsc` among its clock sources). lfence delays reading the counter until all
 *       earlier loads are complete. Other threads see x's write only after x's stamp was read,
 *       because instructions retire in order. Handing over takes longer than a step of the counter.
 *       (On 64-bit Arm it does not: counters of 24 MHz are common there.)
 *     - A counter in the shared memory, incremented for each event by a locked addition.
 *   So x has the lower stamp with either clock. Within a ring, stamps increase.
 *
 * The cut
 *   A thread reserves a slot before it stamps it. The profiler reads the clock (T), then makes all
 *   threads of the process pass a memory barrier (membarrier(2)), then reads how many slots are
 *   reserved in each ring. A thread that stamps below T reserved its slot before the barrier, so
 *   the profiler sees the reservation. (With the shared counter, or if membarrier is unavailable,
 *   reserving is a locked addition itself.) Slots that are reserved but not written will have
 *   higher stamps than those before them in their ring. So the events are complete up to the lower
 *   of T and, for each ring with an unwritten slot, its last written stamp. The profiler merges
 *   these; the rest waits (ringmerge.pyx). A thread that is preempted between reserving and writing
 *   delays the events of all others until it runs again.
 *
 * Leaving
 *   Probes replace this library between two allocator calls (leave.h). That happens before calls
 *   would bypass the library (because another library binds to the C library directly or has its
 *   own), and before the program gives up a feature that the library needs.
 *
 * Full rings
 *   Before it reserves a slot, a thread waits until there is room or the profiler stops listening.
 *   Nothing is lost. If the wait exceeds `max_stall` (for example, the profiler was stopped), the
 *   thread sets `gave_up`: until the profiler has made room, no thread waits, and events without
 *   room are counted instead of reported.
 *
 * Signal handlers
 *   A slot is reserved by one instruction, or by a few that begin again if they are interrupted, so a
 *   handler that allocates gets another one. A handler that interrupts a walk makes none of its own;
 *   COUNTER_LOST_STACKS counts these.
 */
#include "boot.h"
#include "exec.h"
#include "filters.h"
#include "functions.h"
#include "others.h"
#include "search.h"

/* RTLD_DEEPBIND of glibc's dlopen(3); musl has no such flag. */
#define PRELOAD_RTLD_DEEPBIND 8
/* How often, and how long each time, an executed program waits for its profiler: about a second. */
#define BEGIN_WAITS 5000
#define BEGIN_WAIT_NS 150000

/*
 * A library opened with RTLD_DEEPBIND calls the C library's functions directly, bypassing this
 * library. The function ends with a tail call, because the C library uses its return address to
 * determine the caller.
 */
EXPORT void *dlopen(const char *file, int mode)
{
	void *(*open)(const char *, int) = (void *(*)(const char *, int))find_one("dlopen");

	if (!open)
		return NULL;
	if (mode & PRELOAD_RTLD_DEEPBIND)
		leave(PRELOAD_DEEP_BIND);
	return open(file, mode);
}

/*
 * Begins or ends a part of the run (enum part_mark): allocations are reported only in between.
 * `value` is the size in the mark.
 */
EXPORT void tracelloc_preload_part(u64 mark, u64 value)
{
	struct preload_control *control = guard.control;
	static u32 most_frames;

	if (IS_IDLE)
		return;
	begin_rare_call(FRAME);
	if (mark == PART_END)
		control->min_size = -1UL;
	if (begin_report(EVENT_PART)) {
		emit(EVENT_PART, mark, value, 0);
		end_report();
	}
	if (mark != PART_END) {
		most_frames = most_frames ? most_frames : control->max_frames;
		control->max_frames = mark == PART_PLAIN ? 0 : most_frames;
		control->max_size = -1UL;
		control->min_size = 0;
	}
	end_rare_call();
}

/* Tells the profiler whether the shared memory was created (enum preload_state). */
EXPORT volatile u32 tracelloc_preload_state;

/* The malloc that the library calls: tells the profiler which malloc library that is. */
EXPORT void *volatile tracelloc_preload_next;

/* Called when the state is set, before the first allocation; the profiler probes it. */
EXPORT __attribute__((noinline)) void tracelloc_preload_ready(void)
{
	__asm__ volatile("nop");
}

/* In a traced process that has executed this program: waits for the profiler. */
static void await_profiler(struct preload_control *control)
{
	struct { u64 seconds, nanoseconds; } time = {0, BEGIN_WAIT_NS};

	for (u32 waits = 0; tracelloc_preload_awaited && !is_wanted(control); waits++) {
		if (waits == BEGIN_WAITS) {
			control->is_late = 1;
			return;
		}
		system_call(SYS_nanosleep, (u64)&time, 0, 0, 0, 0, 0);
	}
}

/* Returns a resource limit of the process (prlimit(2)); 0: unknown. */
static u64 limit_of(u32 resource)
{
	struct { u64 now, most; } limit = {0, 0};

	system_call(SYS_prlimit64, 0, resource, 0, (u64)&limit, 0, 0);
	return limit.now;
}

/* Creates the shared memory; if that fails, the library stays idle. Returns the state. */
static enum preload_state make_area(void)
{
	struct preload_control *control;
	long file, page;

	if (is_confined() && !(tracelloc_preload_awaited & PRELOAD_VOUCHED)) {
		has_filter = 1;
		return PRELOAD_CONFINED;
	}
	if (limit_of(RLIMIT_AS) != RLIM_INFINITY)
		return PRELOAD_LIMITED;
	/* Growing a file beyond the limit would kill the process. */
	if (limit_of(RLIMIT_FSIZE) < PRELOAD_BYTES)
		return PRELOAD_REFUSED;
	/* MADV_WIPEONFORK works for private memory only, so it is set for the page of pointers. */
	if (system_call(SYS_madvise, (u64)&guard, PRELOAD_PAGE, MADV_WIPEONFORK, 0, 0, 0))
		return PRELOAD_REFUSED;
	file = system_call(SYS_memfd_create, (u64) "tracelloc-preload", MFD_CLOEXEC | MFD_ALLOW_SEALING,
			   0, 0, 0, 0);
	if (file < 0)
		return PRELOAD_REFUSED;
	page = -1;
	if (!system_call(SYS_ftruncate, file, PRELOAD_BYTES, 0, 0, 0, 0) &&
	    !system_call(SYS_fcntl, file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, 0,
			 0, 0))
		page = system_call(SYS_mmap, 0, PRELOAD_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file,
				   0);
	area_file = file;
	if (page < 0)
		return PRELOAD_REFUSED;
	control = (struct preload_control *)page;
	if (system_call(SYS_madvise, page, PRELOAD_PAGE, MADV_DONTFORK, 0, 0, 0)) {
		system_call(SYS_munmap, page, PRELOAD_PAGE, 0, 0, 0, 0);
		return PRELOAD_REFUSED;
	}
	system_call(SYS_madvise, page, PRELOAD_PAGE, MADV_DONTDUMP, 0, 0, 0);
	control->size_bytes = PRELOAD_BYTES;
	control->pid = system_call(SYS_getpid, 0, 0, 0, 0, 0, 0);
	control->registered = !system_call(SYS_membarrier,
					   MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0, 0, 0, 0);
	control->next = (u64)next.malloc;
	control->state = is_preceded ? PRELOAD_PRECEDED : PRELOAD_READY;
	__atomic_store_n(&control->magic, PRELOAD_MAGIC, __ATOMIC_RELEASE);
	guard.control = control;
	return control->state;
}

/* Initializes once, at the first allocation or from the constructor. Other threads wait. */
static __attribute__((noinline, used)) void begin_once(void)
{
	static u32 begun, done;

	if (!__atomic_exchange_n(&begun, 1, __ATOMIC_ACQ_REL)) {
		enum preload_state state = PRELOAD_REFUSED;

		first_stack = (u64)__builtin_frame_address(0);
		if (find_next())
			state = make_area();
		find_others();
		tracelloc_preload_next = next.malloc;
		tracelloc_preload_state = state;
		tracelloc_preload_ready();
		if (guard.control && !is_preceded)
			await_profiler(guard.control);
		if (area_file >= 0) {
			long kept = tracelloc_preload_awaited
					    ? -1
					    : system_call(SYS_fcntl, area_file, F_DUPFD_CLOEXEC,
							  PRELOAD_KEPT_FD, 0, 0, 0);

			system_call(SYS_close, area_file, 0, 0, 0, 0, 0);
			area_file = kept;
		}
		__atomic_store_n(&done, 1, __ATOMIC_RELEASE);
	}
	while (!__atomic_load_n(&done, __ATOMIC_ACQUIRE))
		pause_briefly();
}

/*
 * Makes a forked child report, too. A profiler that follows it by ptrace(2) has its first thread call
 * this before anything else, however it was forked. A child that goes on with an allocator call of
 * its parent's, as it was forked by a signal handler, stays idle.
 */
static void begin_in_child(void)
{
	if (guard.control || me.inside)
		return;
	me.ring = NULL;
	area_file = -1;
	make_area();
	if (guard.control)
		await_profiler(guard.control);
	if (area_file >= 0)
		system_call(SYS_close, area_file, 0, 0, 0, 0, 0);
}

/* Code refers to the variable itself, as the injected library has no relocations. */
EXPORT extern u64 *volatile tracelloc_preload_place __attribute__((alias("test_place")));

/* Returns from a signal frame: where the call of `begin_in_child` returns to (rt_sigreturn(2)). */
RETURNS_FROM_SIGNAL(end_in_child)

EXPORT void (*const volatile tracelloc_preload_in_child[2])(void) = {begin_in_child, end_in_child};

/* glibc passes the environment and may not have set `environ` yet; musl has, and passes nothing. */
__attribute__((constructor)) static void construct(int n, char **words, char **entries)
{
	(void)n;
	(void)words;
	begin_once();
	/* Whoever has started it needs no descriptor, and the program is to find none. */
	if (restore_environment(&environ && environ ? environ : entries) && area_file >= 0)
		system_call(SYS_close, area_file, 0, 0, 0, 0, 0);
}
