# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Finds the blocks that can be reached from the rest of a process's memory: the marking phase of a
conservative garbage collector (Boehm and Weiser, 1988), as leak checkers use it.

Every aligned word that looks like an address within a block counts as a pointer to it. Callers
pass memory piece by piece, in any order, each piece once. A pointer from block to block is stored
until all memory has been scanned, and then followed; with roots first, most need not be stored.

The bits above an address may be a tag of the program or of the processor, and don't count.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, qsort, realloc
from libc.string cimport memset

import numpy as np

from tracelloc.architecture import address_bits as native_bits
from tracelloc.record.reachability.blockindex cimport (
    GRANULE_BITS, BlockIndex, block_at, close_index, first_after, first_block, open_index, prefetch,
    prefetch_block, prefetch_index,
)

cdef enum:
    AHEAD = 16  # blocks, a power of two
    NODE_BITS = (1 << 28) - 1
    HAS_ONE = 1 << 28  # the lower bits are where its only pointer leads to
    HAS_MANY = 1 << 29
    IS_ROOT = 1 << 30
    HUGE_BYTES = 1 << 21
    BATCH = 256  # words looked at together

cdef extern from "<stdlib.h>" nogil:
    int posix_memalign(void** found, size_t alignment, size_t size_bytes)
cdef extern from "<sys/mman.h>" nogil:
    int madvise(void* address, size_t size_bytes, int advice)
    int MADV_HUGEPAGE

cdef uint32_t IS_REACHED = <uint32_t>1 << 31


def place_shift(int address_bits=native_bits()):
    """Where the place begins in a packed word: above the address without its three lowest bits.

    Places count words from the start of a piece of memory.
    """
    return address_bits - 3


cdef void* zeroed(size_t count, size_t size_bytes) noexcept nogil:
    """Memory of zeros for items; in huge pages, as many lookups lie anywhere in it."""
    cdef size_t total = count * size_bytes
    cdef void* found = NULL
    if total < 2 * HUGE_BYTES:
        return calloc(count, size_bytes)
    if posix_memalign(&found, HUGE_BYTES, total):
        return NULL
    madvise(found, total, MADV_HUGEPAGE)
    return memset(found, 0, total)


cdef int in_order(const void* one, const void* other) noexcept nogil:
    cdef uint32_t a = (<const uint32_t*>one)[0], b = (<const uint32_t*>other)[0]
    return (a > b) - (a < b)


cdef void spread(
    const uint32_t* begins,
    const uint32_t* targets,
    uint32_t* nodes,
    uint32_t* waiting,
    Py_ssize_t count,
) noexcept nogil:
    """Marks all that is led to by blocks that are marked in ``nodes``.

    ``nodes`` has all that is needed of a block with one pointer, as blocks lie anywhere and most of
    the time goes into loading them. Some are always being loaded while others are followed.
    """
    cdef uint32_t ahead[AHEAD]
    cdef uint32_t node, about, first = 0, last = 0
    cdef Py_ssize_t at = 0, end = 0, root = 0, taken = 0, added = 0
    while True:
        while last - first < AHEAD:
            if at < end:
                node = targets[at]
                at += 1
                prefetch(&nodes[node])
                ahead[last % AHEAD] = node
                last += 1
            elif taken < added:
                if taken + 2 * AHEAD < added:
                    prefetch(&begins[waiting[taken + 2 * AHEAD]])
                    prefetch(&targets[begins[waiting[taken + AHEAD]]])
                at, end = begins[waiting[taken]], begins[waiting[taken] + 1]
                taken += 1
            elif root < count:
                if nodes[root] & IS_ROOT:
                    at, end = begins[root], begins[root + 1]
                root += 1
            else:
                break
        if first == last:
            break
        node = ahead[first % AHEAD]
        first += 1
        about = nodes[node]
        if about & IS_REACHED:
            continue
        nodes[node] = about | IS_REACHED
        if about & HAS_ONE:
            node = about & NODE_BITS
            prefetch(&nodes[node])
            ahead[last % AHEAD] = node
            last += 1
        elif about:
            waiting[added] = node
            added += 1


