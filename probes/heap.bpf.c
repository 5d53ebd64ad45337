// SPDX-License-Identifier: (MIT OR GPL-2.0)
/*
 * Probes on the malloc family: report a process's blocks and the call stacks that allocated them.
 *
 * Contract
 *   Needs Linux 6.1. User space attaches `allocator_call` to each allocator function, at an
 *   instruction where the argument registers and the stack pointer are as at entry, and to its
 *   return. It attaches `free_call` to each function that frees. Cookies say which arguments
 *   mean what (event.h). The kernel runs the programs for the target's memory only, and may
 *   preempt them (preemption.h). Nothing is reported until control.reporting is REPORTING_LIVE.
 *
 * Pairing
 *   An allocation is reported when the allocator returns, so its arguments are kept
 *   per thread in between. Only the outermost call counts (calloc may call malloc).
 *   A call is inside the recorded one if its stack pointer is not above the recorded
 *   one, and if the recorded call's return address, which a return probe has replaced, is
 *   still in its frame (is_in_place). Otherwise longjmp or an exception has left the recorded
 *   call, and the new call replaces it. A function that jumps to another (reallocarray to realloc) has the
 *   same stack pointer, and the kernel reports both returns together: the first one
 *   completes the call, and last_sp identifies the second one.
 *
 * Sessions
 *   Since Linux 6.13 one probe can serve a function's entry and its return: the program's return
 *   value at the entry decides whether the kernel traps the return. Nested calls have no return.
 *   If two processes are traced in one file, the kernel runs the probes of both for each call in
 *   either process, and a program that returns 0 requests the return.
 *
 * Functions that may throw
 *   A return probe replaces the return address. An exception cannot pass the
 *   new address and would end the target. Functions that may throw (C++'s operator new)
 *   therefore have the program on each of their ret instructions, and no session, in which
 *   another process could request the return. Their return address stays on the stack and in
 *   the record. A call that ends by an exception reaches no ret; `exception_enter` sees it.
 *
 * Frees inside frees
 *   free has no return probe. A free is inside another one if the outer one's return address
 *   is still in place and the stack has grown since. The inner one may free the same block,
 *   or part of a larger block that was never reported, or any other block: user space can
 *   tell them apart.
 *
 * Order
 *   A free is reported before it happens, and an allocation after it has happened, all through
 *   one ring (ring.h). So the earlier of two events on one address comes first, even when the
 *   ring is full (spill.h).
 *
 * Units: bytes, nanoseconds of CLOCK_MONOTONIC.
 */
#include <uapi/linux/ptrace.h>
#include "event.h"
#include "maps.h"
#include "preemption.h"
#include "read.h"
#include "x86_64.h" /* or aarch64.h */
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

/* Whether the recorded function is entered again: its recorded call was left without a return. */
static __always_inline bool is_again(struct pt_regs *ctx, u64 sp, u64 ip)
{
	return PT_REGS_SP(ctx) == sp && PT_REGS_IP(ctx) == ip;
}

/* Whether the call that begins now is nested in the recorded one. */
static __always_inline bool is_nested(struct pt_regs *ctx, u64 id, struct call *call)
{
	struct space *space;
	u64 trampoline;

	if (!call->sp || PT_REGS_SP(ctx) > call->sp)
		return false;
	space = get_space(id);
	trampoline = space ? space->trampoline : 0;
	if (call->return_address) {
		if (is_again(ctx, call->sp, call->ip))
			return false;
		/* It may have jumped to a function that has a return probe. */
		return is_in_place(ctx, call->sp, call->slot, call->return_address, trampoline);
	}
	return !trampoline || is_in_place(ctx, call->sp, call->slot, trampoline, trampoline);
}

/*
 * Sampling by bytes: sample points lie at exponentially distributed distances along all bytes
 * that a thread allocates, SAMPLE_BYTES apart on average. A block is sampled if a point falls
 * into it. Without SAMPLE_BYTES every block is sampled.
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

/* Whether a block about to be freed was sampled. Removes its mark. */
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

/*
 * Finds the slot in `threads` that has this value, among those of a thread. MAX_THREADS if there is
 * none.
 */
static __always_inline u32 find_slot(u64 id, u64 value)
{
	u32 slot = id & (MAX_THREADS - 1);
	u64 *owner = threads.lookup(&slot);

	if (owner && *(volatile u64 *)owner == value)
		return slot;
#pragma clang loop unroll(disable)
	for (u32 i = 1; i < THREAD_SLOTS; i++) {
		slot = (slot + 1) & (MAX_THREADS - 1);
		owner = threads.lookup(&slot);
		if (owner && *(volatile u64 *)owner == value)
			return slot;
	}
	return MAX_THREADS;
}

