# cython: language_level=3
"""Hashing for tables with linear probing, searching in ascending numbers, processor intrinsics."""

from libc.stdint cimport uint64_t

cdef extern from *:
    """
    static inline __u64 mixed(__u64 key) {
        unsigned __int128 p = (unsigned __int128)(key ^ 0x9E3779B97F4A7C15u) * 0xD6E8FEB86659FD93u;
        return (__u64)p ^ (__u64)(p >> 64);
    }
    /* Monotonic in the hash: a table that grows keeps its order. */
    static inline __u64 home_of(__u64 key, __u64 room) {
        return (__u64)(((unsigned __int128)mixed(key) * room) >> 64);
    }
    /* Without the asm statement, GCC drops calls of functions that only prefetch. */
    static inline void prefetch(const void *p) {
        __builtin_prefetch(p, 1);
        __asm__ volatile("" : : "r"(p));
    }
    /* Returns the row of the first of ascending numbers, which are so far apart, above a value. */
    static inline __attribute__((always_inline)) Py_ssize_t first_above(
        const void *numbers, Py_ssize_t count, Py_ssize_t step_bytes, uint64_t value
    ) {
        Py_ssize_t low = 0;
        while (count > 0) {
            Py_ssize_t half = count >> 1;
            if (*(const uint64_t *)((const char *)numbers + (low + half) * step_bytes) <= value) {
                low += half + 1;
                count -= half + 1;
            } else
                count = half;
        }
        return low;
    }
    #define log2_of(n) (63 - __builtin_clzll(n))
    """
    Py_ssize_t first_above(
        const void* numbers, Py_ssize_t count, Py_ssize_t step_bytes, uint64_t value
    ) noexcept nogil
    uint64_t home_of(uint64_t key, uint64_t room) noexcept nogil
    int log2_of(uint64_t n) noexcept nogil  # rounded down; n must not be 0
    void prefetch(const void *where) noexcept nogil
