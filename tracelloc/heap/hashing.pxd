# cython: language_level=3
"""Where keys go in hash tables with linear probing, and what processors do by themselves."""

from libc.stdint cimport uint64_t

cdef extern from *:
    """
    static inline __u64 mixed(__u64 key) {
        unsigned __int128 p = (unsigned __int128)(key ^ 0x9E3779B97F4A7C15u) * 0xD6E8FEB86659FD93u;
        return (__u64)p ^ (__u64)(p >> 64);
    }
    /* Grows with the hash: a table that grows keeps its order. */
    static inline __u64 home_of(__u64 key, __u64 room) {
        return (__u64)(((unsigned __int128)mixed(key) * room) >> 64);
    }
    /* Without the second line GCC leaves out calls of functions that do nothing but this. */
    static inline void prefetch(const void *p) {
        __builtin_prefetch(p, 1);
        __asm__ volatile("" : : "r"(p));
    }
    #define log2_of(n) (63 - __builtin_clzll(n))
    """
    uint64_t home_of(uint64_t key, uint64_t room) noexcept nogil
    int log2_of(uint64_t n) noexcept nogil  # of the power of 2 that n, which is not 0, reaches
    void prefetch(const void *where) noexcept nogil
