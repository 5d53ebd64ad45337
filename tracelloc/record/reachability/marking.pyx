# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Finds the blocks that can be reached from the rest of a process's memory: the marking phase of a
conservative garbage collector (Boehm and Weiser, 1988), as leak checkers use it.

Every aligned word that looks like an address within a block counts as a pointer to it. Callers
pass memory piece by piece, in any order, each piece once. A pointer from block to block is stored
until all memory has been scanned, and then followed; with roots first, most need not be stored.

A word's block is found by an index of two levels: a table by bits 28 to 46 of an address leads to
tables by bits 10 to 27, which hold the first block in each KiB.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, qsort, realloc

cdef enum:
    GRANULE_BITS = 10
    LEAF_BITS = 28
    LEAF_GRANULES = 1 << (LEAF_BITS - GRANULE_BITS)
    LEAVES = 1 << (47 - LEAF_BITS)
    AHEAD = 8  # blocks

cdef extern from *:
    void prefetch "__builtin_prefetch"(const void*) noexcept nogil

cdef uint64_t ADDRESS_BITS = (<uint64_t>1 << 47) - 1  # higher bits may be a tag of the program


cdef int in_order(const void* one, const void* other) noexcept nogil:
    cdef uint32_t a = (<const uint32_t*>one)[0], b = (<const uint32_t*>other)[0]
    return (a > b) - (a < b)


