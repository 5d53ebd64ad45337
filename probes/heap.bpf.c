// SPDX-License-Identifier: (MIT OR GPL-2.0)
/*
 * Probes on the malloc family: which blocks a process has, and who asked for them.
 *
 * Contract
 *   Needs Linux 6.1. User space attaches `allocator_call` to each allocator function, at a
 *   place where the argument registers and the stack pointer are as at entry, and to its
 *   return, and `free_call` to each function that frees, with cookies that say which
 *   arguments mean what (event.h); the kernel calls them for the target's memory only, and
 *   may preempt them (preemption.h). Nothing is reported until control.live.
 *
 * Pairing
 *   An allocation is reported when the allocator returns, so its arguments are kept
 *   per thread in between. Only the outermost call counts (calloc may call malloc):
 *   a call is inside another one if its stack pointer is not above that one's, and
 *   the return address that a return probe has replaced there is still in place.
 *   A record that fails this was left by longjmp or an exception; the next call
 *   starts afresh. A function that jumps to another (reallocarray to realloc) has
 *   the same stack pointer, and both returns are reported together: the first
 *   settles the call, the second is recognised by last_sp.
 *
 * Sessions
 *   Since Linux 6.13 one probe can be for a function's entry and its return: what the program
 *   says at the entry decides whether there will be a return. Calls inside others have none.
 *   Where two processes are traced in one file, the kernel asks the probes of both for each call
 *   in either, and takes silence for a wish to see the return.
 *
 * Functions that may throw
 *   A return probe puts another return address on the stack, through which no exception
 *   gets: the target would end. Functions that may throw (C++'s operator new) therefore
 *   have the program on each of their ret instructions instead, and no session: it would be
 *   another process's wish. Their return address stays on the stack and in the record; a call that ends by an exception reaches none of
 *   them, which `exception_enter` notices.
 *
 * Frees inside frees
 *   free has no return probe, so whether one is inside another is told by the outer one's
 *   return address: still in its place, and the stack has grown since. What the inner one
 *   frees may be the same block, or part of a larger one that never was reported, or
 *   a block like any other: user space knows.
 *
 * Order
 *   A free is reported before it happens, an allocation after it has happened, all
 *   through one ring (ring.h): of two events on one address the earlier one comes first. It stays
 *   so when the ring is full (spill.h).
 *
 * Units: bytes, nanoseconds of CLOCK_MONOTONIC.
 */
#include <uapi/linux/ptrace.h>
#include "event.h"
#include "maps.h"
#include "preemption.h"
#include "read.h"
#include "space.h"
#include "stack.h"
#include "scratch.h"
#include "walk_rows.h" /* or walk_fp.h */
#include "python.h" /* and python.bpf.c behind this, for Python */
#include "intern.h"
#include "spill.h"
#include "ring.h"
#include "emit.h"

#ifndef MIN_SIZE
#define MIN_SIZE 0ULL
#endif
#ifndef MAX_SIZE
#define MAX_SIZE 0xffffffffffffffffULL
#endif

#define SIZE_OVERFLOW 0xffffffffffffffffULL
/* Of a user's half with four levels of page tables. Above are only those asked for by address. */
#define ADDRESSES (1ULL << 47)

static __always_inline struct control *get_control(void)
{
	u32 zero = 0;

	return control.lookup(&zero);
}

/* Whether allocations and frees are to be reported. */
static __always_inline bool is_live(struct control *words)
{
	return words && words->reporting == REPORTING_LIVE;
}

/* Whether the function that was entered now is the one on record: that one was left. */
static __always_inline bool is_again(struct pt_regs *ctx, u64 sp, u64 ip)
{
	return PT_REGS_SP(ctx) == sp && PT_REGS_IP(ctx) == ip;
}

static __always_inline u64 word_at(u64 address)
{
	u64 word = 0;

	read_user(&word, sizeof(word), (void *)address);
	return word;
}

/* Whether a call that is made now happens inside the one on record. */
static __always_inline bool is_nested(struct pt_regs *ctx, u64 id, struct call *call)
{
	struct space *space;
	u64 trampoline;
	u64 word;

	if (!call->sp || PT_REGS_SP(ctx) > call->sp)
		return false;
	space = get_space(id);
	trampoline = space ? space->trampoline : 0;
	if (call->return_address) {
		if (is_again(ctx, call->sp, call->ip))
			return false;
		word = word_at(call->sp);
		/* It may have jumped to a function that has a return probe. */
		return word == call->return_address || word == trampoline;
	}
	return !trampoline || word_at(call->sp) == trampoline;
}

