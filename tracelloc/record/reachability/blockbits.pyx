# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Finds the blocks that can be reached from the rest of a process's memory: the marking phase of a
conservative garbage collector (Boehm and Weiser, 1988), as leak checkers use it.

Every aligned word that looks like an address within a block counts as a pointer to it. Callers
pass memory piece by piece, in any order, each piece once. A pointer from block to block is stored
until all memory has been scanned, and then followed; with roots first, most need not be stored.
The bits above an address may be a tag of the program or of the processor, and don't count.

Each part of the addresses, of 65,536 units, has two bits for every unit: whether a block begins there,
and whether it is not reachable; or, where none begins, whether one ends. Two blocks in one unit count
as one. Blocks that are larger than a part are in a list.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc

import numpy as np

from tracelloc.heap.hashing cimport first_above
from tracelloc.record.reachability.blockindex cimport prefetch

from tracelloc.architecture import address_bits as native_bits

cdef extern from *:
    int leading_zeros "__builtin_clzll"(uint64_t) noexcept nogil

cdef enum:
    GROUP_BITS = 10  # parts
    WORDS = 1024  # of a part, a bit for each unit
    UNITS_BITS = 16  # of the number of units in a part
    FILLED = 16  # words with a bit for each of the others
    MOST_PARTS = (1 << 16) - 1
    BATCH = 256  # words looked at together
    FILTER_BITS = 8  # of addresses for each bit of ``set_bits``

cdef uint64_t NO_NAME = <uint64_t>1 << 32

cdef struct Part:
    uint64_t number, index
    uint64_t lead  # where the block begins that reaches into this part from before; 0: none does
    uint64_t filled[FILLED]  # which words of `begins` or `others` are not 0
    uint64_t begins[WORDS]
    uint64_t others[WORDS]  # blocks that begin and are not reachable, and ends
    uint32_t* first_edges  # by word, the first edge from it or from a later one; NULL: there is none

cdef struct LargeBlock:
    uint64_t start, end
    bint is_marked

cdef struct Place:  # of a block
    Part* part  # NULL: a large block
    uint32_t word  # in the part, or row of a large block
    uint64_t bit


cdef inline uint64_t name_of(const Place* place) noexcept nogil:
    """Returns a block's number of 32 bits; larger if there is none."""
    if not place.part:
        return <uint64_t>MOST_PARTS << 16 | place.word if place.word < 1 << 16 else NO_NAME
    if place.part.index >= MOST_PARTS:
        return NO_NAME
    return place.part.index << 16 | place.word << 6 | 63 - leading_zeros(place.bit)


