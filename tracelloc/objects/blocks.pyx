# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""What is done for each block: blocks of pools that are in use, and which are objects.

In use (Objects/obmalloc.c of CPython): a pool has given out all blocks below `nextoffset` at one time or another. Those that were given
back form a list: the header has the first one, the first word of each has the next.
"""

from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from tracelloc.heap.hashing cimport home_of

cdef enum:
    POOL_BYTES = 1 << 14
    POOL_WORDS = POOL_BYTES // 8
    HEADER_BYTES = 48
    ALIGNMENT = 16
    MOST_BLOCKS = POOL_BYTES // ALIGNMENT
    NOWHERE = -1

cdef struct Header:
    uint32_t count
    uint32_t unused
    uint64_t free
    uint64_t next_pool
    uint64_t previous_pool
    uint32_t arena
    uint32_t size_class
    uint32_t next_offset
    uint32_t last_offset


def find_blocks(const uint64_t[::1] words, const uint64_t[::1] pools, int64_t[::1] at,
                uint64_t[::1] size_bytes):
    """Fills in where blocks in use begin, in words, and their sizes.

    ``words``: the memory of the pools. ``at`` and ``size_bytes`` have room for all. Returns
    how many there are, and how many pools contradict themselves.
    """
    cdef uint8_t is_free[MOST_BLOCKS]
    cdef const Header* header
    cdef Py_ssize_t pool
    cdef uint64_t count = 0, changed = 0, start, block, size, offset
    cdef uint32_t frees, n, begun, number
    with nogil:
        for pool in range(pools.shape[0]):
            header = <const Header*>&words[pool * POOL_WORDS]
            size = (<uint64_t>header.size_class + 1) * ALIGNMENT
            if size > 512 or header.next_offset < HEADER_BYTES:  # it is other memory by now
                changed += 1
                continue
            begun = (min(header.next_offset, <uint32_t>POOL_BYTES) - HEADER_BYTES) // size
            memset(is_free, 0, begun)
            frees = 0
            block = header.free
            while block and frees < begun:
                offset = block - pools[pool] - HEADER_BYTES
                number = offset // size
                if offset >= POOL_BYTES or offset % size or number >= begun or is_free[number]:
                    break
                is_free[number] = 1
                frees += 1
                block = words[pool * POOL_WORDS + (HEADER_BYTES + offset) // 8]
            if begun - frees != header.count:
                changed += 1
            start = pool * POOL_WORDS + HEADER_BYTES // 8
            for n in range(begun):
                if not is_free[n]:
                    at[count] = start + n * (size // 8)
                    size_bytes[count] = size
                    count += 1
    return count, changed


cdef class Addresses:
    """A number for each of some addresses: a hash table."""

    cdef uint64_t* keys  # 0: an empty slot
    cdef int32_t* values
    cdef uint64_t room
    cdef readonly Py_ssize_t count

    def __cinit__(self):
        self.room = 1024
        self.keys = <uint64_t*>calloc(self.room, sizeof(uint64_t))
        self.values = <int32_t*>calloc(self.room, sizeof(int32_t))
        if not self.keys or not self.values:
            raise MemoryError

    def __dealloc__(self):
        free(self.keys)
        free(self.values)

    cdef inline uint64_t slot(self, uint64_t address) noexcept nogil:
        """Where the address is, or would be."""
        cdef uint64_t at = home_of(address, self.room)
        while self.keys[at] != address and self.keys[at] != 0:
            at = at + 1 if at + 1 < self.room else 0
        return at

    cdef inline int32_t get(self, uint64_t address) noexcept nogil:
        """The address's number; below 0: it has none."""
        cdef uint64_t at = self.slot(address)
        return self.values[at] if self.keys[at] else NOWHERE

    cdef int put(self, uint64_t address, int32_t value) except -1:
        cdef uint64_t at
        if 2 * (self.count + 1) > <Py_ssize_t>self.room:
            self.grow()
        at = self.slot(address)
        self.count += self.keys[at] == 0
        self.keys[at], self.values[at] = address, value
        return 0

    cdef int grow(self) except -1:
        cdef uint64_t* keys = self.keys
        cdef int32_t* values = self.values
        cdef uint64_t old = self.room, at
        self.keys = <uint64_t*>calloc(2 * old, sizeof(uint64_t))
        self.values = <int32_t*>calloc(2 * old, sizeof(int32_t))
        if not self.keys or not self.values:
            free(self.keys)
            free(self.values)
            self.keys, self.values = keys, values
            raise MemoryError
        self.room, self.count = 2 * old, 0
        for at in range(old):
            if keys[at]:
                self.put(keys[at], values[at])
        free(keys)
        free(values)
        return 0

    def add(self, const uint64_t[::1] addresses, int first):
        """Numbers addresses that are not 0, from ``first`` on."""
        cdef Py_ssize_t at
        for at in range(addresses.shape[0]):
            self.put(addresses[at], first + <int>at)

    def fresh(self, const uint64_t[::1] pointers, Addresses pools, uint64_t[::1] found):
        """Fills in addresses that pointers point to and that are neither in pools nor known.

        They are known from then on, by the number -2. The lowest three bits may be marks.
        Returns how many there are.
        """
        cdef Py_ssize_t at, count = 0
        cdef uint64_t address
        for at in range(pointers.shape[0]):
            address = pointers[at] & ~<uint64_t>7
            if address < 4096 or address >> 47 or self.keys[self.slot(address)]:
                continue
            if pools.get(address & ~<uint64_t>(POOL_BYTES - 1)) >= 0:
                continue
            self.put(address, -2)
            found[count] = address
            count += 1
        return count

    def look_up(self, const uint64_t[::1] addresses, int64_t[::1] numbers):
        """Fills in the numbers of addresses; below 0: one has none."""
        cdef Py_ssize_t n
        for n in range(addresses.shape[0]):
            numbers[n] = self.get(addresses[n])

    def locate(self, const uint64_t[::1] addresses, int64_t[::1] at):
        """Fills in where addresses are in the words of these pools; -1: not in them."""
        cdef Py_ssize_t n
        cdef int32_t pool
        for n in range(addresses.shape[0]):
            pool = self.get(addresses[n] & ~<uint64_t>(POOL_BYTES - 1))
            at[n] = -1 if pool < 0 else (
                <int64_t>pool * POOL_WORDS + <int64_t>(addresses[n] & (POOL_BYTES - 1)) // 8)


cdef inline bint is_count(uint64_t word) noexcept nogil:
    """Whether it is a count of references: a free object has none, and a pointer is none."""
    return <uint32_t>word != 0 and (word >> 32 & 0xFFFF) == 0


def find_objects(const uint64_t[::1] words, const int64_t[::1] blocks,
                 const uint64_t[::1] size_bytes, Addresses types, const int8_t[::1] before,
                 int64_t[::1] row, int64_t[::1] at, int32_t[::1] type_):
    """Fills in the rows of blocks that are objects, where these begin, and their types.

    ``before``: words before the objects of each type, in their blocks. Returns how many.
    """
    cdef Py_ssize_t n, count = 0
    cdef int ahead
    cdef int32_t number
    cdef int64_t start
    with nogil:
        for n in range(blocks.shape[0]):
            for ahead in range(0, 6, 2):
                if size_bytes[n] < <uint64_t>(8 * ahead + 16):
                    break
                start = blocks[n] + ahead
                number = types.get(words[start + 1])
                if number >= 0 and before[number] == ahead and is_count(words[start]):
                    row[count], at[count], type_[count] = n, start, number
                    count += 1
                    break
    return count