/*
 * Sampling by bytes: points lie at random distances along all bytes that a thread asks
 * for, SAMPLE_BYTES apart on average and exponentially distributed; a block is sampled
 * if a point falls into it. Without SAMPLE_BYTES every block is.
 */
#ifdef SAMPLE_BYTES
static __always_inline u64 draw_gap(void)
{
	u32 at = bpf_get_prandom_u32() % GAPS;
	u64 *gap = gaps.lookup(&at);

	return gap ? *gap : 1;
}

static __always_inline bool is_sampled(struct call *call, u64 size)
{
	u64 bytes = size ? size : 1;

	if (!call->until_sample)
		call->until_sample = draw_gap();
	if (bytes < call->until_sample) {
		call->until_sample -= bytes;
		return false;
	}
	call->until_sample = draw_gap();
	return true;
}

static __always_inline bool note_sampled(u64 address)
{
	u64 nothing = 0;

	if (!sampled.update(&address, &nothing))
		return true;
	count(COUNTER_SAMPLE_TABLE_FULL);
	return false;
}

/* Whether a block about to be freed was sampled; it no longer is. */
static __always_inline bool take_sampled(u64 address)
{
	if (!sampled.lookup(&address))
		return false;
	sampled.delete(&address);
	return true;
}
#else
#define is_sampled(call, size) true
#define note_sampled(address) true
#define take_sampled(address) true
#endif

/* This thread's record; NULL if there is none. */
static __always_inline struct call *find_call(u64 id)
{
	return calls.lookup(&id);
}

/* This thread's record, made if there is none. NULL: no room. */
static __always_inline struct call *get_call(u64 id)
{
	struct call *call = find_call(id);
	u32 zero = 0;
	struct call *none;

	if (call)
		return call;
	none = no_call.lookup(&zero);
	if (!none)
		return NULL;
	calls.update(&id, none);
	call = find_call(id);
	/* Above all that an earlier owner of this thread id may have had. */
	if (call)
		call->takings = bpf_ktime_get_ns();
	return call;
}

/* n * size, or SIZE_OVERFLOW, which no allocator can satisfy. */
static __always_inline u64 array_size(u64 n, u64 size)
{
	u64 limit;

	if (!size)
		return 0;
	limit = SIZE_OVERFLOW / size;
	/* Else clang sees an overflow check and calls a 128-bit multiplication. */
	asm volatile("" : "+r"(limit));
	return n > limit ? SIZE_OVERFLOW : n * size;
}

/* The argument at a position from 1 to 6. */
static __always_inline u64 argument_at(struct pt_regs *ctx, u32 position)
{
	u64 value = 0;

	/* One read each: clang would make one read of a register that it works out. */
#define ARGUMENT(number) \
	case number: \
		value = PT_REGS_PARM##number(ctx); \
		asm volatile("" : "+r"(value)); \
		break
	switch (position) {
	ARGUMENT(1);
	ARGUMENT(2);
	ARGUMENT(3);
	ARGUMENT(4);
	ARGUMENT(5);
	ARGUMENT(6);
	}
#undef ARGUMENT
	return value;
}

/* The argument in a role of a kind of function, counted from 0, or the size that is always it. */
static __always_inline u64 argument(struct pt_regs *ctx, u64 cookie, u32 role)
{
	u32 shift = COOKIE_ARGUMENT_SHIFT + role * COOKIE_ARGUMENT_BITS;
	u32 position = cookie >> shift & ((1 << COOKIE_ARGUMENT_BITS) - 1);

	return position ? argument_at(ctx, position) : cookie >> COOKIE_SIZE_SHIFT;
}

/*
 * Notes the call that this thread begins, of no size yet. Returns its record if it is to be
 * reported, else NULL: inside another call, or no room.
 */
