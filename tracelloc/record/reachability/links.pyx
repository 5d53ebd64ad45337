# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Collects all pointers to blocks: from other blocks, and from roots.

Every aligned word that looks like an address within a block counts as a pointer to it, as in a
conservative garbage collector. Callers pass memory piece by piece, each piece once. In contrast to
``blockbits.pyx``, which only asks what can be reached, no pointer between blocks is left out.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc

from tracelloc.architecture import address_bits as native_bits
from tracelloc.record.reachability.blockindex cimport (
    BlockIndex, block_at, close_index, first_after, open_index, prefetch_block, prefetch_index,
)

cdef enum:
    BATCH = 32
    SHRUNK = 1 << 20  # pointers

cdef uint64_t LEAST_ROOM = 1024

cdef uint64_t MARK = <uint64_t>1 << 63

MARKED = MARK
"""Marks what has a pointer as a block, not a root; what it leads to as an address, not a block."""
NO_ROOT = -1
BY_ADDRESS = 0
"""Instead of a root's number: words outside blocks count for nothing; or with their addresses."""


cdef class Links:
    """Pointers to blocks, found by scanning memory."""

    cdef const uint64_t[::1] starts
    cdef const uint64_t[::1] ends
    cdef BlockIndex index
    cdef uint64_t address_mask  # higher bits may be a tag of the program or of the processor
    cdef uint32_t* edges  # pairs: the block that holds a pointer, the block it leads to
    cdef readonly Py_ssize_t edge_count
    """Pointers from blocks to other blocks."""
    cdef Py_ssize_t edge_room
    # Pairs: root's number or address of a pointer, or `MARK` and its block; the block it leads to,
    # or `MARK` and the address.
    cdef uint64_t* words
    cdef readonly Py_ssize_t root_count
    """Pointers from roots to blocks, and all to memory in which there may be blocks by now."""
    cdef BlockIndex growth  # where that memory is, in `held`
    cdef const uint64_t[:, ::1] held
    cdef Py_ssize_t root_room, most
    cdef public Py_ssize_t left_out
    """Pointers for which there was no room."""
    cdef uint32_t* last_root  # of each block: the last root that led to it, not by address

    def __cinit__(
        self, const uint64_t[::1] starts, const uint64_t[::1] ends, Py_ssize_t most,
        int address_bits=native_bits(), const uint64_t[:, ::1] growth=None,
    ):
        """Takes blocks, sorted, without overlaps. ``most``: limit of pointers of each kind.

        ``address_bits``: those of user-space addresses. ``growth``: starts, and ends, of memory in
        which there may be blocks by now, sorted.
        """
        cdef Py_ssize_t count = starts.shape[0]
        self.starts, self.ends, self.most = starts, ends, most
        self.address_mask = (<uint64_t>1 << address_bits) - 1
        if growth is not None and growth.shape[1]:
            self.growth.starts, self.growth.ends = &growth[0, 0], &growth[1, 0]
            self.growth.count, self.held = growth.shape[1], growth
        self.last_root = <uint32_t*>calloc(count + 1, sizeof(uint32_t))
        if not self.last_root:
            raise MemoryError
        if count and not open_index(
            &self.index, &starts[0], &ends[0], count, address_bits
        ):
            raise MemoryError

    def __dealloc__(self):
        close_index(&self.index)
        free(self.edges)
        free(self.words)
        free(self.last_root)

    def scan(self, const uint64_t[::1] words, uint64_t address, int64_t root):
        """Scans contiguous memory from an address that is a multiple of 8.

        ``root``: the number of the root to which words outside blocks belong, from 1.
        """
        cdef Py_ssize_t at = 0, n, number, source, target, count = self.starts.shape[0]
        cdef uint64_t word, here, first, last, edge, before = ~<uint64_t>0
        cdef uint64_t mask = self.address_mask
        cdef Py_ssize_t likely[BATCH]
        cdef bint is_in_block
        if not count:
            return
        with nogil:
            first, last = self.starts[0], self.ends[count - 1]
            if self.growth.count:
                first = min(first, self.growth.starts[0])
                last = max(last, self.growth.ends[self.growth.count - 1])
            source = first_after(&self.index, address) - 1
            while at < words.shape[0]:
                # Blocks lie anywhere: what is needed of some of them is loaded at the same time.
                n = 0
                while at < words.shape[0] and n < BATCH:
                    word = words[at] & mask
                    if first <= word < last:
                        likely[n] = at
                        n += 1
                        prefetch_index(&self.index, word)
                    at += 1
                for number in range(n):
                    prefetch_block(&self.index, words[likely[number]] & mask)
                for number in range(n):
                    word = words[likely[number]] & mask
                    target = block_at(&self.index, word)
                    if target < 0 and not self.may_be_new(word):
                        continue
                    here = address + 8 * likely[number]
                    while source + 1 < count and self.starts[source + 1] <= here:
                        source += 1
                    is_in_block = source >= 0 and here < self.ends[source]
                    if target < 0:
                        if is_in_block or root >= 0:
                            here = <uint64_t>root if root > 0 else here
                            self.note(MARK | <uint64_t>source if is_in_block else here, MARK | word)
                    elif is_in_block:
                        # What a large bin of glibc has left, see `BlockBits.follow`.
                        if not word & 15 and (here - word == 32 or here - word == 40):
                            if block_at(&self.index, word + 16) == source:
                                continue
                        edge = <uint64_t>source << 32 | <uint64_t>target
                        if source != target and edge != before:
                            before = edge
                            self.link(<uint32_t>source, <uint32_t>target)
                    elif root == 0:
                        self.note(here, target)
                    elif root > 0 and self.last_root[target] != <uint32_t>root:
                        self.last_root[target] = <uint32_t>root
                        self.note(<uint64_t>root, target)

    cdef inline void link(self, uint32_t source, uint32_t target) noexcept nogil:
        if self.edge_count == self.edge_room:
            if not self.grow(<void**>&self.edges, &self.edge_room):
                return
        self.edges[2 * self.edge_count] = source
        self.edges[2 * self.edge_count + 1] = target
        self.edge_count += 1

    cdef inline bint may_be_new(self, uint64_t word) noexcept nogil:
        cdef Py_ssize_t at = first_after(&self.growth, word) - 1
        return at >= 0 and word < self.growth.ends[at]

    cdef inline void note(self, uint64_t origin, uint64_t target) noexcept nogil:
        if self.root_count == self.root_room // 2:
            if not self.grow(<void**>&self.words, &self.root_room):
                return
        self.words[2 * self.root_count] = origin
        self.words[2 * self.root_count + 1] = target
        self.root_count += 1

    cdef bint grow(self, void** held, Py_ssize_t* room) noexcept nogil:
        """Makes room for more entries of 8 bytes; false if there is none: one is left out."""
        cdef Py_ssize_t wider = min(max(LEAST_ROOM, room[0] + (room[0] >> 1)), self.most)
        cdef void* grown = realloc(held[0], wider * 8) if wider > room[0] else NULL
        if grown:
            held[0], room[0] = grown, wider
        else:
            self.left_out += 1
        return grown != NULL

    def roots(self, uint64_t[::1] origins, uint64_t[::1] targets):
        """Fills in the pointers of ``root_count``: origins and targets, maybe ``MARKED``."""
        cdef Py_ssize_t at
        for at in range(self.root_count):
            origins[at], targets[at] = self.words[2 * at], self.words[2 * at + 1]

    def graph(
        self,
        const uint32_t[::1] sources,
        const uint32_t[::1] others,
        uint32_t[::1] begins,
        uint32_t[::1] targets,
    ):
        """Fills in all pointers by the node that has them: those of node n lead to
        ``targets[begins[n]:begins[n + 1]]``.

        ``sources`` and ``others``: nodes beside the blocks, in ascending order, and what they lead
        to. ``begins`` is all 0. The pointers that were found are forgotten: no others can be found.
        """
        cdef Py_ssize_t at, count = begins.shape[0] - 1, n = self.edge_count
        cdef void* shrunk
        self.starts = self.starts[:0]
        close_index(&self.index)
        free(self.last_root)
        free(self.words)
        self.last_root, self.words = NULL, NULL
        with nogil:
            for at in range(n):
                begins[self.edges[2 * at] + 1] += 1
            for at in range(sources.shape[0]):
                begins[sources[at] + 1] += 1
            for at in range(count):
                begins[at + 1] += begins[at]
            # Each is filled from its end, and begins where it should in the end.
            for at in range(n - 1, -1, -1):
                begins[self.edges[2 * at] + 1] -= 1
                targets[begins[self.edges[2 * at] + 1]] = self.edges[2 * at + 1]
                if at % SHRUNK == 0 and at:  # both arrays would not fit
                    shrunk = realloc(self.edges, at * 8)
                    self.edges = <uint32_t*>shrunk if shrunk else self.edges
            for at in range(sources.shape[0] - 1, -1, -1):
                begins[sources[at] + 1] -= 1
                targets[begins[sources[at] + 1]] = others[at]
            # Now each begins one place too far to the right.
            for at in range(count):
                begins[at] = begins[at + 1]
            begins[count] = <uint32_t>(n + sources.shape[0])
        free(self.edges)
        self.edges = NULL
        self.edge_count = self.edge_room = self.root_count = self.root_room = 0