cdef class Marks:
    """Marks blocks when pointers to them are found."""

    cdef const uint64_t[::1] starts
    cdef const uint64_t[::1] ends
    cdef Py_ssize_t count
    cdef int address_bits
    cdef uint64_t address_mask
    cdef BlockIndex index
    cdef uint8_t* marked
    cdef uint32_t* edges  # pairs: the block that holds a pointer, the block it leads to
    cdef readonly Py_ssize_t edge_count
    """Pointers between blocks that are stored."""
    cdef Py_ssize_t edge_room, most_edges
    cdef readonly Py_ssize_t edges_left_out
    """Pointers between blocks that did not fit: their targets count as reachable."""

    def __cinit__(
        self,
        const uint64_t[::1] starts,
        const uint64_t[::1] ends,
        Py_ssize_t most_edges,
        int address_bits=native_bits(),
    ):
        """Blocks by address; none overlaps another. ``most_edges``: limit; 8 bytes each.

        ``address_bits``: those of user-space addresses.
        """
        self.starts, self.ends = starts, ends
        self.count = starts.shape[0]
        self.address_bits = address_bits
        self.address_mask = (<uint64_t>1 << address_bits) - 1
        self.marked = <uint8_t*>zeroed(self.count + 1, 1)
        self.most_edges = most_edges
        if not self.marked:
            raise MemoryError
        if self.count and not open_index(
            &self.index, &starts[0], &ends[0], self.count, address_bits
        ):
            raise MemoryError

    def __dealloc__(self):
        close_index(&self.index)
        free(self.marked)
        free(self.edges)

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
        cdef Py_ssize_t at = 0, count, n, most, source
        cdef uint64_t first, span, word, mask = self.address_mask
        cdef uint64_t found[BATCH]
        cdef uint32_t places[BATCH]
        if not self.count:
            return
        with nogil:
            first = self.starts[0]
            span = self.ends[self.count - 1] - first
            source = first_after(&self.index, address) - 1
            while at < words.shape[0]:
                most = min(words.shape[0], at + BATCH)
                count = 0
                for n in range(at, most):
                    # Without a branch: which words are pointers can't be predicted.
                    word = words[n] & mask
                    found[count] = word
                    places[count] = <uint32_t>n
                    count += word - first < span
                source = self.follow(found, places, count, address, source, are_roots)
                at = most

    def scan_packed(self, const uint64_t[::1] packed, uint64_t address, bint are_roots=True):
        """Scans words of contiguous memory that ``select_words`` has selected; see ``scan``."""
        cdef Py_ssize_t at = 0, count, n, source
        cdef uint64_t mask = self.address_mask
        cdef int shift = self.address_bits - 3
        cdef uint64_t found[BATCH]
        cdef uint32_t places[BATCH]
        if not self.count:
            return
        with nogil:
            source = first_after(&self.index, address) - 1
            while at < packed.shape[0]:
                count = min(packed.shape[0] - at, BATCH)
                for n in range(count):
                    found[n] = packed[at + n] << 3 & mask
                    places[n] = <uint32_t>(packed[at + n] >> shift)
                source = self.follow(found, places, count, address, source, are_roots)
                at += count

    cdef Py_ssize_t follow(
        self,
        uint64_t* words,
        uint32_t* places,
        Py_ssize_t count,
        uint64_t address,
        Py_ssize_t source,
        bint are_roots,
    ) noexcept nogil:
        """Follows words, by their places behind an address.

        ``source``: the last block that begins before them, or -1. Returns the last block that
        begins before the last word that leads to another.
        """
        cdef Py_ssize_t at, target
        cdef uint64_t here
        count = self.load(words, places, count)
        for at in range(count):
            target = block_at(&self.index, words[at])
            if target < 0 or self.marked[target]:
                continue
            here = address + 8 * <uint64_t>places[at]
            while source + 1 < self.count and self.starts[source + 1] <= here:
                source += 1
            if source < 0 or here >= self.ends[source]:
                self.marked[target] |= are_roots
            elif self.marked[source]:
                self.marked[target] = 1
            elif source != target:
                self.link(<uint32_t>source, <uint32_t>target)
        return source

    cdef inline Py_ssize_t load(
        self, uint64_t* words, uint32_t* places, Py_ssize_t count
    ) noexcept nogil:
        """Loads what tells to which block each word leads, and drops words that lead to none.

        Blocks lie anywhere, so waiting for one after the other would take most of the time.
        """
        cdef Py_ssize_t at, n = 0, block
        for at in range(count):
            prefetch_index(&self.index, words[at])
        for at in range(count):
            block = first_block(&self.index, words[at])
            if block < 0:
                continue
            prefetch(&self.ends[block])
            prefetch(&self.starts[block])
            prefetch(&self.marked[block])
            words[n], places[n] = words[at], places[at]
            n += 1
        return n

    def finish(self):
        """Follows the pointers between blocks. Returns which blocks can be reached, 1 or 0 each."""
        cdef Py_ssize_t at
        found = np.zeros(self.count, np.uint8)
        cdef uint8_t[::1] reachable = found
        cdef uint32_t block
        cdef uint32_t* begins = <uint32_t*>zeroed(self.count + 2, 4)
        cdef uint32_t* targets = <uint32_t*>zeroed(self.edge_count + 1, 4)
        cdef uint32_t* nodes = <uint32_t*>zeroed(self.count + 1, 4)
        cdef uint32_t* waiting = <uint32_t*>calloc(self.count + 1, 4)
        try:
            if not begins or not targets or not nodes or not waiting:
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
                        nodes[at] = IS_ROOT | IS_REACHED
                    elif begins[at + 1] - begins[at] == 1 and targets[begins[at]] <= NODE_BITS:
                        nodes[at] = HAS_ONE | targets[begins[at]]
                    elif begins[at + 1] > begins[at]:
                        nodes[at] = HAS_MANY
                spread(begins, targets, nodes, waiting, self.count)
                for at in range(self.count):
                    self.marked[at] = nodes[at] & IS_REACHED != 0
                    reachable[at] = self.marked[at]
        finally:
            free(begins)
            free(targets)
            free(nodes)
            free(waiting)
        return found

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


