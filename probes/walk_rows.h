/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/*
 * Walking call stacks by rows: what call-frame information says of each call site, in 64
 * bits (row.h). No frame pointers are needed. Where a row is missing, the stack is left
 * to user space, which finishes it and supplies the row for the next time.
 */
#include "row.h"
#include "window.h"
#include "memo.h"
#include "step_x86_64.h" /* or step_aarch64.h */

/*
 * The row for an address; 0 if there is none. User space may be giving the way to another key:
 * it takes the old key away, writes the row, then the new key, and memory shows it in that
 * order. A key that is still there after its row was read belongs to that row. `none_after` has
 * the reads happen in this order.
 */
static __always_inline u64 find_row(u64 address, u64 tag)
{
	u64 key = address | tag;
	u64 hashed = key & ((1ULL << (KEY_TAG_SHIFT + ROW_SALT_BITS)) - 1);
	u32 index = (hashed * 0x9e3779b97f4a7c15ULL) >> (64 - ROW_SETS_LOG2);
	volatile struct row_set *set = rows.lookup(&index);

	if (!set)
		return 0;
	for (u32 way = 0; way < ROW_WAYS; way++) {
		u64 found = set->keys[way];

		if (found == key) {
			u64 row = set->rows[(way + none_after(found)) % ROW_WAYS];

			return set->keys[(way + none_after(row)) % ROW_WAYS] == key ? row : 0;
		}
	}
	return 0;
}

/* The tag of the last mappings that user space has read, for keys; 0: it has not read any. */
static __always_inline u64 tag_of(struct space *space, u64 published)
{
	return (space->tag_image == space->image ? published : 0) << KEY_TAG_SHIFT;
}

/* The head of a miss, and the registers it needs to be finished. */
static __always_inline void fill_miss(struct pt_regs *ctx, struct space *space,
				      struct call *call, struct miss *miss, u64 id,
				      u64 missing, u64 start)
{
	miss->stack_id = id;
	miss->generation = generation_of(space);
	miss->image = space->image;
	miss->missing = missing;
	miss->stack_address = start;
	miss->tid = (u32)current_id();
	miss->registers[MISS_IP] = caller_ip(ctx, call);
	miss->registers[MISS_SP] = caller_sp(call);
	miss->registers[MISS_BP] = PT_REGS_FP(ctx);
	fill_others(ctx, miss->registers + MISS_OTHERS);
}

/*
 * Copies the readable pages of the stack. Pages that a large frame has not touched yet are
 * not readable, and do not end the stack.
 */
static __always_inline void copy_stack(struct miss *miss, __u8 *to, u32 pages)
{
	miss->stack_pages = 0;
#pragma clang loop unroll(disable)
	for (u32 page = 0; page < pages; page++) {
		if (!read_user(to + (u64)page * STACK_PAGE, STACK_PAGE,
			       (void *)(miss->stack_address + (u64)page * STACK_PAGE)))
			miss->stack_pages |= 1U << page;
	}
}

/* The beginning of the loader's record of a library (struct link_map, <link.h>). */
struct library_link {
	u64 base;
	u64 path;
	u64 dynamic;
	u64 next;
};

/* Most libraries that are sent at a time. */
#define MOST_LIBRARIES 64

/* Sends the libraries that have been mapped since the last call or unmapping. */
static __always_inline void send_libraries(struct space *space)
{
	u64 at = space->sent_library ? space->sent_library : space->first_library;
	struct library_link link = {};

#pragma clang loop unroll(disable)
	for (u32 n = 0; n < MOST_LIBRARIES; n++) {
		struct loaded_library *loaded;

		if (!at || read_user(&link, sizeof(link), (void *)at))
			return;
		space->sent_library = at;
		at = link.next;
		if (!at || read_user(&link, sizeof(link), (void *)at))
			return;
		loaded = misses.ringbuf_reserve(sizeof(struct loaded_library));
		if (!loaded)
			return;
		loaded->miss.generation = generation_of(space);
		loaded->miss.image = space->image;
		loaded->miss.stack_id = 0;
		loaded->miss.stack_address = link.base;
		loaded->miss.stack_pages = 0;
		bpf_probe_read_user_str(loaded->path, sizeof(loaded->path), (void *)link.path);
		misses.ringbuf_submit(loaded, BPF_RB_NO_WAKEUP);
	}
}