static __always_inline struct call *begin_call(struct pt_regs *ctx, u64 id, u64 cookie,
					       struct call *call)
{
	if (!call)
		call = get_call(id);
	if (!call) {
		count(COUNTER_CALL_TABLE_FULL);
		return NULL;
	}
	if (is_nested(ctx, id, call))
		return NULL;
	if (call->sp) {
		count(COUNTER_ABANDONED_CALLS);
		call->left = 1;
	}
	call->sp = PT_REGS_SP(ctx);
	call->last_sp = 0;
	call->size = 0;
	call->old = 0;
	call->out = 0;
	call->return_address = 0;
	call->kind = cookie & COOKIE_KIND;
	if (cookie & COOKIE_THROWS) {
		call->ip = PT_REGS_IP(ctx);
		call->return_address = word_at(call->sp);
	}
	return call;
}

/* An allocator is entered. Returns whether its return is to be seen. */
static __always_inline bool begin_allocation(struct pt_regs *ctx, struct control *words, u64 id,
					     u64 cookie, struct call *call)
{
	u32 kind = cookie & COOKIE_KIND;
	u64 first, size;

	call = begin_call(ctx, id, cookie, call);
	if (!call)
		return false;
	first = argument(ctx, cookie, 0);
	if (kind == FUNCTION_ALLOC) {
		size = first;
	} else {
		size = argument(ctx, cookie, 1);
		if (kind == FUNCTION_CALLOC)
			size = array_size(first, size);
		else if (kind == FUNCTION_REALLOCARRAY)
			size = array_size(size, argument(ctx, cookie, 2));
	}
	call->size = size;
	call->hidden = size < MIN_SIZE || size > MAX_SIZE || !is_sampled(call, size);
	if (kind >= FUNCTION_POSIX_MEMALIGN)
		call->out = first;
	/* A resize begins: the old block is gone for now. */
	if (kind >= FUNCTION_REALLOC && first && take_sampled(first)) {
		call->old = first;
		emit_taking(words, id, call);
	}
	return true;
}

/* Whether a free that begins now is inside the one on record. */
static __always_inline bool is_inner_free(struct pt_regs *ctx, struct call *call)
{
	return call->free_sp && PT_REGS_SP(ctx) <= call->free_sp &&
	       !is_again(ctx, call->free_sp, call->free_ip) &&
	       word_at(call->free_sp) == call->free_return;
}

/* A function that frees is entered. */
int free_call(struct pt_regs *ctx)
{
	struct control *words = get_control();
	u64 cookie = attach_cookie(ctx);
	u64 id = current_id();
	bool outer = (cookie & COOKIE_KIND) == FUNCTION_OUTER_FREE;
	u64 address = argument(ctx, cookie, 0);
	u32 kind = EVENT_FREE;
	struct call *call;

	use_thread_stack(ctx);
	if (!address || !is_live(words))
		return 0;
	call = outer ? get_call(id) : find_call(id);
	if (call && is_nested(ctx, id, call))
		return 0;
	if (call && is_inner_free(ctx, call)) {
		kind = EVENT_INNER_FREE;
	} else if (call && outer) {
		call->free_sp = PT_REGS_SP(ctx);
		call->free_ip = PT_REGS_IP(ctx);
		call->free_return = word_at(call->free_sp);
	}
	if (take_sampled(address))
		emit_free(words, id, kind, address);
	return 0;
}

/* The block that the call made, 0 if it failed. */
static __always_inline u64 call_result(struct pt_regs *ctx, struct call *call)
{
	u64 result = PT_REGS_RC(ctx);

	if (call->kind == FUNCTION_RESIZE)
		return result >= call->size ? call->out : 0;
	if (call->kind != FUNCTION_POSIX_MEMALIGN)
		return result;
	if ((u32)result)
		return 0;
	if (read_user(&result, sizeof(result), (void *)call->out)) {
		count(COUNTER_UNREADABLE_RESULTS);
		return 0;
	}
	return result;
}

/* What the loader is about to do, or 0 when it has done it (enum in <link.h>). */
#define RT_CONSISTENT 0
#define RT_DELETE 2

/*
 * The loader's hook for debuggers (_dl_debug_state): it is called before and after each
 * change. What it adds takes nobody's place. When it takes something away, addresses may
 * mean something else from then on, and once more after it is done: rows that were made
 * in between may be for what was still there.
 */
