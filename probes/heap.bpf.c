// SPDX-License-Identifier: (MIT OR GPL-2.0)
/*
 * Probes on the malloc family: which blocks a process has, and who asked for them.
 *
 * Contract
 *   Needs Linux 5.10 (ring buffer, jiffies). User space attaches `<kind>_enter` programs to
 *   allocator functions at a place where the argument registers and the stack
 *   pointer are as at entry, and `call_return` to their returns; the kernel calls
 *   them for the target's memory only. Nothing is reported until control.live.
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
 * Order
 *   A free is reported before it happens, an allocation after it has happened, all
 *   through one ring: of two events on one address the earlier one comes first. It stays
 *   so when the ring is full (spill.h).
 *
 * Units: bytes, nanoseconds of CLOCK_MONOTONIC.
 */
#include <uapi/linux/ptrace.h>
#include "event.h"
#include "maps.h"
#include "stack.h"
#include "walk_rows.h" /* or walk_fp.h */
#include "intern.h"
#include "spill.h"
#include "emit.h"

#ifndef MIN_SIZE
#define MIN_SIZE 0ULL
#endif
#ifndef MAX_SIZE
#define MAX_SIZE 0xffffffffffffffffULL
#endif

#define SIZE_OVERFLOW 0xffffffffffffffffULL

/* A return has popped the return address; the entry had not. */
#define RETURN_SP_DELTA 8

static __always_inline struct control *get_control(void)
{
	u32 zero = 0;

	return control.lookup(&zero);
}