/* Wakes user space to read the mappings before a walk misses rows for them. */
static __always_inline void announce_mappings(struct space *space)
{
	void *nothing;

	send_libraries(space);
	nothing = misses.ringbuf_reserve(sizeof(u64));

	if (nothing)
		misses.ringbuf_discard(nothing, BPF_RB_FORCE_WAKEUP);
}

/* Whether there is stack where the smaller copy ends. */
static __always_inline bool is_tall(struct scratch *scratch, u64 start)
{
#pragma clang loop unroll(disable)
	for (u32 page = SMALL_MISS_PAGES; page < LARGE_MISS_PAGES; page++) {
		if (!read_user(scratch->window, 8, (void *)(start + (u64)page * STACK_PAGE)))
			return true;
	}
	return false;
}

/* Whether a miss of either size finds room. How it is asked: waiting_bytes, emit.h. */
static __always_inline bool has_room(void)
{
	u64 (*bpf_ringbuf_reserve)(void *, u64, u64) = (void *)BPF_FUNC_ringbuf_query;
	u64 waiting = (u64)misses.ringbuf_reserve(BPF_RB_AVAIL_DATA);

	return waiting + sizeof(struct large_miss) <= MISSES_PAGES * (u64)PAGE_SIZE;
}

/*
 * Leaves the stack to user space: sends registers and the stack's memory. Returns the id
 * of what will be found, 0 if there is no room.
 */
static __always_inline u64 send_miss(struct pt_regs *ctx, struct space *space, struct call *call,
				     struct scratch *scratch, u64 hash, u64 missing)
{
	u64 start = caller_sp(call) & ~(u64)(STACK_PAGE - 1);
	/* Nobody else has this thread and this time. */
	u64 id = mix(mix(hash, current_id()), bpf_ktime_get_ns()) | 1;

	count(COUNTER_MISSES);
	/* Checked first: if there are too many misses, their stacks are not read. */
	if (!has_room())
		goto lost;
	if (is_tall(scratch, start)) {
		struct large_miss *large = misses.ringbuf_reserve(sizeof(struct large_miss));

		if (large) {
			fill_miss(ctx, space, call, &large->miss, id, missing, start);
			copy_stack(&large->miss, large->stack, LARGE_MISS_PAGES);
			misses.ringbuf_submit(large, BPF_RB_FORCE_WAKEUP);
			return id;
		}
	} else {
		struct small_miss *small = misses.ringbuf_reserve(sizeof(struct small_miss));

		if (small) {
			fill_miss(ctx, space, call, &small->miss, id, missing, start);
			copy_stack(&small->miss, small->stack, SMALL_MISS_PAGES);
			misses.ringbuf_submit(small, BPF_RB_FORCE_WAKEUP);
			return id;
		}
	}
lost:
	count(COUNTER_LOST_MISSES);
	return 0;
}

/* Kinds of rows that end the walk: no row, no caller, unusable here. */
#define STOPPING_ROWS (1 << 0 | 1 << ROW_END | 1 << ROW_UNENCODABLE)

/*
 * Walks from where the allocator returns to, with the registers that its caller will
 * find. Fills `stack` and returns its id; no frames if they are known already, or if it is
 * left to user space.
 */
static __always_inline u64 walk_stack(struct pt_regs *ctx, struct space *space,
				      struct call *call, struct scratch *scratch)
{
	struct stack *stack = &scratch->stack;
	struct memo *memo;
	u64 published = *(volatile u64 *)&space->tag;
	u64 tag = tag_of(space, published);
	u64 bp = PT_REGS_FP(ctx);
	u64 sp = caller_sp(call);
	u64 pc = caller_ip(ctx, call);
	u64 hash = first_hash(space);
	u64 before = 1; /* a return address is looked up by the byte before it */
	u64 link = 0; /* register with the return address, where there is one; known if !before */
	struct counted frames;
	u32 i;
	u64 id;

