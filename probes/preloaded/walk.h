/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/* Walks call stacks by unwind entries, like the probes (walk_rows.h, memo.h), inside the process. */
#ifndef TRACELLOC_PRELOADED_WALK_H
#define TRACELLOC_PRELOADED_WALK_H

#include "records.h"
#include STEP_HEADER

static inline u64 mix(u64 hash, u64 value)
{
	hash = (hash ^ value) * 0x9e3779b97f4a7c15ULL;
	return hash ^ (hash >> 29);
}

/* State of the mappings: generation and tag; 0 while they change or the profiler has not read them. */
static inline u64 state_of(const struct space *space)
{
	u64 tag = load_acquire(&space->tag);

	if (unlikely(*(volatile u64 *)&space->unloading))
		return 0;
	return tag >> TAG_BITS == (u32)(*(volatile u64 *)&space->loads +
					*(volatile u64 *)&space->changes) ? tag : 0;
}

/* Returns the unwind entry for an address; 0 if there is none. See walk_rows.h. */
static inline u64 find_row(u64 address, u64 tag)
{
	u64 key = address | tag;
	u64 hashed = key & ((1ULL << (PRELOAD_KEY_TAG_SHIFT + ROW_SALT_BITS)) - 1);
	u64 index = (hashed * 0x9e3779b97f4a7c15ULL) >> (64 - PRELOAD_ROW_SETS_LOG2);
	struct preload_row_set *set =
		(struct preload_row_set *)(guard.area + PRELOAD_AT_ROWS) + index;

	for (u32 way = 0; way < PRELOAD_ROW_WAYS; way++) {
		if (load_acquire(&set->keys[way]) == key) {
			u64 row = load_acquire(&set->rows[way]);

			return *(volatile u64 *)&set->keys[way] == key ? row : 0;
		}
	}
	return 0;
}

/*
 * Sends the current registers and the stack's memory to the profiler, which walks the stack and
 * omits this library's own frames. Returns the id of the resulting stack.
 */
static __attribute__((noinline)) u64 send_miss(struct preload_control *control,
					       const struct preload_ring *ring,
					       const struct walk *walk)
{
	struct miss *miss;
	u64 start = stack_pointer() & -(u64)PRELOAD_PAGE, id, length, *record;
	u32 pages;

	count(COUNTER_MISSES);
	pages = count_pages(control, walk, start);
	record = reserve_record(control, sizeof(struct miss) + pages * (u64)PRELOAD_PAGE, &length);
	if (!record)
		return 0;
	id = mix(mix(ring->hash, me.tid), ticks()) | 1;
	miss = (struct miss *)(record + 1);
	save_registers(miss->registers);
	miss->stack_id = id;
	miss->generation = control->space.loads + control->space.changes;
	miss->image = control->space.image;
	miss->missing = ring->missing;
	miss->stack_address = start;
	if (walk->is_own || !may_call(control))
		copy_words((u64 *)(miss + 1), (const u64 *)start, pages * (PRELOAD_PAGE / 8));
	else
		pages = copy_memory(control, miss + 1, start, pages * (u64)PRELOAD_PAGE) / PRELOAD_PAGE;
	miss->stack_pages = (1U << pages) - 1;
	miss->tid = me.tid;
	finish_record(record, PRELOAD_RECORD_MISS, length);
	return id;
}

/* Returns the one place for the memo of a walk that begins there. */
static inline struct preload_memo *memo_of(struct preload_ring *ring, u64 sp, u64 pc)
{
	return &ring->memos[((sp >> 3 ^ pc) * 0x9e3779b97f4a7c15ULL >> 32) % PRELOAD_MEMOS];
}

static inline u64 owner_of(const struct space *space)
{
	return (u64)space->image << 32 | space->lineage;
}

/* Returns the stack id that a memoized walk from here, on the thread's own stack, gave; or 0. */
static inline u64 recall(const struct preload_memo *memo,
			 const struct space *space, u64 state, u64 sp, u64 pc, u64 bp)
{
	u64 room = me.high - sp, different = 0;

	if (memo->sp != sp || memo->pc != pc || memo->state != state ||
	    memo->owner != owner_of(space) || (memo->uses_bp && memo->bp != bp))
		return 0;
	for (u32 n = 0; n < memo->n_words; n++) {
		if (memo->places[n] >= room)
			return 0;
		different |= *(volatile u64 *)(sp + memo->places[n]) ^ memo->words[n];
	}
	return different ? 0 : memo->stack_id;
}

/* Steps over the signal frame that the kernel has pushed. */
static int step_signal(struct walk *walk, struct place *at)
{
	u64 sp = at->sp;

	at->far = 1;
	at->bp = read_word(walk, sp + SIGNAL_BP);
	read_link(walk, at, sp);
	at->sp = read_word(walk, sp + SIGNAL_SP);
	at->pc = read_word(walk, sp + SIGNAL_IP);
	at->before = 0;
	return walk->bad ? STACK_UNREADABLE : GO_ON;
}

/* Steps to the caller. Returns GO_ON, or the stack's flags if it ends here. */
static inline int step(struct walk *walk, struct preload_memo *memo, u64 from, struct place *at,
		       u64 row)
{
	u32 kind = STEP_KIND(row);
	u64 cfa = at->sp;
	int flags;

	if (unlikely(kind == ROW_SIGNAL))
		return step_signal(walk, at);
	at->before = 1;
	if (kind == ROW_FRAME_POINTER) {
		walk->guessed = STACK_GUESSED;
		if (!at->bp)
			return 0;
	}
	if (kind != ROW_SP) {
		cfa = at->bp;
		use_bp(memo, from, at);
	}
	flags = step_to_caller(walk, memo, from, at, row, kind, cfa + ROW_CFA_OFFSET(row));
	return flags != GO_ON || at->pc ? flags : 0;
}

