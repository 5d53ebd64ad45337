// SPDX-License-Identifier: (MIT OR GPL-2.0)
/*
 * Walks Python frames. Their location depends on CPython's version: user space determines it
 * and stores it in struct python.
 *
 * CPython has a record for each of its threads, which points to the running frame; each frame
 * points to its caller's. The probe finds a thread's record by the thread's id once, remembers
 * it, and checks it each time. No lock is needed: only the thread itself changes its frames, and
 * it is in a probe. While other threads start and end, the search may miss the record once.
 */

/* Frames walked before the program tail-calls itself: the verifier follows each of them. */
#define PYTHON_CHUNK 32

/* What is read of a thread's record, of a frame, and of a code object from PYTHON_CODE_AT on. */
#define PYTHON_THREAD_BYTES 256
#define PYTHON_FRAME_BYTES 80
#define PYTHON_CODE_BYTES 120

/* Threads among which one is looked for. */
#define PYTHON_THREADS 512

/* A word of what was read into the window. */
static __always_inline u64 window_word(struct scratch *scratch, u32 at)
{
	return *(volatile u64 *)(scratch->window + (at & (PYTHON_THREAD_BYTES - 8)));
}

/* The id of this thread as the process itself knows it. */
static __always_inline u32 own_thread_id(struct space *space)
{
	struct bpf_pidns_info ids = {};

	if (!space->python.namespace_inode)
		return current_id();
	bpf_get_ns_current_pid_tgid(space->python.namespace_device, space->python.namespace_inode,
				    &ids, sizeof(ids));
	return ids.pid;
}

/* Reads a thread's record into the window. Whether it is this thread's. */
static __always_inline bool is_thread(struct space *space, struct scratch *scratch, u64 record,
				      u32 tid)
{
	return !read_user(scratch->window, PYTHON_THREAD_BYTES, (void *)record) &&
	       window_word(scratch, space->python.thread_id) == tid;
}

/*
 * Reads this thread's record into the window, if it has one. After a failed search, the probe
 * searches again if CPython has created threads since, and otherwise at growing intervals: a
 * record gets its id slightly after its creation.
 */
static __always_inline bool find_thread(struct space *space, struct call *call,
					struct scratch *scratch)
{
	u32 tid = own_thread_id(space);
	u64 interpreter = 0;
	u64 threads[2] = {}; /* how many were ever made, and the newest */
	u64 record, looks;
	struct counted rounds;
	bool found = false;
	u32 i;

	if (call->python_thread && is_thread(space, scratch, call->python_thread, tid))
		return true;
	call->python_thread = 0;
	read_user(&interpreter, sizeof(interpreter), (void *)space->python.interpreter);
	if (!interpreter || read_user(threads, sizeof(threads),
				      (void *)(interpreter + space->python.threads - 8)))
		return false;
	looks = threads[0] == call->python_made ? call->python_looks + 1 : 0;
	call->python_made = threads[0];
	call->python_looks = looks;
	if (looks & (looks - 1))
		return false;
	record = threads[1];
	begin_count(&rounds, PYTHON_THREADS, PYTHON_STEPS);
	COUNTED(i, &rounds, PYTHON_THREADS, PYTHON_STEPS) {
		if (!record)
			goto looked;
		found = is_thread(space, scratch, record, tid);
		if (found)
			goto looked;
		record = window_word(scratch, space->python.next);
	}
looked:
	end_count(&rounds);
	if (found)
		call->python_thread = record;
	else if (record)
		count(COUNTER_LOST_PYTHON_FRAMES);
	return found;
}

/* A word of the frame at `at`, which is in the frames' window. */
static __always_inline u64 frame_word(struct scratch *scratch, u64 at, u32 offset)
{
	return *(volatile u64 *)(scratch->python_window +
				 ((at - *(volatile u64 *)&scratch->python_base) &
				  (PYTHON_WINDOW - 8)) +
				 (offset & (PYTHON_SLACK - 8)));
}

/*
 * Has a frame in the window. Frames of functions lie behind their callers' as a rule, so what
 * is before it is read as well, up to where a page may begin.
 */