cdef class BlockBits:
    """Blocks, and which of them are reachable: all but those that ``ask`` has named."""

    cdef Part*** groups
    cdef Py_ssize_t group_count
    cdef Part** parts
    cdef Py_ssize_t part_count, part_room
    cdef LargeBlock* large  # by address
    cdef Py_ssize_t large_count, large_room
    cdef int address_bits, part_bits
    cdef readonly int unit_bits
    """Addresses have so many bits less for each unit."""
    cdef uint64_t address_mask, lowest, highest
    cdef uint64_t* edges  # the block with a pointer in the upper half, the block it leads to
    cdef readonly Py_ssize_t edge_count
    """Pointers between blocks that are stored."""
    cdef Py_ssize_t edge_room, most_edges
    cdef readonly Py_ssize_t edges_left_out
    """Pointers between blocks that did not fit: their targets count as reachable."""
    cdef bint is_sorted

    def __cinit__(
        self, Py_ssize_t most_edges, int address_bits=native_bits(), int unit_bits=4
    ):
        """``most_edges``: limit; 8 bytes each. ``address_bits``: those of user-space addresses.

        ``unit_bits``: 4 where blocks begin at multiples of 16 bytes, 3 where they do at those of 8.
        """
        self.unit_bits, self.part_bits = unit_bits, unit_bits + UNITS_BITS
        self.group_count = <Py_ssize_t>1 << (address_bits - self.part_bits - GROUP_BITS)
        self.address_bits = address_bits
        self.address_mask = (<uint64_t>1 << address_bits) - 1
        self.groups = <Part***>calloc(self.group_count, sizeof(Part**))
        self.most_edges, self.is_sorted = most_edges, True
        self.lowest = self.address_mask
        if not self.groups:
            raise MemoryError

    def __dealloc__(self):
        cdef Py_ssize_t at
        for at in range(self.part_count):
            free(self.parts[at].first_edges)
            free(self.parts[at])
        free(self.parts)
        free(self.large)
        if self.groups:
            for at in range(self.group_count):
                free(self.groups[at])
        free(self.groups)
        free(self.edges)

    # ---- blocks ----

    cdef inline Part* find(self, uint64_t address) noexcept nogil:
        cdef Part** group = self.groups[address >> (self.part_bits + GROUP_BITS)]
        return group[address >> self.part_bits & ((1 << GROUP_BITS) - 1)] if group else NULL

    cdef Part* make(self, uint64_t address) noexcept nogil:
        """Returns the part of an address, a new one if need be; NULL if out of memory."""
        cdef Part* part = self.find(address)
        cdef Part*** group = &self.groups[address >> (self.part_bits + GROUP_BITS)]
        cdef Part** parts
        if part:
            return part
        if not group[0]:
            group[0] = <Part**>calloc(1 << GROUP_BITS, sizeof(Part*))
        if self.part_count == self.part_room:
            parts = <Part**>realloc(self.parts, (2 * self.part_room + 64) * sizeof(Part*))
            if not parts:
                return NULL
            self.parts, self.part_room = parts, 2 * self.part_room + 64
        part = <Part*>calloc(1, sizeof(Part))
        if not part or not group[0]:
            free(part)
            return NULL
        part.number, part.index = address >> self.part_bits, self.part_count
        self.parts[self.part_count] = part
        self.part_count += 1
        group[0][address >> self.part_bits & ((1 << GROUP_BITS) - 1)] = part
        return part

    cdef bint set_bound(self, uint64_t address, bint begins) noexcept nogil:
        cdef Part* part = self.make(address)
        cdef uint32_t word = address >> (self.unit_bits + 6) & (WORDS - 1)
        cdef uint64_t bit = <uint64_t>1 << (address >> self.unit_bits & 63)
        if not part:
            return False
        part.filled[word >> 6] |= <uint64_t>1 << (word & 63)
        if begins:
            part.begins[word] |= bit
            part.others[word] &= ~bit
        elif not part.begins[word] & bit:
            part.others[word] |= bit
        return True

    cdef Py_ssize_t large_row(self, uint64_t address) noexcept nogil:
        """Returns the row of the last large block that begins up to an address; -1: none."""
        return first_above(self.large, self.large_count, sizeof(LargeBlock), address) - 1

    cdef bint add_large(self, uint64_t start, uint64_t end) noexcept nogil:
        cdef Py_ssize_t at = self.large_count, row = self.large_row(start) + 1
        cdef LargeBlock* grown
        if at == self.large_room:
            grown = <LargeBlock*>realloc(self.large, (2 * at + 64) * sizeof(LargeBlock))
            if not grown:
                return False
            self.large, self.large_room = grown, 2 * at + 64
        while at > row:
            self.large[at] = self.large[at - 1]
            at -= 1
        self.large[row].start, self.large[row].end, self.large[row].is_marked = start, end, True
        self.large_count += 1
        return True

    def add(self, const uint64_t[::1] starts, const uint64_t[::1] ends):
        """Adds blocks, which must overlap neither each other nor blocks added before."""
        cdef Py_ssize_t at
        cdef uint64_t start, end
        cdef Part* part
        cdef bint fits = True
        with nogil:
            for at in range(starts.shape[0]):
                start, end = starts[at], ends[at] + (<uint64_t>1 << self.unit_bits) - 1 & ~((<uint64_t>1 << self.unit_bits) - 1)
                if end > self.address_mask or start >= end or not fits:
                    fits = False
                    break
                if end - start > <uint64_t>1 << self.part_bits:
                    fits = self.add_large(start, end)
                else:
                    fits = self.set_bound(start, True)
                    # Behind the end of a part, nothing is in a block anyway.
                    if end & ((<uint64_t>1 << self.part_bits) - 1):
                        fits = fits and self.set_bound(end, False)
                    if fits and start >> self.part_bits != end - 1 >> self.part_bits:
                        part = self.make(end - 1)
                        fits = part != NULL
                        if fits:
                            part.lead = start
                self.lowest, self.highest = min(self.lowest, start), max(self.highest, end)
        if not fits:
            raise MemoryError

    cdef inline bint locate(self, uint64_t address, Place* place) noexcept nogil:
        """Finds the block in which an address lies; false if there is none."""
        cdef Py_ssize_t row
        if self.locate_small(address, place):
            return True
        row = self.large_row(address) if self.large_count else -1
        place.part, place.word = NULL, <uint32_t>row
        return row >= 0 and address < self.large[row].end

    cdef inline bint locate_small(self, uint64_t address, Place* place) noexcept nogil:
        cdef Part* part = self.find(address)
        cdef uint32_t unit = address >> self.unit_bits & 0xFFFF
        cdef uint32_t word = unit >> 6
        cdef uint64_t bits, filled
        cdef int group
        if not part:
            return False
        bits = (part.begins[word] | part.others[word]) & (<uint64_t>-1 >> (63 - (unit & 63)))
        if not bits:
            group = word >> 6
            filled = part.filled[group] & ((<uint64_t>1 << (word & 63)) - 1)
            while not filled and group > 0:
                group -= 1
                filled = part.filled[group]
            if not filled:
                return part.lead != 0 and self.at(part.lead, place)
            word = group << 6 | 63 - leading_zeros(filled)
            bits = part.begins[word] | part.others[word]
        place.part, place.word = part, word
        place.bit = <uint64_t>1 << (63 - leading_zeros(bits))
        return part.begins[word] & place.bit != 0

    cdef inline bint at(self, uint64_t address, Place* place) noexcept nogil:
        """Finds the block that begins at an address; false if there is none."""
        cdef Py_ssize_t row
        place.part = self.find(address)
        place.word = address >> (self.unit_bits + 6) & (WORDS - 1)
        place.bit = <uint64_t>1 << (address >> self.unit_bits & 63)
        if place.part != NULL and place.part.begins[place.word] & place.bit != 0:
            return True
        row = self.large_row(address) if self.large_count else -1
        place.part, place.word = NULL, <uint32_t>row
        return row >= 0 and address == self.large[row].start and address < self.large[row].end

    cdef inline bint is_marked(self, const Place* place) noexcept nogil:
        if not place.part:
            return self.large[place.word].is_marked
        return place.part.others[place.word] & place.bit == 0

    cdef inline void set_mark(self, const Place* place, bint is_marked) noexcept nogil:
        if not place.part:
            self.large[place.word].is_marked = is_marked
        elif is_marked:
            place.part.others[place.word] &= ~place.bit
        else:
            place.part.others[place.word] |= place.bit

    def ask(self, const uint64_t[::1] addresses, uint8_t[::1] found):
        """Makes the blocks at addresses unreachable, until a pointer is found; fills in which exist.

        Raises ValueError if an address is no user-space address.
        """
        cdef Py_ssize_t at
        cdef Place place
        cdef bint fits = True
        with nogil:
            for at in range(addresses.shape[0]):
                fits &= addresses[at] <= self.address_mask
                found[at] = fits and self.at(addresses[at], &place)
                if found[at]:
                    self.set_mark(&place, False)
        if not fits:
            raise ValueError("no user-space address")

    def cut(self, const uint64_t[::1] addresses):
        """Removes the blocks in which some addresses lie; returns (start, end) of each block."""
        cdef Py_ssize_t at
        cdef Place place
        cdef uint64_t start, end
        found = []
        for at in range(addresses.shape[0]):
            if not self.locate(addresses[at], &place):
                continue
            if not place.part:
                found.append((self.large[place.word].start, self.large[place.word].end))
                self.large[place.word].end = self.large[place.word].start
            else:
                place.part.begins[place.word] &= ~place.bit
                place.part.others[place.word] |= place.bit
                start = <uint64_t>place.word << 6 | 63 - leading_zeros(place.bit)
                start = (place.part.number << self.part_bits) + (start << self.unit_bits)
                end = start + (<uint64_t>1 << self.unit_bits)
                while not self.is_bound(end):
                    end += <uint64_t>1 << self.unit_bits
                found.append((start, end))
        return found

    cdef bint is_bound(self, uint64_t address) noexcept nogil:
        cdef Part* part = self.find(address)
        cdef uint32_t unit = address >> self.unit_bits & 0xFFFF
        if not unit and (not part or not part.lead):
            return True
        return (part.begins[unit >> 6] | part.others[unit >> 6]) >> (unit & 63) & 1

    def are_reachable(self, const uint64_t[::1] addresses, uint8_t[::1] reachable):
        """Fills in which addresses have a reachable block, or no block."""
        cdef Py_ssize_t at
        cdef Place place
        with nogil:
            for at in range(addresses.shape[0]):
                reachable[at] = (
                    addresses[at] > self.address_mask or not self.at(addresses[at], &place)
                    or self.is_marked(&place))

    def copy_edges(self, uint64_t[::1] sources, uint64_t[::1] targets):
        """Fills in stored pointers: addresses of the pointing block and of the block pointed to."""
        cdef Py_ssize_t at
        for at in range(self.edge_count):
            sources[at] = self.address_of(<uint32_t>(self.edges[at] >> 32))
            targets[at] = self.address_of(<uint32_t>self.edges[at])

    cdef uint64_t address_of(self, uint32_t name) noexcept nogil:
        if name >> 16 == MOST_PARTS:
            return self.large[name & 0xFFFF].start
        return (self.parts[name >> 16].number << self.part_bits) + ((name & 0xFFFF) << self.unit_bits)

    def has_reachable(self, uint64_t start, uint64_t end):
        """Whether a reachable block begins in a range of addresses, or reaches into it."""
        cdef Place place
        cdef Part* part
        cdef uint64_t word
        cdef Py_ssize_t row
        if self.locate(start, &place) and self.is_marked(&place):
            return True
        for row in range(self.large_row(start) + 1, self.large_row(end - 1) + 1):
            if self.large[row].is_marked:
                return True
        for word in range(start >> (self.unit_bits + 6), (end - 1 >> (self.unit_bits + 6)) + 1):
            part = self.find(word << (self.unit_bits + 6))
            if part and part.begins[word & (WORDS - 1)] & ~part.others[word & (WORDS - 1)]:
                return True
        return False

    # ---- pointers ----

    def scan(self, const uint64_t[::1] words, uint64_t address, bint are_roots=True):
        """Scans contiguous memory from an address that is a multiple of 8.

        ``are_roots``: whether what lies outside blocks keeps blocks reachable; else it is ignored.
        """
        cdef Py_ssize_t at = 0, count, n, most
        cdef uint64_t first = self.lowest, span = self.highest - self.lowest, word
        cdef uint64_t found[BATCH]
        cdef uint32_t places[BATCH]
        with nogil:
            while at < words.shape[0]:
                most = min(words.shape[0], at + BATCH)
                count = 0
                for n in range(at, most):
                    # Without a branch: which words are pointers can't be predicted.
                    word = words[n] & self.address_mask
                    found[count] = word
                    places[count] = <uint32_t>n
                    count += word - first < span
                self.follow(found, places, count, address, are_roots)
                at = most

    def scan_packed(self, const uint64_t[::1] packed, uint64_t address, bint are_roots=True):
        """Scans words of contiguous memory that ``select_words`` has selected; see ``scan``."""
        cdef Py_ssize_t at = 0, count, n
        cdef uint64_t found[BATCH]
        cdef uint32_t places[BATCH]
        with nogil:
            while at < packed.shape[0]:
                count = min(packed.shape[0] - at, BATCH)
                for n in range(count):
                    found[n] = packed[at + n] << 3 & self.address_mask
                    places[n] = <uint32_t>(packed[at + n] >> (self.address_bits - 3))
                self.follow(found, places, count, address, are_roots)
                at += count

    cdef void follow(
        self, uint64_t* words, uint32_t* places, Py_ssize_t count, uint64_t address, bint are_roots
    ) noexcept nogil:
        cdef Py_ssize_t at, n = 0
        cdef uint64_t here
        cdef Place source, target
        cdef Part* part
        # Blocks lie anywhere, so waiting for one after the other would take most of the time.
        for at in range(count):
            part = self.find(words[at])
            if part or self.large_count:
                here = words[at] >> (self.unit_bits + 6) & (WORDS - 1)
                if part:
                    prefetch(&part.begins[here])
                    prefetch(&part.others[here])
                words[n], places[n] = words[at], places[at]
                n += 1
        for at in range(n):
            if not self.locate(words[at], &target) or self.is_marked(&target):
                continue
            here = address + 8 * <uint64_t>places[at]
            # In a large bin of glibc, the only chunk of its size points to itself (fd_nextsize and
            # bk_nextsize, malloc.c). A block that is made of it, and does not write these words,
            # does not point to the end of the block before it.
            if not words[at] & 15 and (here - words[at] == 32 or here - words[at] == 40):
                if not self.locate(words[at] + 16, &source) or name_of(&source) != name_of(&target):
                    continue
            if not self.locate(here, &source):
                if are_roots:
                    self.set_mark(&target, True)
            elif self.is_marked(&source):
                self.set_mark(&target, True)
            elif name_of(&source) != name_of(&target) or name_of(&source) == NO_NAME:
                self.link(&source, &target)

    cdef void link(self, const Place* source, const Place* target) noexcept nogil:
        cdef uint64_t edge
        cdef uint64_t* edges = self.edges
        cdef bint has_names = max(name_of(source), name_of(target)) < NO_NAME
        if self.edge_count == self.edge_room:
            edges = NULL
            if self.edge_count < self.most_edges:
                self.edge_room = min(max(1024, self.edge_room + (self.edge_room >> 1)), self.most_edges)
                edges = <uint64_t*>realloc(self.edges, self.edge_room * sizeof(uint64_t))
        if edges == NULL or not has_names:
            if edges == NULL:
                self.most_edges = self.edge_room = self.edge_count
            else:
                self.edges = edges
            self.set_mark(target, True)
            self.edges_left_out += 1
            return
        self.edges = edges
        edge = name_of(source) << 32 | name_of(target)
        self.is_sorted &= not self.edge_count or edges[self.edge_count - 1] >> 32 <= edge >> 32
        edges[self.edge_count] = edge
        self.edge_count += 1

    cdef inline bint mark(self, uint32_t name) noexcept nogil:
        """Marks a block as reachable; false if it was already."""
        cdef Place place
        self.name_place(name, &place)
        if self.is_marked(&place):
            return False
        self.set_mark(&place, True)
        return True

    cdef inline void name_place(self, uint32_t name, Place* place) noexcept nogil:
        if name >> 16 == MOST_PARTS:
            place.part, place.word = NULL, name & 0xFFFF
        else:
            place.part, place.word = self.parts[name >> 16], name >> 6 & (WORDS - 1)
            place.bit = <uint64_t>1 << (name & 63)

    cdef Py_ssize_t first_edge(self, uint32_t name) noexcept nogil:
        """Returns the row of the first edge from a block, or of one before it; -1: none."""
        cdef Part* part
        if name >> 16 < MOST_PARTS:
            part = self.parts[name >> 16]
            return <Py_ssize_t>part.first_edges[name >> 6 & (WORDS - 1)] - 1 if part.first_edges else -1
        return first_above(self.edges, self.edge_count, 8, (<uint64_t>name << 32) - 1)

    def finish(self):
        """Follows the pointers between blocks, once all memory has been scanned."""
        cdef Py_ssize_t at, edge, waiting = 0, room = 0
        cdef uint32_t name
        cdef uint32_t* grown
        cdef uint32_t* stack = NULL
        cdef Part* part
        cdef Place place
        cdef bint fits = True
        if not self.edge_count:
            return
        if not self.is_sorted:
            np.asarray(<uint64_t[:self.edge_count]>self.edges).sort()
        with nogil:
            for at in range(self.edge_count - 1, -1, -1):
                if self.edges[at] >> 48 == MOST_PARTS:
                    continue
                part = self.parts[self.edges[at] >> 48]
                if not part.first_edges:
                    part.first_edges = <uint32_t*>calloc(WORDS, sizeof(uint32_t))
                    if not part.first_edges:
                        fits = False
                        break
                part.first_edges[self.edges[at] >> 38 & (WORDS - 1)] = <uint32_t>(at + 1)
            for edge in range(self.edge_count if fits else 0):
                self.name_place(<uint32_t>(self.edges[edge] >> 32), &place)
                name = <uint32_t>self.edges[edge]
                if not self.is_marked(&place) or not self.mark(name):
                    continue
                while fits:
                    # All that this block leads to.
                    at = self.first_edge(name)
                    while 0 <= at < self.edge_count and self.edges[at] >> 32 <= name:
                        if self.edges[at] >> 32 == name and self.mark(<uint32_t>self.edges[at]):
                            if waiting == room:
                                room = 2 * room + 1024
                                grown = <uint32_t*>realloc(stack, room * sizeof(uint32_t))
                                if not grown:
                                    fits = False
                                    break
                                stack = grown
                            stack[waiting] = <uint32_t>self.edges[at]
                            waiting += 1
                        at += 1
                    if not waiting:
                        break
                    waiting -= 1
                    name = stack[waiting]
        free(stack)
        if not fits:
            raise MemoryError


