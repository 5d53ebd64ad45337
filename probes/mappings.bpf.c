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

/* A function that changes what is mapped is entered. */
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
	/* The old mapping goes, unless it is of no size, or a flag says that it stays. */
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

/* The call on record has ended, as the result says. Whether something mapped is to be reported. */
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
		/* A page is there as soon as the break is in it. */
		result = whole_pages(result);
		end = whole_pages(end);
	}
	if (end < result)
		emit_range(words, id, EVENT_UNMAP, end, result - end, 0);
	call->result = result;
	call->size = end - result;
	return end > result && call->kind != FUNCTION_UNMAP;
}

/* Reports what is mapped. */
static __always_inline void report_mapping(struct pt_regs *ctx, struct control *words, u64 id,
					   struct call *call)
{
	u64 stack_id = capture_stack(ctx, words, id, call);

	emit_range(words, id, EVENT_MAP, call->result, call->size, stack_id);
}

CALL_PROGRAM(mapping_call, begin_mapping, end_mapping, report_mapping)
