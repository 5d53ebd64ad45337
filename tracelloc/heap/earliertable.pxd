# cython: language_level=3, cdivision=True
"""Small blocks from before tracing: about 1.4 bytes each, and 1 % of the heap.

Blocks are only removed. Each MiB of addresses has a bit for every 16 bytes, set where one begins,
and one byte for each block: its kind, which is its size and stack. Forks share a table until one of
them writes to it.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy

cdef extern from *:
    int popcount "__builtin_popcountll"(uint64_t) noexcept nogil
    int lowest_bit "__builtin_ctzll"(uint64_t) noexcept nogil

cdef enum:
    PART_BITS = 20  # of addresses in a part
    UNIT_BITS = 4  # of addresses for each bit
    WORDS = 1 << (PART_BITS - UNIT_BITS - 6)
    RANKED = 4
    MOST_KINDS = 255  # of a part: 0 is that of blocks that were freed
    RECENT = 64
    LARGE_BYTES = 4096  # larger blocks are so rare that the bits would cost more

cdef struct Kind:
    uint64_t size
    uint32_t stack

cdef struct Part:
    uint64_t number  # the upper bits of its addresses
    uint64_t starts[WORDS]
    uint16_t ranks[WORDS / RANKED]  # blocks before each fourth word
    uint8_t recent[RECENT]  # kinds by a hash
    uint32_t count, room, kind_count, kind_room
    uint64_t last  # the address that was added last
    uint8_t* kind_of
    Kind* kinds

cdef struct Earlier:
    int64_t owners
    uint64_t count, size_bytes
    uint64_t time_ns  # when tracing began
    Py_ssize_t part_count, room
    uint64_t* numbers  # of the parts, which ascend
    Part** parts


cdef inline Earlier* new_earlier() noexcept nogil:
    """Returns an empty table; NULL if out of memory."""
    cdef Earlier* table = <Earlier*>calloc(1, sizeof(Earlier))
    if table:
        table.owners = 1
    return table


cdef inline void drop_earlier(Earlier* table) noexcept nogil:
    """Drops one owner of a table; the last owner frees it."""
    cdef Py_ssize_t at
    if not table:
        return
    table.owners -= 1
    if table.owners:
        return
    for at in range(table.part_count):
        free(table.parts[at].kind_of)
        free(table.parts[at].kinds)
        free(table.parts[at])
    free(table.numbers)
    free(table.parts)
    free(table)


cdef inline Py_ssize_t part_row(Earlier* table, uint64_t address) noexcept nogil:
    """Returns the row of the first part that does not end before an address."""
    cdef uint64_t number = address >> PART_BITS
    cdef Py_ssize_t low = 0, length = table.part_count, half
    while length > 0:
        half = length >> 1
        if table.numbers[low + half] < number:
            low += half + 1
            length -= half + 1
        else:
            length = half
    return low


cdef inline uint64_t rank_of(const Part* part, uint64_t word) noexcept nogil:
    """Returns how many blocks begin before a word."""
    cdef uint64_t at, found = part.ranks[word // RANKED]
    for at in range(word // RANKED * RANKED, word):
        found += popcount(part.starts[at])
    return found


cdef inline uint8_t* earlier_at(Earlier* table, uint64_t address, Part** found) noexcept nogil:
    """Returns where the kind of an address's block is stored; NULL if there is no block."""
    cdef Py_ssize_t row
    cdef uint64_t word, bit
    cdef Part* part
    cdef uint8_t* kind
    if not table.count or address & ((1 << UNIT_BITS) - 1):
        return NULL
    row = part_row(table, address)
    if row == table.part_count or table.numbers[row] != address >> PART_BITS:
        return NULL
    part = found[0] = table.parts[row]
    word = address >> (UNIT_BITS + 6) & (WORDS - 1)
    bit = <uint64_t>1 << (address >> UNIT_BITS & 63)
    if not part.starts[word] & bit:
        return NULL
    kind = &part.kind_of[rank_of(part, word) + popcount(part.starts[word] & (bit - 1))]
    return kind if kind[0] else NULL


