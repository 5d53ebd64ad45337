// SPDX-License-Identifier: (MIT OR GPL-2.0)
/*
 * Probes on mmap(2) and its kin, for memory that a program asks the kernel for by itself.
 *
 * Calls made inside an allocator's are part of its blocks: pairing (heap.bpf.c) leaves them
 * out. Order is as with blocks: what goes away is reported before it happens, what is new
 * after it has happened, so that of two events on one page the earlier one comes first.
 * Events have a ring of their own, since they are few and ranges have no place in a map
 * that is keyed by address. Lengths are as given: user space rounds them to whole pages.
 */

/* Flags of mremap(2). */
#define MREMAP_DONTUNMAP 4

/* What mmap returns when it fails. */
#define MAP_FAILED 0xffffffffffffffffULL

static __always_inline void emit_range(struct control *words, u64 id, u32 kind, u64 start,
				       u64 size, u64 stack_id)
{
	struct event *event = mappings.ringbuf_reserve(sizeof(struct event));

	if (!event) {
		count(COUNTER_LOST_MAPPINGS);
		return;
	}
	event->address = start;
	event->size_tag = (size & ((1ULL << EVENT_SIZE_BITS) - 1)) | (u64)kind << EVENT_SIZE_BITS;
	event->stack_id = stack_id;
	event->time_ns = tick_ns(words);
	event->tid = (u32)id;
	event->image = key_now(words, id, start).image;
	mappings.ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

/* A call that changes what is mapped. `start`, `size`: what it takes away, if anything. */
static __always_inline struct call *begin_mapping(struct pt_regs *ctx, u32 kind, u64 start,
						  u64 size)
{
	struct control *words = get_control();
	u64 id = current_id();
	struct call *call = begin_call(ctx, words, id, kind, 0);

	if (!call)
		return NULL;
	call->old = start;
	call->size = size;
	if (size)
		emit_range(words, id, EVENT_UNMAP, start, size, 0);
	return call;
}

/* mmap(…, size, …) -> start */
static __always_inline void begin_map(struct pt_regs *ctx, u64 size)
{
	struct call *call = begin_mapping(ctx, CALL_MAP, 0, 0);

	if (call)
		call->out = size;
}

/* munmap(start, size) -> 0 */
static __always_inline void begin_unmap(struct pt_regs *ctx, u64 start, u64 size)
{
	begin_mapping(ctx, CALL_UNMAP, start, size);
}

/* mremap(old, old size, new size, flags) -> new; of no size, or with a flag, the old stays */
static __always_inline void begin_remap(struct pt_regs *ctx, u64 old, u64 old_size, u64 size,
					u64 flags)
{
	struct call *call = begin_mapping(ctx, CALL_MAP, old,
					  flags & MREMAP_DONTUNMAP ? 0 : old_size);

	if (call)
		call->out = size;
}

/* sbrk(increment) -> old break */
static __always_inline void begin_sbrk(struct pt_regs *ctx, u64 increment)
{
	struct call *call = begin_mapping(ctx, CALL_SBRK, 0, 0);

	if (call)
		call->out = increment;
}

static __always_inline u64 whole_pages(u64 address)
{
	return (address + PAGE_SIZE - 1) & ~(u64)(PAGE_SIZE - 1);
}

/* The return of any of these. */
int mapping_return(struct pt_regs *ctx)
{
	struct control *words = get_control();
	u64 id = current_id();
	u64 result = PT_REGS_RC(ctx);
	struct call *call = end_call(ctx, words, id);
	u64 end;

	use_thread_stack(ctx);
	if (!call)
		return 0;
	if (call->kind == CALL_UNMAP ? (u32)result != 0 : result == MAP_FAILED) {
		if (call->size)
			emit_range(words, id, EVENT_UNMAP_FAILED, call->old, call->size, 0);
		return 0;
	}
	end = result + call->out;
	if (call->kind == CALL_SBRK) {
		/* A page is there as soon as the break is in it. */
		result = whole_pages(result);
		end = whole_pages(end);
	}
	if (end < result)
		emit_range(words, id, EVENT_UNMAP, end, result - end, 0);
	else if (end > result && call->kind != CALL_UNMAP)
		emit_range(words, id, EVENT_MAP, result, end - result,
			   capture_stack(ctx, words, call));
	return 0;
}