/* Whether a call with this stack pointer happens inside the one on record. */
static __always_inline bool is_nested(struct control *words, struct call *call, u64 sp)
{
	u64 word = 0;

	if (!call->sp || sp > call->sp)
		return false;
	if (!words->trampoline)
		return true;
	bpf_probe_read_user(&word, sizeof(word), (void *)call->sp);
	return word == words->trampoline;
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

/*
 * Notes the call that this thread begins. Returns its record if it is to be
 * reported, else NULL: not live yet, inside another call, or no room.
 */
static __always_inline struct call *begin_call(struct pt_regs *ctx, struct control *words, u64 id,
					       u32 kind, u64 size)
{
	u64 sp = PT_REGS_SP(ctx);
	struct call *call;

	if (!words || !words->live)
		return NULL;
	call = calls.lookup(&id);
	if (!call) {
		u32 zero = 0;
		struct call *none = no_call.lookup(&zero);

		if (!none)
			return NULL;
		calls.update(&id, none);
		call = calls.lookup(&id);
		if (!call) {
			count(COUNTER_CALL_TABLE_FULL);
			return NULL;
		}
		/* Above all that an earlier owner of this thread id may have had. */
		call->takings = bpf_ktime_get_ns();
	}
	if (is_nested(words, call, sp))
		return NULL;
	if (call->sp)
		count(COUNTER_ABANDONED_CALLS);
	call->sp = sp;
	call->last_sp = 0;
	call->size = size;
	call->old = 0;
	call->out = 0;
	call->kind = kind;
	call->hidden = size < MIN_SIZE || size > MAX_SIZE || !is_sampled(call, size);
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

/* An entry of a function that only allocates. */
static __always_inline struct call *begin_alloc(struct pt_regs *ctx, u32 kind, u64 size)
{
	return begin_call(ctx, get_control(), bpf_get_current_pid_tgid(), kind, size);
}

/* realloc's entry: the old block is gone for now. */
static __always_inline void begin_realloc(struct pt_regs *ctx, u64 old, u64 size)
{
	struct control *words = get_control();
	u64 id = bpf_get_current_pid_tgid();
	struct call *call = begin_call(ctx, words, id, CALL_REALLOC, size);

	if (!call)
		return;
	if (old && take_sampled(old)) {
		call->old = old;
		emit_taking(words, id, call);
	}
}

/* malloc(size), valloc(size), pvalloc(size) */
int alloc_enter(struct pt_regs *ctx)
{
	begin_alloc(ctx, CALL_ALLOC, PT_REGS_PARM1(ctx));
	return 0;
}

/* calloc(n, size) */
int calloc_enter(struct pt_regs *ctx)
{
	begin_alloc(ctx, CALL_ALLOC, array_size(PT_REGS_PARM1(ctx), PT_REGS_PARM2(ctx)));
	return 0;
}

/* memalign(alignment, size), aligned_alloc(alignment, size) */
int memalign_enter(struct pt_regs *ctx)
{
	begin_alloc(ctx, CALL_ALLOC, PT_REGS_PARM2(ctx));
	return 0;
}

/* posix_memalign(out, alignment, size) */
int posix_memalign_enter(struct pt_regs *ctx)
{
	struct call *call = begin_alloc(ctx, CALL_POSIX_MEMALIGN, PT_REGS_PARM3(ctx));

	if (call)
		call->out = PT_REGS_PARM1(ctx);
	return 0;
}

/* realloc(old, size) */
int realloc_enter(struct pt_regs *ctx)
{
	begin_realloc(ctx, PT_REGS_PARM1(ctx), PT_REGS_PARM2(ctx));
	return 0;
}

/* reallocarray(old, n, size) */
int reallocarray_enter(struct pt_regs *ctx)
{
	begin_realloc(ctx, PT_REGS_PARM1(ctx),
		      array_size(PT_REGS_PARM2(ctx), PT_REGS_PARM3(ctx)));
	return 0;
}

/* free(address), cfree(address) */
int free_enter(struct pt_regs *ctx)
{
	struct control *words = get_control();
	u64 id = bpf_get_current_pid_tgid();
	u64 address = PT_REGS_PARM1(ctx);
	struct call *call;

	if (!address || !words || !words->live)
		return 0;
	call = calls.lookup(&id);
	if (call && is_nested(words, call, PT_REGS_SP(ctx)))
		return 0;
	if (take_sampled(address))
		emit_free(words, id, address);
	return 0;
}

/* The block that the call made, 0 if it failed. */
static __always_inline u64 call_result(struct pt_regs *ctx, struct call *call)
{
	u64 result = PT_REGS_RC(ctx);

	if (call->kind != CALL_POSIX_MEMALIGN)
		return result;
	if ((u32)result)
		return 0;
	if (bpf_probe_read_user(&result, sizeof(result), (void *)call->out)) {
		count(COUNTER_UNREADABLE_RESULTS);
		return 0;
	}
	return result;
}

/* What the loader is about to do, or 0 when it has done it (enum in <link.h>). */
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
	u32 state = RT_DELETE;

	if (!words)
		return 0;
	if (words->loader_state)
		bpf_probe_read_user(&state, sizeof(state), (void *)words->loader_state);
	if (state == RT_DELETE || words->unloading)
		__sync_fetch_and_add(&words->loads, 1);
	words->unloading = state == RT_DELETE;
	return 0;
}

/* For measuring what a probe costs by itself. */
int do_nothing(struct pt_regs *ctx)
{
	return 0;
}

/* Any allocator's return. */
int call_return(struct pt_regs *ctx)
{
	struct control *words = get_control();
	u64 id = bpf_get_current_pid_tgid();
	u64 sp = PT_REGS_SP(ctx) - RETURN_SP_DELTA;
	struct call *call;
	u64 address;

	if (!words || !words->live)
		return 0;
	call = calls.lookup(&id);
	if (!call) {
		count(COUNTER_EARLIER_CALLS);
		return 0;
	}
	if (!call->sp) {
		if (sp != call->last_sp)
			count(COUNTER_UNPAIRED_RETURNS);
		return 0;
	}
	if (sp < call->sp)
		return 0;
	if (sp > call->sp) {
		/* The call on record lies below a frame that is gone: it was left. */
		count(COUNTER_ABANDONED_CALLS);
		count(COUNTER_UNPAIRED_RETURNS);
		call->sp = 0;
		return 0;
	}
	call->last_sp = sp;
	call->sp = 0;

	address = call_result(ctx, call);
	if (!address) {
		if (call->old && call->size && note_sampled(call->old))
			emit_restore(words, id, call);
		return 0;
	}
	if (!call->hidden && note_sampled(address))
		emit_alloc(words, id, address, call->size, capture_stack(ctx, words, call));
	return 0;
}
