# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Finds the blocks that can be reached from the rest of a process's memory: the marking phase of a
conservative garbage collector (Boehm and Weiser, 1988), as leak checkers use it.

Every aligned word that looks like an address within a block counts as a pointer to it. Callers
pass memory piece by piece, in any order, each piece once. Memory outside blocks is a root. A
pointer from block to block is stored until all memory has been scanned, and then followed.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc

cdef enum:
    GRANULE_BITS = 16
    FILTER_BITS = 20

cdef uint64_t ADDRESS_BITS = (<uint64_t>1 << 47) - 1  # higher bits may be a tag of the program
cdef uint64_t GOLDEN = 0x9E3779B97F4A7C15u


cdef inline uint32_t bit_of(uint64_t address) noexcept nogil:
    """The filter bit of an address: one per 64 KiB."""
    return <uint32_t>(((address >> GRANULE_BITS) * GOLDEN) >> (64 - FILTER_BITS))


cdef class Marks:
    """Marks blocks when pointers to them are found."""

    cdef const uint64_t[::1] starts
    cdef const uint64_t[::1] ends
    cdef Py_ssize_t count
    cdef uint8_t* filter
    cdef uint8_t* marked
    cdef uint32_t* edges  # pairs: the block that holds a pointer, the block it leads to
    cdef Py_ssize_t edge_count, edge_room, most_edges
    cdef readonly Py_ssize_t edges_left_out
    """Pointers between blocks that did not fit: their targets count as reachable."""

    def __cinit__(self, const uint64_t[::1] starts, const uint64_t[::1] ends, Py_ssize_t most_edges):
        """Blocks by address; none overlaps another. ``most_edges``: limit; 8 bytes each."""
        cdef Py_ssize_t at
        cdef uint64_t granule
        cdef uint32_t bit
        self.starts, self.ends = starts, ends
        self.count = starts.shape[0]
        self.filter = <uint8_t*>calloc((1 << FILTER_BITS) >> 3, 1)
        self.marked = <uint8_t*>calloc(self.count + 1, 1)
        self.most_edges = most_edges
        if not self.filter or not self.marked:
            raise MemoryError
        for at in range(self.count):
            granule = starts[at] >> GRANULE_BITS
            while granule <= (ends[at] - 1) >> GRANULE_BITS:
                bit = bit_of(granule << GRANULE_BITS)
                self.filter[bit >> 3] |= 1 << (bit & 7)
                granule += 1

    def __dealloc__(self):
        free(self.filter)
        free(self.marked)
        free(self.edges)

    cdef inline Py_ssize_t first_after(self, uint64_t address) noexcept nogil:
        """The first block that begins beyond an address."""
        cdef Py_ssize_t low = 0, length = self.count, half
        while length > 0:
            half = length >> 1
            if self.starts[low + half] <= address:
                low += half + 1
                length -= half + 1
            else:
                length = half
        return low

    cdef inline void link(self, uint32_t source, uint32_t target) noexcept nogil:
        cdef uint32_t* edges = NULL
        if self.edge_count == self.edge_room:
            if self.edge_count < self.most_edges:
                self.edge_room = min(max(1024, 2 * self.edge_room), self.most_edges)
                edges = <uint32_t*>realloc(self.edges, self.edge_room * 8)
            if edges == NULL:
                self.most_edges = self.edge_room = self.edge_count
                self.marked[target] = 1
                self.edges_left_out += 1
                return
            self.edges = edges
        self.edges[2 * self.edge_count] = source
        self.edges[2 * self.edge_count + 1] = target
        self.edge_count += 1

    def scan(self, const uint64_t[::1] words, uint64_t address):
        """Scans contiguous memory from an address that is a multiple of 8."""
        cdef Py_ssize_t at, source, target
        cdef uint64_t word, here, first, last
        cdef uint32_t bit
        if not self.count:
            return
        with nogil:
            first, last = self.starts[0], self.ends[self.count - 1]
            source = self.first_after(address) - 1
            for at in range(words.shape[0]):
                word = words[at] & ADDRESS_BITS
                if word < first or word >= last:
                    continue
                bit = bit_of(word)
                if not self.filter[bit >> 3] & (1 << (bit & 7)):
                    continue
                target = self.first_after(word) - 1
                if word >= self.ends[target] or self.marked[target]:
                    continue
                here = address + 8 * at
                while source + 1 < self.count and self.starts[source + 1] <= here:
                    source += 1
                if source < 0 or here >= self.ends[source] or self.marked[source]:
                    self.marked[target] = 1
                elif source != target:
                    self.link(<uint32_t>source, <uint32_t>target)

    def finish(self, uint8_t[::1] reachable):
        """Follows the pointers between blocks. Fills in which blocks can be reached."""
        cdef Py_ssize_t at, to, top = 0
        cdef uint32_t block
        cdef uint32_t* begins = <uint32_t*>calloc(self.count + 2, 4)
        cdef uint32_t* targets = <uint32_t*>calloc(self.edge_count + 1, 4)
        cdef uint32_t* waiting = <uint32_t*>calloc(self.count + 1, 4)
        try:
            if not begins or not targets or not waiting:
                raise MemoryError
            with nogil:
                for at in range(self.edge_count):
                    begins[self.edges[2 * at] + 2] += 1
                for at in range(2, self.count + 2):
                    begins[at] += begins[at - 1]
                for at in range(self.edge_count):
                    block = self.edges[2 * at]
                    targets[begins[block + 1]] = self.edges[2 * at + 1]
                    begins[block + 1] += 1
                for at in range(self.count):
                    if self.marked[at]:
                        waiting[top] = <uint32_t>at
                        top += 1
                while top:
                    top -= 1
                    block = waiting[top]
                    for to in range(begins[block], begins[block + 1]):
                        if not self.marked[targets[to]]:
                            self.marked[targets[to]] = 1
                            waiting[top] = targets[to]
                            top += 1
                for at in range(self.count):
                    reachable[at] = self.marked[at]
        finally:
            free(begins)
            free(targets)
            free(waiting)