cdef class Marks:
    """Marks blocks when pointers to them are found."""

    cdef const uint64_t[::1] starts
    cdef const uint64_t[::1] ends
    cdef Py_ssize_t count
    cdef uint32_t** leaves  # odd: twice the number of the block that covers the whole leaf, plus 1
    cdef uint8_t* marked
    cdef uint32_t* edges  # pairs: the block that holds a pointer, the block it leads to
    cdef readonly Py_ssize_t edge_count
    """Pointers between blocks that are stored."""
    cdef Py_ssize_t edge_room, most_edges
    cdef readonly Py_ssize_t edges_left_out
    """Pointers between blocks that did not fit: their targets count as reachable."""

    def __cinit__(self, const uint64_t[::1] starts, const uint64_t[::1] ends, Py_ssize_t most_edges):
        """Blocks by address; none overlaps another. ``most_edges``: limit; 8 bytes each."""
        cdef Py_ssize_t at
        self.starts, self.ends = starts, ends
        self.count = starts.shape[0]
        self.leaves = <uint32_t**>calloc(LEAVES, sizeof(uint32_t*))
        self.marked = <uint8_t*>calloc(self.count + 1, 1)
        self.most_edges = most_edges
        if not self.leaves or not self.marked:
            raise MemoryError
        for at in range(self.count):
            if ends[at] > ADDRESS_BITS or not self.enter(at):
                raise MemoryError

    def __dealloc__(self):
        cdef Py_ssize_t at
        if self.leaves:
            for at in range(LEAVES):
                if not <uintptr_t>self.leaves[at] & 1:
                    free(self.leaves[at])
        free(self.leaves)
        free(self.marked)
        free(self.edges)

    cdef bint enter(self, Py_ssize_t at) noexcept nogil:
        """Enters a block into the index; false if there is no memory."""
        cdef uint64_t granule = self.starts[at] >> GRANULE_BITS
        cdef uint64_t last = (self.ends[at] - 1) >> GRANULE_BITS
        cdef uint64_t address
        cdef Py_ssize_t leaf
        while granule <= last:
            leaf = granule // LEAF_GRANULES
            address = granule << GRANULE_BITS
            if (
                granule % LEAF_GRANULES == 0
                and self.starts[at] <= address
                and self.ends[at] - address >= <uint64_t>1 << LEAF_BITS
            ):
                self.leaves[leaf] = <uint32_t*>(2 * <uintptr_t>at + 1)
                granule += LEAF_GRANULES
                continue
            if not self.leaves[leaf]:
                self.leaves[leaf] = <uint32_t*>calloc(LEAF_GRANULES, sizeof(uint32_t))
                if not self.leaves[leaf]:
                    return False
            if not self.leaves[leaf][granule % LEAF_GRANULES]:
                self.leaves[leaf][granule % LEAF_GRANULES] = <uint32_t>(at + 1)
            granule += 1
        return True

    cdef inline Py_ssize_t block_at(self, uint64_t address) noexcept nogil:
        """The block that an address is in; -1 if there is none."""
        cdef uint32_t* leaf = self.leaves[address >> LEAF_BITS]
        cdef Py_ssize_t at
        if not leaf:
            return -1
        if <uintptr_t>leaf & 1:
            return <Py_ssize_t>(<uintptr_t>leaf >> 1)
        at = <Py_ssize_t>leaf[(address >> GRANULE_BITS) % LEAF_GRANULES] - 1
        if at < 0:
            return -1
        while self.ends[at] <= address:
            at += 1
            if at == self.count:
                return -1
        return at if self.starts[at] <= address else -1

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

    def scan(self, const uint64_t[::1] words, uint64_t address, bint are_roots=True):
        """Scans contiguous memory from an address that is a multiple of 8.

        ``are_roots``: whether what lies outside blocks keeps blocks reachable; else it is ignored.
        """
        cdef Py_ssize_t at, source, target
        cdef uint64_t word, here, first, last
        if not self.count:
            return
        with nogil:
            first, last = self.starts[0], self.ends[self.count - 1]
            source = self.first_after(address) - 1
            for at in range(words.shape[0]):
                word = words[at] & ADDRESS_BITS
                if word < first or word >= last:
                    continue
                target = self.block_at(word)
                if target < 0 or self.marked[target]:
                    continue
                here = address + 8 * at
                while source + 1 < self.count and self.starts[source + 1] <= here:
                    source += 1
                if source < 0 or here >= self.ends[source]:
                    self.marked[target] |= are_roots
                elif self.marked[source]:
                    self.marked[target] = 1
                elif source != target:
                    self.link(<uint32_t>source, <uint32_t>target)

    def finish(self, uint8_t[::1] reachable):
        """Follows the pointers between blocks. Fills in which blocks can be reached."""
        cdef Py_ssize_t at, to, first = 0, last = 0
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
                        waiting[last] = <uint32_t>at
                        last += 1
                while first < last:
                    # Blocks lie anywhere: what comes next is loaded meanwhile.
                    if first + 3 * AHEAD < last:
                        prefetch(&begins[waiting[first + 3 * AHEAD]])
                        prefetch(&targets[begins[waiting[first + 2 * AHEAD]]])
                        prefetch(&self.marked[targets[begins[waiting[first + AHEAD]]]])
                    block = waiting[first]
                    first += 1
                    for to in range(begins[block], begins[block + 1]):
                        if not self.marked[targets[to]]:
                            self.marked[targets[to]] = 1
                            waiting[last] = targets[to]
                            last += 1
                for at in range(self.count):
                    reachable[at] = self.marked[at]
        finally:
            free(begins)
            free(targets)
            free(waiting)

    def links_among(self, const uint32_t[::1] numbers, uint32_t[::1] begins, uint32_t[::1] targets):
        """Fills in the stored pointers between some blocks, by their new numbers, without repeats.

        ``numbers``: each block's new number plus 1, or 0 for a block that is not wanted. Those of
        block n lead to ``targets[begins[n]:begins[n + 1]]``, in ascending order. ``targets`` has
        room for ``edge_count``, ``begins`` for one more than there are numbers, all 0. Pointers from
        and to unreachable blocks are all stored. Returns the number of targets.
        """
        cdef Py_ssize_t at, source, to, end, n = 0, count = begins.shape[0] - 1
        cdef uint32_t first, last
        with nogil:
            for at in range(self.edge_count):
                source = numbers[self.edges[2 * at]]
                if source and numbers[self.edges[2 * at + 1]]:
                    begins[source] += 1
            for at in range(count):
                begins[at + 1] += begins[at]
            # Each is filled from its end, after which it begins where it should.
            for at in range(self.edge_count):
                source = numbers[self.edges[2 * at]]
                first = numbers[self.edges[2 * at + 1]]
                if source and first:
                    begins[source] -= 1
                    targets[begins[source]] = first - 1
                    n += 1
            # They are one place too far to the right now.
            for at in range(count):
                begins[at] = begins[at + 1]
            begins[count] = <uint32_t>n
            n = 0
            for at in range(count):
                to, end = begins[at], begins[at + 1]
                begins[at] = <uint32_t>n
                if end - to > 1:
                    qsort(&targets[to], end - to, sizeof(uint32_t), &in_order)
                while to < end:
                    last = targets[to]
                    targets[n] = last
                    n += 1
                    to += 1
                    while to < end and targets[to] == last:
                        to += 1
            begins[count] = <uint32_t>n
        return n