int loader_changes(struct pt_regs *ctx)
{
	struct control *words = get_control();
	struct space *space = get_space(current_id());
	u32 state = RT_DELETE;

	use_thread_stack(ctx);
	if (!words || !space)
		return 0;
	__sync_fetch_and_add(&space->loader_calls, 1);
	if (space->loader_state)
		read_user(&state, sizeof(state), (void *)space->loader_state);
	if (state == RT_DELETE || space->unloading)
		__sync_fetch_and_add(&space->loads, 1);
	space->unloading = state == RT_DELETE;
#ifdef USE_ROWS
	if (state == RT_CONSISTENT)
		announce_mappings();
#endif
	/* Whoever waits for what is new must see it before any of it is run. */
	if (words->stop_at_loads && (!space->loader_state || state == RT_CONSISTENT))
		bpf_send_signal_thread(STOP_SIGNAL);
	return 0;
}

/*
 * sched_process_exec(task, tid before, binary): the process has begun another program.
 * None of its threads but this one is left, and it has not yet run.
 */
int process_execs(u64 *arguments)
{
	struct control *words = get_control();
	u64 id = current_id();
	struct space *space = get_space(id);

	use_thread_stack(arguments);
	if (!words || !words->reporting || !space || !is_traced(words, id))
		return 0;
	/* The call that a thread with this id was in is over. */
	calls.delete(&id);
#ifndef FOLLOW
	/* Else user space does this, for which the process stops. */
	space->trampoline = 0;
	space->loader_state = 0;
	space->unloading = 0;
	space->python.interpreter = 0;
	__sync_fetch_and_add(&space->loads, 1);
	/* Both by the kernel's own numbers. */
	space->moves += (u32)arguments[1] != bpf_get_current_pid_tgid() >> 32;
	/* From here on everything is of another image: what is reported later of this one is
	   of a memory that is no more. */
	space->image += 1;
	space->lineage = space->image;
#endif
	return 0;
}

#ifdef FOLLOW
/* Flags of clone(2). */
#define CLONE_VM 0x100
#define CLONE_THREAD 0x10000
#define CLONE_UNTRACED 0x800000

/* task_newtask(task, flags): this thread has made another, which has not run yet. */
int process_forks(u64 *arguments)
{
	struct control *words = get_control();
	u64 id = current_id();
	u64 flags = arguments[1];

	use_thread_stack(arguments);
	if (flags & (CLONE_THREAD | CLONE_UNTRACED))
		return 0;
	if (words && words->reporting && get_space(id))
		mark_fork(words, id, flags & CLONE_VM);
	return 0;
}
#endif

/*
 * glibc is about to free what a thread that ends has cached: blocks that are freed already. Those
 * frees are inside this call, as inside another free.
 */
int cache_drains(struct pt_regs *ctx)
{
	struct call *call;

	use_thread_stack(ctx);
	call = get_call(current_id());
	if (call) {
		call->free_sp = PT_REGS_SP(ctx);
		call->free_ip = PT_REGS_IP(ctx);
		call->free_return = word_at(call->free_sp);
	}
	return 0;
}

/* For measuring what a probe costs by itself. */
int do_nothing(struct pt_regs *ctx)
{
	return 0;
}

/* The call on record was of no avail: what it was to resize lives on. */
static __always_inline void take_back(struct control *words, u64 id, struct call *call)
{
	if (call->old && call->kind != FUNCTION_REALLOCF && note_sampled(call->old))
		emit_restore(words, id, call);
}

/*
 * The C++ library makes an exception (__cxa_allocate_exception). If that is in a function
 * that may throw, it does: its call is over, and the exception's own memory is no part
 * of it.
 */
int exception_enter(struct pt_regs *ctx)
{
	struct control *words = get_control();
	u64 id = current_id();
	struct call *call = find_call(id);

	use_thread_stack(ctx);
	if (!is_live(words) || !call || !call->sp || !call->return_address)
		return 0;
	take_back(words, id, call);
	call->last_sp = call->sp;
	call->sp = 0;
	return 0;
}

/*
 * Whether a session's program runs at the function's return. There the address is another
 * one; asking for the probe's takes longer than most else that is done here, and is needed
 * only where both are at the same place of a page, and a return could be: without a record
 * there is none to come.
 */
