/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/*
 * A counted loop that the verifier does not follow to its end: the kernel's own iterator counts
 * (bpf_iter_num_new and so on, kernel/bpf/bpf_iter.c), where the kernel has one. Calls of it are
 * written as calls of helpers that do not exist; these are replaced before the program is loaded
 * (iterators.py). A call costs about 10 ns, so one is made for `steps` rounds, which the
 * verifier does follow.
 *
 * begin_count(), then the loop, then end_count(). The loop is left by `goto` only, to the latter.
 */
#define WALK_STEPS 4
#define PYTHON_STEPS 4

struct counted {
	u64 opaque;
};

#ifdef ITERATOR_NEW
#define begin_count(state, rounds, steps) \
	((int (*)(struct counted *, int, int))ITERATOR_NEW)( \
		state, 0, ((rounds) + (steps) - 1) / (steps))
#define COUNTED(i, state, rounds, steps) \
	_Pragma("clang loop unroll(disable)") \
	for (u32 *at; (at = ((u32 *(*)(struct counted *))ITERATOR_NEXT)(state));) \
		_Pragma("clang loop unroll(disable)") \
		for (u32 step = 0; step < (steps) && \
		     (i = *at * (steps) + step) < (rounds); step++)
#define end_count(state) ((void (*)(struct counted *))ITERATOR_DESTROY)(state)
#else
#define begin_count(state, rounds, steps)
#define COUNTED(i, state, rounds, steps) \
	_Pragma("clang loop unroll(disable)") \
	for (i = 0; i < (rounds); i++)
#define end_count(state)
#endif
