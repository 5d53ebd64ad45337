// SPDX-License-Identifier: (MIT OR GPL-2.0)
/*
 * Probes on mmap(2) and related calls, for memory that a program itself requests from the kernel.
 *
 * Calls inside an allocator's call belong to its blocks: pairing (heap.bpf.c) ignores them.
 * The order is that of blocks: an unmapping is reported before it happens, and a mapping after
 * it has happened, so the earlier of two events on one page comes first. The events have their
 * own ring, since they are few, and since a map keyed by address cannot hold ranges. Lengths
 * are those of the call: user space rounds them to whole pages.
 */

/* Flags of mremap(2). */
#define MREMAP_DONTUNMAP 4

/* What mmap returns when it fails. */
#define MAP_FAILED 0xffffffffffffffffULL

static __always_inline void emit_range(struct control *words, u64 id, u32 kind, u64 start,
				       u64 size, u64 stack_id)
{
	struct spill_key key = key_now(words, id, start);
	struct spilled range =
		describe(words, id, size & ((1ULL << EVENT_SIZE_BITS) - 1), stack_id);
	struct event *event;
	u64 slot = 0;
	u32 at;

	key.parity = 0; /* this ring has no epochs */
	if (!reserve_slot(RING_MAPPINGS, MAPPINGS, &slot)) {
		count(COUNTER_LOST_MAPPINGS);
		return;
	}
	at = slot & (MAPPINGS - 1);
	event = mappings.lookup(&at);
	if (event)
		write_slot(event, slot, MAPPINGS, kind, &key, &range);
}

/* Entry of a function that changes mappings. */
static __always_inline bool begin_mapping(struct pt_regs *ctx, struct control *words, u64 id,
					  u64 cookie, struct call *call)
{
	u32 kind = cookie & COOKIE_KIND;
	u64 first;

	call = begin_call(ctx, id, cookie, call);
	if (!call)
		return false;
	first = argument(ctx, cookie, 0);
	if (kind == FUNCTION_MAP || kind == FUNCTION_SBRK) {
		call->out = first;
		return true;
	}
	if (kind == FUNCTION_REMAP)
		call->out = argument(ctx, cookie, 2);
	/* The old mapping ends, unless its size is 0 or MREMAP_DONTUNMAP keeps it. */
	if (kind == FUNCTION_UNMAP || !(argument(ctx, cookie, 3) & MREMAP_DONTUNMAP))
		call->size = argument(ctx, cookie, 1);
	call->old = first;
	if (call->size)
		emit_range(words, id, EVENT_UNMAP, first, call->size, 0);
	return true;
}

static __always_inline u64 whole_pages(u64 address)
{
	return (address + PAGE_SIZE - 1) & ~(u64)(PAGE_SIZE - 1);
}

/* Evaluates the ended call's result. Returns whether a mapping is to be reported. */
static __always_inline bool end_mapping(struct pt_regs *ctx, struct control *words, u64 id,
					struct call *call)
{
	u64 result = PT_REGS_RC(ctx);
	u64 end;

	if (call->kind == FUNCTION_UNMAP ? (u32)result != 0 : result == MAP_FAILED) {
		if (call->size)
			emit_range(words, id, EVENT_UNMAP_FAILED, call->old, call->size, 0);
		return false;
	}
	end = result + call->out;
	if (call->kind == FUNCTION_SBRK) {
		/* A page is mapped as soon as the break lies in it. */
		result = whole_pages(result);
		end = whole_pages(end);
	}
	if (end < result)
		emit_range(words, id, EVENT_UNMAP, end, result - end, 0);
	call->result = result;
	call->size = end - result;
	return end > result && call->kind != FUNCTION_UNMAP;
}

/* Reports the mapping. */
static __always_inline void report_mapping(struct pt_regs *ctx, struct control *words, u64 id,
					   struct call *call)
{
	u64 stack_id = capture_stack(ctx, words, id, call);

	emit_range(words, id, EVENT_MAP, call->result, call->size, stack_id);
}

CALL_PROGRAM(mapping_call, begin_mapping, end_mapping, report_mapping)