/* This thread's record; NULL if there is none. */
static __always_inline struct call *find_call(u64 id)
{
	u32 slot = find_slot(id, id);

	return calls.lookup(&slot);
}

/* Makes it the record of a thread that has made no call. */
static __always_inline void reset_call(struct call *call)
{
	__builtin_memset(call, 0, sizeof(*call));
	/* Higher than any number that an earlier thread of this id used. */
	call->takings = bpf_ktime_get_ns();
}

/* This thread's record, created if there is none. NULL if there is no slot for it. */
static __always_inline struct call *get_call(u64 id)
{
	struct call *call = find_call(id);
	u64 *owner;
	u32 slot;

	if (call)
		return call;
	slot = find_slot(id, 0);
	owner = threads.lookup(&slot);
	/* Another thread may take it first. */
	if (!owner || __sync_val_compare_and_swap(owner, 0, id)) {
		slot = find_slot(id, 0);
		owner = threads.lookup(&slot);
		if (!owner || __sync_val_compare_and_swap(owner, 0, id))
			return NULL;
	}
	call = calls.lookup(&slot);
	if (call)
		reset_call(call);
	return call;
}

/* n * size, or SIZE_OVERFLOW, which no allocator can satisfy. */
static __always_inline u64 array_size(u64 n, u64 size)
{
	u64 limit;

	if (!size)
		return 0;
	limit = SIZE_OVERFLOW / size;
	/* Otherwise clang recognizes an overflow check and calls a 128-bit multiplication. */
	asm volatile("" : "+r"(limit));
	return n > limit ? SIZE_OVERFLOW : n * size;
}

/* The argument at a position from 1 to 6. */
static __always_inline u64 argument_at(struct pt_regs *ctx, u32 position)
{
	u64 value = 0;

	/* One read each: clang would merge them into one read at a computed offset. */
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

/* The function's argument in a role, counted from 0, or the fixed size in the cookie. */
static __always_inline u64 argument(struct pt_regs *ctx, u64 cookie, u32 role)
{
	u32 shift = COOKIE_ARGUMENT_SHIFT + role * COOKIE_ARGUMENT_BITS;
	u32 position = cookie >> shift & ((1 << COOKIE_ARGUMENT_BITS) - 1);

	return position ? argument_at(ctx, position) : cookie >> COOKIE_SIZE_SHIFT;
}

/*
 * Records the call that this thread begins, without its size. Returns the record, or NULL if the
 * call is nested in another one or the map is full.
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
	if (is_nested(ctx, id, call)) {
		note_jump(ctx, call->sp, &call->slot, cookie);
		return NULL;
	}
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
	note_slot(&call->slot, cookie);
	if (cookie & COOKIE_THROWS) {
		call->ip = PT_REGS_IP(ctx);
		call->return_address = return_address(ctx);
	}
	return call;
}

/* Entry of an allocator. Returns whether the probe needs to see its return. */
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
		call->out = BLOCK_ADDRESS(first);
	/* A resize begins: the old block counts as freed until the resize fails. */
	if (kind >= FUNCTION_REALLOC && first && take_sampled(BLOCK_ADDRESS(first))) {
		call->old = BLOCK_ADDRESS(first);
		emit_taking(words, id, call);
	}
	return true;
}

/* Whether the free that begins now is inside the recorded one. */
static __always_inline bool is_inner_free(struct pt_regs *ctx, struct call *call)
{
	return call->free_sp && PT_REGS_SP(ctx) <= call->free_sp &&
	       !is_again(ctx, call->free_sp, call->free_ip) &&
	       is_in_place(ctx, call->free_sp, call->free_slot, call->free_return,
			   call->free_return);
}

/* Records a function in which further frees are inner ones. */
static __always_inline void begin_free(struct pt_regs *ctx, struct call *call, u64 cookie)
{
	call->free_sp = PT_REGS_SP(ctx);
	call->free_ip = PT_REGS_IP(ctx);
	call->free_return = return_address(ctx);
	note_slot(&call->free_slot, cookie);
}

/* Entry of a function that frees. */
int free_call(struct pt_regs *ctx)
{
	struct control *words = get_control();
	u64 cookie = attach_cookie(ctx);
	u64 id = current_id();
	u32 function = cookie & COOKIE_KIND;
	bool outer = function == FUNCTION_OUTER_FREE;
	u64 address = BLOCK_ADDRESS(argument(ctx, cookie, 0));
	u32 kind = EVENT_FREE;
	struct call *call;

	use_thread_stack(ctx);
	if (function == FUNCTION_CACHE_DRAIN) {
		call = get_call(id);
		if (call)
			begin_free(ctx, call, cookie);
		return 0;
	}
	if (!address || !is_live(words))
		return 0;
	call = outer ? get_call(id) : find_call(id);
	if (call && is_nested(ctx, id, call))
		return 0;
	if (call && is_inner_free(ctx, call)) {
		kind = EVENT_INNER_FREE;
		note_jump(ctx, call->free_sp, &call->free_slot, cookie);
	} else if (call && outer) {
		begin_free(ctx, call, cookie);
	}
	if (take_sampled(address))
		emit_free(words, id, kind, address);
	return 0;
}