cdef inline Part* part_for(Earlier* table, uint64_t address) noexcept nogil:
    """Returns the part of an address, a new one if need be; NULL if out of memory."""
    cdef uint64_t number = address >> PART_BITS
    cdef Py_ssize_t at, row = part_row(table, address)
    cdef uint64_t* numbers
    cdef Part** parts
    cdef Part* part
    if row < table.part_count and table.numbers[row] == number:
        return table.parts[row]
    if table.part_count == table.room:
        at = 2 * table.room + 64
        numbers = <uint64_t*>realloc(table.numbers, at * sizeof(uint64_t))
        table.numbers = numbers if numbers else table.numbers
        parts = <Part**>realloc(table.parts, at * sizeof(Part*))
        table.parts = parts if parts else table.parts
        if not numbers or not parts:
            return NULL
        table.room = at
    part = <Part*>calloc(1, sizeof(Part))
    if not part:
        return NULL
    part.number = number
    at = table.part_count
    while at > row:
        table.numbers[at], table.parts[at] = table.numbers[at - 1], table.parts[at - 1]
        at -= 1
    table.numbers[row], table.parts[row] = number, part
    table.part_count += 1
    return part


cdef inline uint32_t kind_in(Part* part, uint64_t size, uint32_t stack) noexcept nogil:
    """Returns a kind's number, from 1, which is added if need be; 0 if there is no room."""
    cdef uint8_t* recent = &part.recent[(size >> 3 ^ size >> 9 ^ stack) % RECENT]
    cdef uint32_t at = recent[0]
    cdef Kind* kinds
    if at and part.kinds[at - 1].size == size and part.kinds[at - 1].stack == stack:
        return at
    for at in range(part.kind_count):
        if part.kinds[at].size == size and part.kinds[at].stack == stack:
            recent[0] = <uint8_t>(at + 1)
            return at + 1
    if part.kind_count == MOST_KINDS:
        return 0
    if part.kind_count == part.kind_room:
        kinds = <Kind*>realloc(part.kinds, (part.kind_room + 16) * sizeof(Kind))
        if not kinds:
            return 0
        part.kinds = kinds
        part.kind_room += 16
    part.kinds[part.kind_count].size, part.kinds[part.kind_count].stack = size, stack
    part.kind_count += 1
    recent[0] = <uint8_t>part.kind_count
    return part.kind_count


cdef inline bint put_earlier(
    Earlier* table, uint64_t address, uint64_t size, uint32_t stack
) noexcept nogil:
    """Adds a block, mostly in order of addresses; false if it belongs into the other table."""
    cdef Part* part
    cdef uint32_t kind, room
    cdef uint64_t at, word = address >> (UNIT_BITS + 6) & (WORDS - 1)
    cdef uint8_t* grown
    if address & ((1 << UNIT_BITS) - 1) or size > LARGE_BYTES:
        return False
    part = part_for(table, address)
    if not part or (part.count and address <= part.last):
        return False
    kind = kind_in(part, size, stack)
    if not kind:
        return False
    if part.count == part.room:
        room = part.room + (part.room >> 1) + 256
        grown = <uint8_t*>realloc(part.kind_of, room)
        if not grown:
            return False
        part.kind_of, part.room = grown, room
    if part.count:
        at = part.last >> (UNIT_BITS + 6) & (WORDS - 1)
        for at in range(at // RANKED + 1, word // RANKED + 1):
            part.ranks[at] = <uint16_t>part.count
    part.starts[word] |= <uint64_t>1 << (address >> UNIT_BITS & 63)
    part.kind_of[part.count] = <uint8_t>kind
    part.count += 1
    part.last = address
    table.count += 1
    table.size_bytes += size
    return True


cdef inline void remove_earlier(Earlier* table, Part* part, uint8_t* kind) noexcept nogil:
    """Removes a block that ``earlier_at`` has found."""
    table.count -= 1
    table.size_bytes -= part.kinds[kind[0] - 1].size
    kind[0] = 0


cdef inline Earlier* own_earlier(Earlier* table) noexcept nogil:
    """Returns the table to write to: a copy if it has other owners. NULL if out of memory."""
    cdef Earlier* copy
    cdef Part* part
    cdef Py_ssize_t at
    if table.owners == 1:
        return table
    copy = new_earlier()
    if not copy:
        return NULL
    for at in range(table.part_count):
        part = part_for(copy, table.numbers[at] << PART_BITS)
        if not part:
            drop_earlier(copy)
            return NULL
        part[0] = table.parts[at][0]
        part.kind_of = <uint8_t*>malloc(part.room + 1)
        part.kinds = <Kind*>malloc((part.kind_room + 1) * sizeof(Kind))
        if not part.kind_of or not part.kinds:
            drop_earlier(copy)
            return NULL
        memcpy(part.kind_of, table.parts[at].kind_of, part.count)
        memcpy(part.kinds, table.parts[at].kinds, part.kind_count * sizeof(Kind))
    copy.count, copy.size_bytes, copy.time_ns = table.count, table.size_bytes, table.time_ns
    table.owners -= 1
    return copy
