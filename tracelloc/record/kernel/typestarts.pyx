# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Where the kernel's types begin (Documentation/bpf/btf.rst): each tells how long it is."""

from libc.stdint cimport int64_t, uint32_t


def find_starts(
    const uint32_t[::1] words, const int64_t[::1] fixed, const int64_t[::1] each, int64_t[::1] starts
):
    """Fills ``starts`` with the index of each type's first word, and returns how many there are.

    ``fixed``: words of a type beside its first three, by kind; ``each``: words of each member.
    ``starts`` has room for a third of the words. A type that is cut off is left out.
    """
    cdef Py_ssize_t at = 0, count = 0
    cdef uint32_t info
    while at + 2 < words.shape[0]:
        info = words[at + 1]
        starts[count] = at
        count += 1
        at += 3 + fixed[info >> 24 & 31] + each[info >> 24 & 31] * (info & 0xFFFF)
    return count