def place_shift(int address_bits=native_bits()):
    """Returns the bit from which a packed word has its place, in words, above the address."""
    return address_bits - 3


def set_bits(const uint64_t[::1] starts, const uint64_t[::1] ends, uint8_t[::1] bits):
    """Sets a bit for each 256 bytes that a block lies in. ``bits`` has a power of two of bytes."""
    cdef Py_ssize_t at
    cdef uint64_t granule, last, mask = 8 * <uint64_t>bits.shape[0] - 1
    with nogil:
        for at in range(starts.shape[0]):
            granule, last = starts[at] >> FILTER_BITS, (ends[at] - 1) >> FILTER_BITS
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
                # Half of a heap is zero, and passed over six times as fast.
                if at + 4 <= most and not words[at] | words[at + 1] | words[at + 2] | words[at + 3]:
                    place += 4 * step
                    at += 4
                    continue
                word = words[at] & mask_of_address
                packed[count] = place | word >> 3
                place += step
                count += (word - first < span) | (word - second < other_span)
                at += 1
            if is_filtered:
                for n in range(total, count):
                    granule = packed[n] >> (FILTER_BITS - 3) & mask
                    packed[total] = packed[n]
                    total += bits[granule >> 3] >> (granule & 7) & 1
            else:
                total = count
    return total if at == words.shape[0] else -1