static __always_inline bool has_frame(struct scratch *scratch, u64 at)
{
	u64 start = at & ~(u64)(PYTHON_WINDOW - 1);

	if (at - *(volatile u64 *)&scratch->python_base <= scratch->python_last)
		return true;
	scratch->python_base = start;
	scratch->python_last = at - start;
	return !read_user(scratch->python_window,
			  (at & (PYTHON_WINDOW - 1)) + PYTHON_FRAME_BYTES, (void *)start);
}

/*
 * A code object may come to lie where another one was, and so may all that it refers to. From 3.12
 * on each has a number of its own among its words. Before that, what tells them apart is where
 * name and lines are; of code that is run once, a module's or what exec() is given, what the
 * name hashes to, and the first of its lines. Where those are:
 */
#define PYTHON_NAME_AT 128
#define PYTHON_LINES_AT 136
#define PYTHON_FLAGS_AT 48
/* In a string, and in bytes. */
#define PYTHON_HASH_AT 24
#define PYTHON_BYTES_AT 32
/* CO_NEWLOCALS of Include/code.h: the code of a function. */
#define PYTHON_IS_FUNCTION 2

/* A word of the code object in the window. */
static __always_inline u64 code_word(struct scratch *scratch, u32 offset)
{
	return window_word(scratch, offset - PYTHON_CODE_AT);
}

/* What tells the code object in the window from others at its place; 0: can't be read. */
static __always_inline u64 identify(struct space *space, struct scratch *scratch)
{
	u64 identity = mix(code_word(scratch, 24), code_word(scratch, 32));
	u64 name = code_word(scratch, PYTHON_NAME_AT);
	u64 lines = code_word(scratch, PYTHON_LINES_AT);
	u64 is_function = code_word(scratch, PYTHON_FLAGS_AT) & PYTHON_IS_FUNCTION;

	identity = mix(mix(identity, code_word(scratch, 64)), code_word(scratch, 72));
	identity = mix(mix(identity, code_word(scratch, 88)), lines);
	if (!space->python.has_no_versions || is_function)
		return mix(identity, name) | 1;
	if (read_user(scratch->window, 8, (void *)(name + PYTHON_HASH_AT)) ||
	    read_user(scratch->window + 8, 16, (void *)(lines + PYTHON_BYTES_AT)))
		return 0;
	identity = mix(mix(identity, window_word(scratch, 0)), window_word(scratch, 8));
	return mix(identity, window_word(scratch, 16)) | 1;
}

/*
 * Notes the frame at `at` as two words, and returns whether that could be read: where its
 * code is (behind the longer head of builds without the GIL), with the lowest bit set where CPython's loop was entered for it; how far it has come,
 * with what tells the code from other code that lies there later.
 */
static __always_inline bool note_frame(struct space *space, struct scratch *scratch, u64 at,
				       u64 *pair)
{
	u64 code = (frame_word(scratch, at, space->python.code) & ~7ULL) + space->python.head;
	u64 reached = frame_word(scratch, at, space->python.instruction) - code;
	u64 entry = frame_word(scratch, at, space->python.entry) >> space->python.entry_shift & 0xff;
	u64 identity;

	entry = entry >= space->python.least_entry;
	if (entry && space->python.has_shims) {
		/* A frame of nothing that is made when the loop is entered. */
		pair[0] = PYTHON_ENTRY;
		pair[1] = 0;
		return true;
	}
	if (read_user(scratch->window, PYTHON_CODE_BYTES, (void *)(code + PYTHON_CODE_AT)))
		return false;
	identity = identify(space, scratch);
	pair[0] = code | entry;
	pair[1] = (identity & ~0xffffffffULL) | (u32)reached;
	return identity;
}

/* Finds the thread's innermost frame. */
static __always_inline void begin_frames(struct space *space, struct call *call,
					 struct scratch *scratch)
{
	struct python_stack *stack = &scratch->python;
	u64 frame = 0;

	stack->flags = STACK_PYTHON;
	scratch->python_base = 0;
	scratch->python_last = 0;
	if (find_thread(space, call, scratch)) {
		frame = window_word(scratch, space->python.frame);
		if (space->python.has_inner &&
		    read_user(&frame, sizeof(frame), (void *)(frame + space->python.inner))) {
			stack->flags = STACK_PYTHON | STACK_UNREADABLE;
			frame = 0;
		}
	}
	scratch->python_frame = frame;
}