/* The block that the call allocated; 0 if it failed. */
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

/* The loader's pending change, or 0 once it has finished (r_state in <link.h>). */
#define RT_CONSISTENT 0
#define RT_DELETE 2

/*
 * The loader's hook for debuggers (_dl_debug_state), called before and after each change.
 * A library that it adds replaces nothing. When it removes one, addresses may change their
 * meaning at once, and again after it has finished: rows made in between may describe the
 * library that was still mapped.
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
	if (state == RT_DELETE)
		space->sent_library = 0;
#ifdef USE_ROWS
	if (state == RT_CONSISTENT)
		announce_mappings(space);
#endif
	/* A follower must see the new mapping before the target runs any of its code. */
	if (words->stop_at_loads && (!space->loader_state || state == RT_CONSISTENT))
		bpf_send_signal_thread(STOP_SIGNAL);
	return 0;
}

/*
 * sched_process_exec(task, tid before, binary): the process has executed another program.
 * Only this thread is left, and it has not run yet.
 */
int process_execs(u64 *arguments)
{
	struct control *words = get_control();
	u64 id = current_id();
	struct space *space = get_space(id);
	struct call *call;

	use_thread_stack(arguments);
	if (!words || !words->reporting || !space || !is_traced(words, id))
		return 0;
	/* exec ended the call that a thread with this id was in. */
	call = find_call(id);
	if (call)
		reset_call(call);
#ifndef FOLLOW
	/* With FOLLOW user space does this while the process is stopped. */
	space->trampoline = 0;
	space->loader_state = 0;
	space->first_library = space->sent_library = 0;
	space->unloading = 0;
	space->python.interpreter = 0;
	__sync_fetch_and_add(&space->loads, 1);
	/* Both are ids of the initial PID namespace. */
	space->moves += (u32)arguments[1] != bpf_get_current_pid_tgid() >> 32;
	/* All later events belong to the new image. Those reported late for the old one refer
	   to memory that no longer exists. */
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

/* task_newtask(task, flags): this thread has created another one, which has not run yet. */
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

/* An empty program, to measure the cost of a probe alone. */
int do_nothing(struct pt_regs *ctx)
{
	return 0;
}

/* The recorded resize failed: its old block stays live. */
static __always_inline void take_back(struct control *words, u64 id, struct call *call)
{
	if (call->old && call->kind != FUNCTION_REALLOCF && note_sampled(call->old))
		emit_restore(words, id, call);
}

/*
 * The C++ library allocates an exception (__cxa_allocate_exception). If the recorded function
 * may throw, it now does: its call has ended, and the exception's own memory does not belong
 * to it.
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
 * Whether a session's program runs at the function's return, where the address differs from the
 * probe's. Asking the kernel for the probe's address is slow. It is needed only if both have the
 * same offset in their pages and a return is possible, which takes a record of a call.
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

/* Ends the recorded call. NULL if another call ends here. */
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
		/* A function that does not throw may reach this exit, too. */
		if (at_exit)
			return NULL;
		/* The recorded call lies below a frame that is gone: it was left without return. */
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

/* Evaluates the ended call's result. Returns whether a block is to be reported. */
static __always_inline bool end_allocation(struct pt_regs *ctx, struct control *words, u64 id,
					   struct call *call)
{
	u64 address = BLOCK_ADDRESS(call_result(ctx, call));

	if (!address) {
		/* A realloc to 0 bytes has freed the block. */
		if (call->size)
			take_back(words, id, call);
		return false;
	}
	if (call->hidden)
		return false;
	/* A custom allocator was declared with a wrong size argument, for example a pointer. */
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
 * A program for entries and ends of functions. Its return value at an entry is for sessions:
 * 1 requests no return. (With other links, 1 would remove the probe. At an end the value is read
 * again: if it were kept, the verifier would distinguish the paths and follow the walk twice.)
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
		/* Otherwise their states differ, and the verifier follows the walk twice. */ \
		asm volatile("" : "+r"(ctx), "+r"(words), "+r"(id), "+r"(call) : : "memory"); \
		report(ctx, words, id, call); \
	ended: \
		return *(volatile u64 *)&words->sessions & ~(cookie >> COOKIE_THROWS_SHIFT) & 1; \
	}

CALL_PROGRAM(allocator_call, begin_allocation, end_allocation, report_allocation)