static __always_inline bool is_return(struct pt_regs *ctx, u64 cookie, struct call *call)
{
	u64 ip = PT_REGS_IP(ctx);

	if ((ip ^ cookie >> COOKIE_PLACE_SHIFT) & COOKIE_PLACE_MASK)
		return true;
	if (!call || !(call->sp || call->left))
		return false;
	return probe_address(ctx) != ip;
}

/* The call on record ends here. NULL if it is not that one which does. */
static __always_inline struct call *end_call(struct pt_regs *ctx, u64 cookie, struct call *call)
{
	bool at_exit = (cookie & COOKIE_KIND) == FUNCTION_EXIT;
	u64 sp = PT_REGS_SP(ctx) - RETURN_SP_DELTA;

	if (!call) {
		count(COUNTER_EARLIER_CALLS);
		return NULL;
	}
	if (!call->sp) {
		if (sp != call->last_sp && !at_exit)
			count(COUNTER_UNPAIRED_RETURNS);
		return NULL;
	}
	if (call->return_address && PT_REGS_SP(ctx) == call->sp)
		sp = call->sp;
	if (sp < call->sp)
		return NULL;
	if (sp > call->sp) {
		/* Others than the function that may throw may get to its exit. */
		if (at_exit)
			return NULL;
		/* The call on record lies below a frame that is gone: it was left. */
		count(COUNTER_ABANDONED_CALLS);
		count(COUNTER_UNPAIRED_RETURNS);
		call->sp = 0;
		call->left = 1;
		return NULL;
	}
	call->last_sp = sp;
	call->sp = 0;
	return call;
}

/* The call on record has ended, as the result says. Whether a block is to be reported. */
static __always_inline bool end_allocation(struct pt_regs *ctx, struct control *words, u64 id,
					   struct call *call)
{
	u64 address = call_result(ctx, call);

	if (!address) {
		/* A realloc to no bytes has freed the block. */
		if (call->size)
			take_back(words, id, call);
		return false;
	}
	if (call->hidden)
		return false;
	/* Of a custom allocator of which another argument is the size: that is a pointer, say. */
	if (call->size > ADDRESSES - address) {
		count(COUNTER_IMPOSSIBLE_SIZES);
		return false;
	}
	call->result = address;
	return note_sampled(address);
}

/* Reports the block. */
static __always_inline void report_allocation(struct pt_regs *ctx, struct control *words, u64 id,
					      struct call *call)
{
	u64 stack_id = capture_stack(ctx, words, id, call);

	emit_alloc(words, id, call->result, call->size, stack_id);
}

/*
 * A program for entries and ends of functions. What it returns at an entry is for sessions:
 * 1 for no return. (Other links would take the probe away. At an end that is read anew: kept
 * until then it would tell the ways there apart, and the verifier would follow the walk twice.)
 */
#define CALL_PROGRAM(name, begin, end, report) \
	int name(struct pt_regs *ctx) \
	{ \
		struct control *words = get_control(); \
		u64 cookie = attach_cookie(ctx); \
		u64 id = current_id(); \
		struct call *call; \
		u64 no_return; \
\
		use_thread_stack(ctx); \
		if (!words) \
			return 0; \
		no_return = words->sessions & ~(cookie >> COOKIE_THROWS_SHIFT) & 1; \
		call = find_call(id); \
		if (!has_walked(call)) { \
			if (!is_live(words)) \
				return no_return; \
			if ((cookie & COOKIE_KIND) < FUNCTION_RETURN && \
			    !(no_return && is_return(ctx, cookie, call))) \
				return begin(ctx, words, id, cookie, call) ? 0 : no_return; \
			call = end_call(ctx, cookie, call); \
			if (!call || !end(ctx, words, id, call)) \
				goto ended; \
			walk_python_first(ctx, id, call); \
		} \
		/* Else what is known of them differs: the verifier would follow the walk twice. */ \
		asm volatile("" : "+r"(ctx), "+r"(words), "+r"(id), "+r"(call) : : "memory"); \
		report(ctx, words, id, call); \
	ended: \
		return *(volatile u64 *)&words->sessions & ~(cookie >> COOKIE_THROWS_SHIFT) & 1; \
	}

CALL_PROGRAM(allocator_call, begin_allocation, end_allocation, report_allocation)