/*
 * Walks some frames into `python`, innermost first, and hashes them. Whether there are more.
 * (All is kept in memory: see begin_memo.)
 */
static __always_inline bool walk_frames(struct space *space, struct scratch *scratch)
{
	struct python_stack *stack = &scratch->python;
	volatile u64 *frame = &scratch->python_frame;
	struct counted frames;
	u32 i, flags = 0;

	begin_count(&frames, PYTHON_CHUNK, PYTHON_STEPS);
	COUNTED(i, &frames, PYTHON_CHUNK, PYTHON_STEPS) {
		u32 n = *(volatile u16 *)&stack->n_words;
		u64 *pair = &stack->words[(n - 2) & (2 * PYTHON_FRAMES - 2)];
		u64 at = *frame;

		if (!at) {
			flags = stack->flags;
			goto walked;
		}
		if (n > 2 * PYTHON_FRAMES + 1) {
			flags = STACK_PYTHON | STACK_TRUNCATED;
			goto walked;
		}
		flags = STACK_PYTHON | STACK_UNREADABLE;
		if (!has_frame(scratch, at))
			goto walked;
		*frame = frame_word(scratch, at, space->python.previous);
		if (!note_frame(space, scratch, at, pair))
			goto walked;
		flags = 0;
		hash_word(scratch, pair[0]);
		hash_word(scratch, pair[1]);
		*(volatile u16 *)&stack->n_words = n + 2;
	}
walked:
	end_count(&frames);
	if (flags)
		stack->flags = flags;
	return !flags;
}

/* What the names of all frames that were walked go by, among the stacks that are known. */
static __always_inline u64 key_of_names(struct space *space, struct scratch *scratch)
{
	return mix(first_hash(space), scratch->python_hash) | 1;
}

/* Begins the program that reports the call again. Goes on only where tracing ends just now. */
static __always_inline void report_walked(struct pt_regs *ctx, struct call *call,
					  struct scratch *scratch)
{
	call->python_walked = 1;
	if (call->kind >= FUNCTION_MAP)
		python_programs.call(ctx, PYTHON_MAPPING);
	else
		python_programs.call(ctx, PYTHON_ALLOCATOR);
	call->python_walked = 0;
	call->python_scratch = 0;
	release_scratch(scratch);
	count(call->kind >= FUNCTION_MAP ? COUNTER_LOST_MAPPINGS : COUNTER_LOST_ALLOCS);
}

/* Begun by the program that has a call's end to report, and by itself. */
int walk_python(struct pt_regs *ctx)
{
	u64 id = current_id();
	struct space *space = get_space(id);
	struct call *call = find_call(id);
	struct scratch *scratch;

	if (!space || !call || !call->python_scratch)
		return 0;
	scratch = walked_scratch(call);
	if (!scratch)
		return 0;
	if (scratch->python_frame == PYTHON_NOT_BEGUN)
		begin_frames(space, call, scratch);
	if (walk_frames(space, scratch)) {
		python_programs.call(ctx, PYTHON_WALKER);
		scratch->python.flags = STACK_PYTHON | STACK_UNREADABLE;
	}
	scratch->python_named = 0;
	scratch->python_unsent = 0;
	if (!is_sent(scratch, key_of_names(space, scratch)))
		python_programs.call(ctx, PYTHON_NAMER);
	report_walked(ctx, call, scratch);
	return 0;
}

/* Frames that are named before the program begins itself again. */
#define PYTHON_NAMED_CHUNK 16
/* In a code object. */
#define PYTHON_FILE_AT 112
/* In bytes: how many there are. */
#define PYTHON_LENGTH_AT 16

/* Copies so many bytes (a power of two, or 64 more), or those up to the end of the page. */
static __always_inline void copy_piece(struct python_piece *piece, void *to, u64 address, u32 bytes)
{
	u64 room = PAGE_SIZE - (address & (PAGE_SIZE - 1));

	piece->address = address;
	piece->n_bytes = bytes;
	if (!read_user(to, bytes, (void *)address))
		return;
	piece->n_bytes = 0;
	if (room >= bytes)
		return;
	/* Fewer than `bytes`, which the verifier sees now. */
	room &= 0x7ff;
	if (room < bytes && !read_user(to, room, (void *)address))
		piece->n_bytes = room;
}

