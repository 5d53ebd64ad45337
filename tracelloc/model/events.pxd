# cython: language_level=3
"""Records of the probes, as defined in ``probes/event.h``."""

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t

cdef extern from "<linux/types.h>":
    pass

cdef extern from "event.h":
    struct event:
        uint64_t address
        uint64_t size_tag
        uint64_t stack_id
        uint64_t time_ns
        uint32_t tid
        uint32_t image
    struct pair_key:
        uint64_t stack_id
        uint64_t size
        uint32_t image
        uint32_t parity
    struct pair_sums:
        int64_t count
        int64_t bytes
        uint64_t time_ns
    struct stack:
        uint64_t stack_id
        uint16_t n_frames
        uint16_t flags
        uint32_t image
        uint64_t frames[1]
    enum:
        EVENT_SIZE_BITS
        WEIGHT_MANTISSA_BITS
        WEIGHT_BITS
        EVENT_KIND_MASK
        EVENT_LAP_BIT
        EVENT_ALLOC
        EVENT_FREE
        EVENT_REALLOC_FREE
        EVENT_RESTORE
        EVENT_LATE_ALLOC
        EVENT_INNER_FREE
        EVENT_PART
        EVENT_FORK

cdef struct Pair:  # of map ``pairs``
    pair_key key
    pair_sums sums


cdef inline uint32_t kind_of(const event* e) noexcept nogil:
    return <uint32_t>(e.size_tag >> EVENT_SIZE_BITS) & EVENT_KIND_MASK


cdef inline uint64_t size_of(const event* e) noexcept nogil:
    return e.size_tag & ((<uint64_t>1 << EVENT_SIZE_BITS) - 1)
