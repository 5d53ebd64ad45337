/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/*
 * Python frames in call stacks, for programs that CPython runs (3.11 on). The program that
 * reports a call's end tail-calls a separate walker (python.bpf.c), which tail-calls the first
 * program again when it has finished, so the verifier checks the two walks separately. State
 * is kept in between in the thread's record, and in scratch memory whose number is there.
 *
 * The native stack is walked, remembered and sent as usual, under an id of its own. The Python
 * frames are a separate record that names the native stack by its id; user space merges the
 * frames.
 */

/* In the place of a frame: none has been looked for yet. */
#define PYTHON_NOT_BEGUN 1

/* Changes the hash of the walk. (All is kept in memory: see begin_memo.) */
static __always_inline void hash_word(struct scratch *scratch, u64 word)
{
	volatile u64 *hash = &scratch->python_hash;

	*hash = mix(*hash, word);
}

/* Whether a struct python_stack has more to say of the call than its native stack. */
static __always_inline bool has_words(struct space *space, struct call *call)
{
	return space->python.interpreter | call->device;
}

/* No frames of Python are known yet. */
static __always_inline void forget_frames(struct scratch *scratch)
{
	scratch->python.n_words = 2;
	scratch->python.flags = STACK_PYTHON | STACK_UNREADABLE;
	scratch->python_frame = PYTHON_NOT_BEGUN;
	scratch->python_hash = 0;
}

/*
 * Has the thread's Python frames walked, if CPython is present: the calling program then starts
 * again, and `has_walked` returns true. If the walker cannot be called, this function returns.
 */
static __always_inline void walk_python_first(struct pt_regs *ctx, u64 id, struct call *call)
{
	struct space *space = get_space(id);
	struct scratch *scratch;
	u32 number;

	call->python_scratch = 0;
	if (!space || !space->python.interpreter)
		return;
	scratch = take_numbered(&number);
	if (!scratch)
		return;
	forget_frames(scratch);
	call->python_scratch = number + 1;
	python_programs.call(ctx, PYTHON_WALKER);
}

/* Whether the call's frames of Python have been walked, and what it made is to be reported now. */
static __always_inline bool has_walked(struct call *call)
{
	if (!call || !call->python_walked)
		return false;
	call->python_walked = 0;
	return true;
}

/* The scratch memory with the call's frames of Python, or with none. NULL: there is no room. */
static __always_inline struct scratch *walked_scratch(struct call *call)
{
	u32 number = *(volatile u32 *)&call->python_scratch;
	struct scratch *scratch;

	if (number) {
		number -= 1;
		return scratches.lookup(&number);
	}
	scratch = take_scratch();
	if (scratch)
		forget_frames(scratch);
	return scratch;
}

/*
 * The id of the stack of this code with the frames of Python that were walked before, which is
 * handed over if user space does not have it yet.
 */
static __always_inline u64 name_python(struct space *space, struct call *call,
				       struct scratch *scratch, u64 code_id)
{
	struct python_stack *stack;
	u64 nothing = 0;
	u64 id;
	u32 n;

	/* Else clang works out addresses of what is used here before it walks the code. */
	asm volatile("" : "+r"(space), "+r"(scratch));
	stack = &scratch->python;

	if (!space->python.interpreter)
		stack->flags = STACK_PYTHON;
	if (stack->flags & STACK_UNREADABLE)
		count(COUNTER_LOST_PYTHON_FRAMES);
	stack->code_id = code_id;
	stack->device = call->device;
	hash_word(scratch, stack->flags);
	hash_word(scratch, code_id);
	hash_word(scratch, call->device);
	id = *(volatile u64 *)&scratch->python_hash;
	if (!id)
		id = 1;
	if (is_sent(scratch, id))
		return id;
	stack->stack_id = id;
	stack->image = space->image;
	n = *(volatile u16 *)&stack->n_words;
	if (n > 2 * PYTHON_FRAMES + 2)
		n = 2 * PYTHON_FRAMES + 2;
	if (stacks.ringbuf_output(stack, offsetof(struct python_stack, code_id) + n * sizeof(u64),
				  BPF_RB_NO_WAKEUP))
		count(COUNTER_LOST_STACKS);
	else if (known_stacks.update(&id, &nothing))
		count(COUNTER_STACK_TABLE_FULL);
	return id;
}
