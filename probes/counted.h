/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/*
 * A counted loop whose body the verifier checks a few times, and not once for each round: the
 * kernel's own iterator counts (bpf_iter_num_new and so on, kernel/bpf/bpf_iter.c), where the
 * kernel has one. Calls of it are written as calls of helpers that do not exist; their numbers are
 * replaced before the program is loaded (iterators.py).
 *
 * begin_count(), then the loop, which must not be left but by `break`, then end_count().
 */
struct counted {
	u64 opaque;
};

#ifdef ITERATORS
#define ITERATOR_NEW 0x7f000001
#define ITERATOR_NEXT 0x7f000002
#define ITERATOR_DESTROY 0x7f000003

#define begin_count(state, rounds) \
	((int (*)(struct counted *, int, int))ITERATOR_NEW)(state, 0, rounds)
#define COUNTED(i, state, rounds) \
	_Pragma("clang loop unroll(disable)") \
	for (u32 *at; (at = ((u32 *(*)(struct counted *))ITERATOR_NEXT)(state)) && \
	     (i = *at) < (rounds);)
#define end_count(state) ((void (*)(struct counted *))ITERATOR_DESTROY)(state)
#else
#define begin_count(state, rounds)
#define COUNTED(i, state, rounds) \
	_Pragma("clang loop unroll(disable)") \
	for (i = 0; i < (rounds); i++)
#define end_count(state)
#endif
