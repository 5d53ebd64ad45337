# cython: language_level=3
"""An index of two levels that finds the block in which an address lies.

A table by the bits of an address from 28 on leads to tables by bits 8 to 27, which hold the first
block in each 256 bytes.
"""

from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free

from tracelloc.heap.hashing cimport first_above

cdef extern from *:
    void prefetch "__builtin_prefetch"(const void*) noexcept nogil

cdef enum:
    GRANULE_BITS = 8
    LEAF_BITS = 28
    LEAF_GRANULES = 1 << (LEAF_BITS - GRANULE_BITS)

cdef struct BlockIndex:
    const uint64_t* starts
    const uint64_t* ends
    Py_ssize_t count
    Py_ssize_t leaf_count
    uint32_t** leaves  # odd: twice the number of the block that covers the whole leaf, plus 1


cdef inline bint open_index(
    BlockIndex* index, const uint64_t* starts, const uint64_t* ends, Py_ssize_t count,
    int address_bits,
) noexcept nogil:
    """Indexes blocks, which must not overlap, by address; false if out of memory.

    ``address_bits``: those of user-space addresses.
    """
    cdef Py_ssize_t at
    index.starts, index.ends, index.count = starts, ends, count
    index.leaf_count = <Py_ssize_t>1 << (address_bits - LEAF_BITS)
    index.leaves = <uint32_t**>calloc(index.leaf_count, sizeof(uint32_t*))
    if not index.leaves:
        return False
    for at in range(count):
        if starts[at] > ends[at] or ends[at] >> address_bits:
            return False
        if starts[at] < ends[at] and not enter_block(index, at):
            return False
    return True


cdef inline bint enter_block(BlockIndex* index, Py_ssize_t at) noexcept nogil:
    cdef uint64_t granule = index.starts[at] >> GRANULE_BITS
    cdef uint64_t last = (index.ends[at] - 1) >> GRANULE_BITS
    cdef uint32_t* leaf
    cdef Py_ssize_t number
    while granule <= last:
        number = granule // LEAF_GRANULES
        if (
            granule % LEAF_GRANULES == 0
            and index.starts[at] <= granule << GRANULE_BITS
            and last - granule >= LEAF_GRANULES
        ):
            index.leaves[number] = <uint32_t*>(2 * <uintptr_t>at + 1)
            granule += LEAF_GRANULES
            continue
        leaf = index.leaves[number]
        if not leaf:
            leaf = <uint32_t*>calloc(LEAF_GRANULES, sizeof(uint32_t))
            if not leaf:
                return False
            index.leaves[number] = leaf
        if not leaf[granule % LEAF_GRANULES]:
            leaf[granule % LEAF_GRANULES] = <uint32_t>(at + 1)
        granule += 1
    return True


cdef inline Py_ssize_t first_block(BlockIndex* index, uint64_t address) noexcept nogil:
    """Returns the first block in the granule of a user-space address; -1 if there is none."""
    cdef uint32_t* leaf = index.leaves[address >> LEAF_BITS]
    if not leaf:
        return -1
    if <uintptr_t>leaf & 1:
        return <Py_ssize_t>(<uintptr_t>leaf >> 1)
    return <Py_ssize_t>leaf[(address >> GRANULE_BITS) % LEAF_GRANULES] - 1


cdef inline Py_ssize_t block_at(BlockIndex* index, uint64_t address) noexcept nogil:
    """Returns the block in which a user-space address lies; -1 if there is none."""
    cdef Py_ssize_t at = first_block(index, address)
    if at < 0:
        return -1
    while index.ends[at] <= address:
        at += 1
        if at == index.count:
            return -1
    return at if index.starts[at] <= address else -1


cdef inline void prefetch_index(BlockIndex* index, uint64_t address) noexcept nogil:
    """Prefetches the memory that ``prefetch_block`` reads."""
    cdef uint32_t* leaf = index.leaves[address >> LEAF_BITS]
    if leaf and not <uintptr_t>leaf & 1:
        prefetch(&leaf[(address >> GRANULE_BITS) % LEAF_GRANULES])


cdef inline void prefetch_block(BlockIndex* index, uint64_t address) noexcept nogil:
    """Prefetches the memory that ``block_at`` reads."""
    cdef Py_ssize_t at = first_block(index, address)
    if at >= 0:
        prefetch(&index.ends[at])
        prefetch(&index.starts[at])


cdef inline Py_ssize_t first_after(BlockIndex* index, uint64_t address) noexcept nogil:
    """Returns the first block that begins beyond an address."""
    return first_above(index.starts, index.count, 8, address)


cdef inline void close_index(BlockIndex* index) noexcept nogil:
    cdef Py_ssize_t at
    if index.leaves:
        for at in range(index.leaf_count):
            if not <uintptr_t>index.leaves[at] & 1:
                free(index.leaves[at])
    free(index.leaves)
    index.leaves = NULL