def set_bits(const uint64_t[::1] starts, const uint64_t[::1] ends, uint8_t[::1] bits):
    """Sets a bit for each 256 bytes that a block lies in. ``bits`` has a power of two of bytes."""
    cdef Py_ssize_t at
    cdef uint64_t granule, last, mask = 8 * <uint64_t>bits.shape[0] - 1
    with nogil:
        for at in range(starts.shape[0]):
            granule, last = starts[at] >> GRANULE_BITS, (ends[at] - 1) >> GRANULE_BITS
            last = min(last, granule + mask)  # all bits
            while granule <= last:
                bits[(granule & mask) >> 3] |= 1 << (granule & 7)
                granule += 1


def select_words(
    const uint64_t[::1] words,
    const uint64_t[:, ::1] spans,
    const uint8_t[::1] bits,
    uint64_t[::1] packed,
    int address_bits=native_bits(),
):
    """Selects the words that lead into one of two address ranges (start and end), and packs them.

    ``bits``: if there are any, only words that lead to a bit that is set, see ``set_bits``: a few others
    do. Places of words have the bits from ``place_shift`` on. Returns the number of packed words; -1
    if there is no room.
    """
    cdef uint64_t mask_of_address = (<uint64_t>1 << address_bits) - 1
    cdef uint64_t place = 0, step = <uint64_t>1 << (address_bits - 3)
    cdef uint64_t first = spans[0, 0], span = spans[0, 1] - first
    cdef uint64_t second = spans[1, 0], other_span = spans[1, 1] - second
    cdef uint64_t word, granule, mask = 8 * <uint64_t>bits.shape[0] - 1
    cdef Py_ssize_t at = 0, most, n, count = 0, total = 0
    cdef bint is_filtered = bits.shape[0] > 0
    with nogil:
        while at < words.shape[0] and total + BATCH <= packed.shape[0]:
            most = min(words.shape[0], at + BATCH)
            count = total
            while at < most:
                word = words[at] & mask_of_address
                packed[count] = place | word >> 3
                place += step
                count += (word - first < span) | (word - second < other_span)
                at += 1
            if is_filtered:
                for n in range(total, count):
                    granule = packed[n] >> (GRANULE_BITS - 3) & mask
                    packed[total] = packed[n]
                    total += bits[granule >> 3] >> (granule & 7) & 1
            else:
                total = count
    return total if at == words.shape[0] else -1