/*
 * Where the running test is, while its function runs (tracelloc/testing/apart.pyx): where its frame
 * has the instruction, its code object, in the upper half what tells that from later ones, and an
 * address in the outermost frame of the stack that belongs to the test.
 */
static u64 *volatile test_place = NULL;

/* Kinds of unwind entries that end the walk: none, no caller, not encodable. */
#define STOPPING_ROWS (1 << 0 | 1 << ROW_END | 1 << ROW_UNENCODABLE)

/*
 * Walks from the caller of the library's function with this frame. Returns the stack's id; 0: it is
 * still to be sent, after this function, which takes much of the stack, has returned.
 */
static __attribute__((noinline)) u64 walk_stack(struct preload_control *control,
						struct preload_ring *ring, const u64 *frame,
						struct walk *walk)
{
	const struct space *space = &control->space;
	u64 state = state_of(space);
	u64 image = load_acquire(&space->tag_image); /* set after `tag` */
	u64 tag = (image == space->image ? space->tag : 0) << PRELOAD_KEY_TAG_SHIFT;
	/* A row needs one of these bits: once mappings have changed, few rows are still valid. */
	u64 usable = state ? ~0ULL : ROW_LASTS, lasting = ROW_LASTS;
	u64 hash = 0x1905 + (space->lineage << 32), id, dated, from = (u64)(frame + 2);
	struct place at = {.pc = frame[1], .sp = from, .bp = frame[0], .before = 1,
			   .is_callers_bp = 1};
	struct preload_memo *memo = memo_of(ring, from, at.pc);
	const u64 *place = test_place;
	u64 bottom = place && place[3] > from ? place[3] : ~0ULL;
	u32 n = 0, most = control->max_frames;
	int flags = GO_ON;

	open_stack(control, walk, (u64)frame);
	id = likely(walk->is_own) ? recall(memo, space, state, from, at.pc, at.bp) : 0;
	if (likely(id) && is_known(id))
		return id;
	memo->sp = 0;
	memo->pc = at.pc;
	memo->bp = at.bp;
	memo->n_words = memo->uses_bp = 0;
	if (most > PRELOAD_MOST_FRAMES)
		most = PRELOAD_MOST_FRAMES;
	for (flags = GO_ON; flags == GO_ON && n < most;) {
		u64 row;

		ring->frames[n++] = at.pc;
		hash = mix(hash, at.pc);
		row = find_row(at.pc - at.before, tag);
		if (unlikely(!(row & usable)))
			row = find_row(REGION_KEY(at.pc), tag);
		if (unlikely(!(row & usable)))
			row = 0;
		lasting &= row;
		if (STOPPING_ROWS >> (STEP_KIND(row) & 15) & 1 || needs_link(row, at))
			flags = STEP_KIND(row) == ROW_END ? 0 : STACK_LOST_MISS;
		else
			flags = step(walk, memo, from, &at, row);
		if (at.sp > bottom && flags == GO_ON)
			flags = 0;
	}
	if (flags == GO_ON)
		flags = STACK_TRUNCATED;
	ring->hash = hash;
	ring->missing = flags == STACK_LOST_MISS ? at.pc - at.before : 0;
	flags |= walk->guessed;
	/* Like walk_rows.h and name_stack (stack.h). */
	dated = lasting || ring->missing ? 0 : state >> TAG_BITS;
	if (dated)
		hash = mix(hash, (u64)space->image << 32 | dated);
	if (walk->guessed)
		hash = mix(hash, space->image);
	id = mix(mix(hash, flags), n);
	ring->stack_id = id ? id : 1;
	ring->flags = flags;
	ring->n_frames = n;
	if (dated) {
		ring->frames[ring->n_frames++] = dated;
		ring->flags |= STACK_DATED;
	}
	if (!flags && !at.far && walk->is_own && state && memo->n_words <= PRELOAD_MEMO_WORDS) {
		memo->state = state;
		memo->owner = owner_of(space);
		memo->stack_id = ring->stack_id;
		memo->sp = from;
	}
	return is_known(ring->stack_id) && !ring->missing ? ring->stack_id : 0;
}

/* Returns the id of a stack together with the test's line. */
static __attribute__((noinline)) u64 place_stack(struct preload_control *control, u64 id)
{
	const u64 *place = test_place;
	u64 words[3] = {id, place[1]};
	u64 placed;

	words[2] = (place[2] & ~0xffffffffULL) | (u32)(*(volatile u64 *)place[0] - place[1]);
	placed = mix(mix(id, words[1]), words[2]) | 1;
	if (!is_known(placed))
		send_stack(control, placed, words, 3, STACK_PLACED);
	return placed;
}

/* Returns the id of the stack that called the library's function with this frame; 0: none. */
static u64 capture_stack(struct preload_control *control, struct preload_ring *ring, const u64 *frame)
{
	struct walk *walk = (struct walk *)ring->walk; /* not on the program's stack, which may be small */
	u64 id;

	if (!control->max_frames) /* none are wanted */
		return 0;
	if (ring->busy) {
		count(COUNTER_LOST_STACKS);
		return 0;
	}
	*(volatile u32 *)&ring->busy = 1;
	*walk = (struct walk){.page = ring->page};
	id = walk_stack(control, ring, frame, walk);
	if (unlikely(!id) && ring->missing)
		id = send_miss(control, ring, walk);
	if (unlikely(!id)) {
		id = ring->stack_id;
		if (!is_known(id))
			send_stack(control, id, ring->frames, ring->n_frames, ring->flags);
	}
	if (unlikely(test_place) && id && is_first_thread(control))
		id = place_stack(control, id);
	*(volatile u32 *)&ring->busy = 0;
	return id;
}

#endif