	/* Read now: the verifier forbids what clang makes of reading them in the loop. */
	asm volatile("" : "+r"(bp), "+r"(sp), "+r"(pc));
	scratch->loaded = 0;
	scratch->bad = 0;
	memo = memo_of(scratch, sp, pc);
	id = recall(scratch, memo, space, sp, pc, bp);
	if (id && is_sent(scratch, id)) {
		stack->n_frames = 0;
		return id;
	}
	begin_memo(memo, space, state_of(space), sp, pc, bp);
	scratch->bad = 0;
	scratch->guessed = 0;
	scratch->lasting = ROW_LASTS;
	stack->flags = STACK_TRUNCATED;
	stack->image = space->image;

	begin_count(&frames, MAX_FRAMES, WALK_STEPS);
	COUNTED(i, &frames, MAX_FRAMES, WALK_STEPS) {
		u64 row, kind, cfa;

		stack->frames[i] = pc;
		hash = mix(hash, pc);
		stack->n_frames = i + 1;
		row = find_row(pc - before, tag);
		if (!row)
			row = find_row(REGION_KEY(pc), tag);
		kind = STEP_KIND(row);
		scratch->lasting &= row;
		if ((STOPPING_ROWS >> (kind & 15) & 1) || needs_link(row, before)) {
			stack->flags = kind == ROW_END ? 0 : STACK_LOST_MISS;
			goto walked;
		}
		if (kind == ROW_SIGNAL) {
			memo->far = 1;
			/* The kernel's frame holds all registers; those from bp to ip are read. */
			if (read_user(scratch->window, SIGNAL_IP - SIGNAL_BP + 8,
				      (void *)(sp + SIGNAL_BP))) {
				stack->flags = STACK_UNREADABLE;
				goto walked;
			}
			scratch->loaded = 0;
			bp = *(u64 *)scratch->window;
			link = *(u64 *)(scratch->window + (SIGNAL_LINK - SIGNAL_BP));
			sp = *(u64 *)(scratch->window + (SIGNAL_SP - SIGNAL_BP));
			pc = *(u64 *)(scratch->window + (SIGNAL_IP - SIGNAL_BP));
			/* The address was interrupted: it is looked up as it is. */
			before = 0;
			asm volatile("" : "+r"(before));
			continue;
		}
		before = 1;
		asm volatile("" : "+r"(before));
		if (kind == ROW_FRAME_POINTER) {
			scratch->guessed = STACK_GUESSED;
			/* Not bp itself: the verifier would tell states apart by what it learns of it. */
			if (!(bp << 1)) {
				stack->flags = 0;
				goto walked;
			}
		}
		cfa = step_to_caller(scratch, memo, row, kind, sp, link, &bp, &pc);
		/* Addresses of programs are below 2^63: the top bit says that cfa - sp is too small. */
		if (scratch->bad | ((cfa - sp - least_step(row)) >> 63)) {
			stack->flags = scratch->bad ? STACK_UNREADABLE : STACK_BROKEN;
			goto walked;
		}
		sp = cfa;
		if (!pc) {
			stack->flags = 0;
			goto walked;
		}
	}
walked:
	end_count(&frames);
	/* Once mappings have changed, only rows that last are still valid. */
	if (!(scratch->lasting & ROW_LASTS) && published >> TAG_BITS != generation_of(space))
		stack->flags = STACK_LOST_MISS;
	if (stack->flags == STACK_LOST_MISS) {
		id = send_miss(ctx, space, call, scratch, hash, pc - before);
		if (id) {
			stack->n_frames = 0;
			return id;
		}
	}
	published = scratch->lasting & ROW_LASTS ? 0 : published >> TAG_BITS;
	if (published)
		hash = mix(hash, (u64)space->image << 32 | published);
	id = name_stack(stack, hash, stack->n_frames, stack->flags | scratch->guessed,
			scratch->guessed);
	if (!(stack->flags | scratch->guessed))
		keep_memo(memo, id);
	if (published)
		date_stack(stack, published);
	return id;
}