/* A word of the copy of the code object. */
static __always_inline u64 copied_word(struct python_code *copy, u32 at)
{
	return *(volatile u64 *)(copy->object + at);
}

/* Whether there is much room for stacks, which need it more. How it is asked: waiting_bytes. */
static __always_inline bool has_room_for_names(void)
{
	u64 (*bpf_ringbuf_reserve)(void *, u64, u64) = (void *)BPF_FUNC_ringbuf_query;

	return (u64)stacks.ringbuf_reserve(BPF_RB_AVAIL_DATA) < STACKS_PAGES * (u64)PAGE_SIZE / 2;
}

/* Sends what the code object of a frame is called, unless that was done before. False: no room. */
static __always_inline bool send_names(struct space *space, struct scratch *scratch, u64 code,
				       u64 identity)
{
	struct python_code *copy = &scratch->python_code;
	u64 key = mix(mix(first_hash(space), code), identity) | 1;
	u64 head = space->python.head;
	u64 nothing = 0;
	u64 bytes;

	if (known_stacks.lookup(&key))
		return true;
	if (!has_room_for_names())
		return false;
	copy->id = key;
	copy->flags = STACK_NAMES;
	copy->image = space->image;
	copy->code = code;
	copy->identity = identity;
	copy_piece(&copy->pieces[0], copy->object, code, PYTHON_OBJECT_BYTES);
	copy_piece(&copy->pieces[1], copy->name, copied_word(copy, PYTHON_NAME_AT) + head,
		   PYTHON_NAME_BYTES);
	copy_piece(&copy->pieces[2], copy->file, copied_word(copy, PYTHON_FILE_AT) + head,
		   PYTHON_FILE_BYTES);
	copy_piece(&copy->pieces[3], copy->lines, copied_word(copy, PYTHON_LINES_AT) + head,
		   PYTHON_LINES_BYTES);
	bytes = (*(volatile u64 *)(copy->lines + PYTHON_LENGTH_AT) + PYTHON_BYTES_AT + 7) & ~7ULL;
	if (bytes > PYTHON_LINES_BYTES)
		bytes = PYTHON_LINES_BYTES;
	if (copy->pieces[3].n_bytes > bytes)
		copy->pieces[3].n_bytes = bytes;
	bytes += offsetof(struct python_code, lines);
	copy->n_words = (bytes - offsetof(struct python_code, code)) / sizeof(u64);
	if (stacks.ringbuf_output(copy, bytes, BPF_RB_NO_WAKEUP))
		return false;
	known_stacks.update(&key, &nothing);
	return true;
}

/* Names the frames that were walked: begun by walk_python, and by itself. */
int name_python_frames(struct pt_regs *ctx)
{
	u64 id = current_id();
	struct space *space = get_space(id);
	struct call *call = find_call(id);
	struct scratch *scratch;
	u64 key, nothing = 0;

	if (!space || !call || !call->python_scratch)
		return 0;
	scratch = walked_scratch(call);
	if (!scratch)
		return 0;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < PYTHON_NAMED_CHUNK; i++) {
		u64 n = *(volatile u64 *)&scratch->python_named;
		u64 *pair = &scratch->python.words[2 * n & (2 * PYTHON_FRAMES - 2)];

		if (2 * n + 2 >= *(volatile u16 *)&scratch->python.n_words)
			goto named;
		*(volatile u64 *)&scratch->python_named = n + 1;
		if (pair[0] & ~7ULL)
			scratch->python_unsent |=
				!send_names(space, scratch, pair[0] & ~7ULL, pair[1] >> 32);
	}
	python_programs.call(ctx, PYTHON_NAMER);
named:
	key = key_of_names(space, scratch);
	if (!*(volatile u64 *)&scratch->python_unsent)
		known_stacks.update(&key, &nothing);
	report_walked(ctx, call, scratch);
	return 0;
}
