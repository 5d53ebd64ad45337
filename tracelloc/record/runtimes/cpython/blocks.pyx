# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Per-block work: finds the blocks of pools that are in use, and the objects among them.

In use (Objects/obmalloc.c of CPython): a pool has given out all blocks below `nextoffset` at some
time. Freed blocks form a list through their first words, which begins in the header.
"""

from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from tracelloc.heap.hashing cimport first_above, home_of

from tracelloc.architecture import address_bits

cdef uint64_t LEAST_ADDRESS = 4096
cdef uint64_t ADDRESS_END = <uint64_t>1 << <int>address_bits()

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

    ``words``: the memory of the pools. ``at`` and ``size_bytes`` have room for all blocks. Returns
    the number of blocks, and the number of inconsistent pools.
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


cdef inline bint is_plausible(uint64_t address) noexcept nogil:
    return LEAST_ADDRESS <= address < ADDRESS_END


cdef class Addresses:
    """Hash table from addresses to numbers."""

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
        """Returns the slot of an address, or the empty slot for it."""
        cdef uint64_t at = home_of(address, self.room)
        while self.keys[at] != address and self.keys[at] != 0:
            at = at + 1 if at + 1 < self.room else 0
        return at

    cdef inline int32_t get(self, uint64_t address) noexcept nogil:
        """Returns an address's number; negative if it has none."""
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
        """Numbers nonzero addresses consecutively from ``first``."""
        cdef Py_ssize_t at
        for at in range(addresses.shape[0]):
            self.put(addresses[at], first + <int>at)

    def fresh(self, const uint64_t[::1] pointers, Addresses pools, uint64_t[::1] found):
        """Fills in addresses that pointers refer to and that are neither in pools nor known.

        Also adds them, with the number -2. The lowest three bits of pointers may be marks. Returns
        the number of addresses.
        """
        cdef Py_ssize_t at, count = 0
        cdef uint64_t address
        for at in range(pointers.shape[0]):
            address = pointers[at] & ~<uint64_t>7
            if not is_plausible(address) or self.keys[self.slot(address)]:
                continue
            if pools.get(address & ~<uint64_t>(POOL_BYTES - 1)) >= 0:
                continue
            self.put(address, -2)
            found[count] = address
            count += 1
        return count

    def look_up(self, const uint64_t[::1] addresses, int64_t[::1] numbers):
        """Fills in the numbers of addresses; negative for those without one."""
        cdef Py_ssize_t n
        for n in range(addresses.shape[0]):
            numbers[n] = self.get(addresses[n])

    def locate(self, const uint64_t[::1] addresses, int64_t[::1] at):
        """Fills in the word index of each address in the memory of these pools; -1: in none."""
        cdef Py_ssize_t n
        cdef int32_t pool
        for n in range(addresses.shape[0]):
            pool = self.get(addresses[n] & ~<uint64_t>(POOL_BYTES - 1))
            at[n] = -1 if pool < 0 else (
                <int64_t>pool * POOL_WORDS + <int64_t>(addresses[n] & (POOL_BYTES - 1)) // 8)


cdef inline bint is_count(uint64_t word) noexcept nogil:
    """Whether a word is a nonzero reference count rather than a pointer: free objects have none."""
    return <uint32_t>word != 0 and (word >> 32 & 0xFFFF) == 0


def find_objects(const uint64_t[::1] words, const int64_t[::1] blocks,
                 const uint64_t[::1] size_bytes, Addresses types, const int8_t[::1] before,
                 int64_t[::1] row, int64_t[::1] at, int32_t[::1] type_):
    """Fills in the rows of blocks that are objects, where the objects begin, and their types.

    ``before``: words before the objects of each type, in their blocks. Returns their number.
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


cdef enum:
    # What begins at each 16 bytes of the words: Kind in image.py.
    FREE = 0
    TABLE = 1  # all of its words may be references
    OBJECT = 2  # and 1 or 2 more: that many pairs of words before it
    WEAK_REFERENCE = 5  # likewise
    LEAF = 8  # has no references
    CLASS = 9  # likewise; only its dictionary counts
    CODE = 12  # only its constants count
    CLASS_DICT = 33
    CODE_CONSTANTS = 3
    WEAK_REFERENT = 2
    WEAK_PREVIOUS = 5
    WEAK_NEXT = 6

cdef struct Memory:
    const uint64_t* words
    int64_t pool_words
    const uint64_t* piece_starts  # addresses, ascending
    const uint64_t* piece_ends
    const int64_t* piece_at
    Py_ssize_t piece_count
    const uint8_t* kinds
    const uint16_t* limits


cdef inline int64_t begin_of_block(const Memory* memory, int64_t word) noexcept nogil:
    """Returns the start of the pool block that contains a word."""
    cdef int64_t pool = word // POOL_WORDS
    cdef int64_t size = 2 * (<int64_t>(memory.words[pool * POOL_WORDS + 4] >> 32) + 1)
    cdef int64_t first = pool * POOL_WORDS + HEADER_BYTES // 8
    return first + (word - first) // size * size if word >= first else NOWHERE


cdef inline Py_ssize_t piece_of(const uint64_t* starts, Py_ssize_t count,
                                uint64_t value) noexcept nogil:
    """Returns the last piece that starts at or before a value; negative if there is none."""
    return first_above(starts, count, 8, value) - 1


cdef inline int64_t target_of(const Memory* memory, Addresses pools,
                              uint64_t address) noexcept nogil:
    """Start of the block or piece that contains an address, in words; negative if unknown."""
    cdef int32_t pool
    cdef int64_t start
    cdef Py_ssize_t piece
    if not is_plausible(address):
        return NOWHERE
    pool = pools.get(address & ~<uint64_t>(POOL_BYTES - 1))
    if pool >= 0:
        start = begin_of_block(
            memory, <int64_t>pool * POOL_WORDS + <int64_t>(address & (POOL_BYTES - 1)) // 8)
    else:
        piece = piece_of(memory.piece_starts, memory.piece_count, address)
        if piece < 0 or address >= memory.piece_ends[piece]:
            return NOWHERE
        start = memory.piece_at[piece]
    return start if start >= 0 and memory.kinds[start >> 1] != FREE else NOWHERE


cdef inline int64_t words_of(const Memory* memory, int64_t start) noexcept nogil:
    """Used words of a block or piece: never more than it has, nor beyond its pool, whatever the
    target's memory says."""
    cdef Py_ssize_t piece
    cdef int64_t size, most
    if start < memory.pool_words:
        size = 2 * (<int64_t>(memory.words[start // POOL_WORDS * POOL_WORDS + 4] >> 32) + 1)
        most = POOL_WORDS - start % POOL_WORDS
    else:
        piece = piece_of(<const uint64_t*>memory.piece_at, memory.piece_count, <uint64_t>start)
        size = most = <int64_t>(memory.piece_ends[piece] - memory.piece_starts[piece]) // 8
    if 0 < memory.limits[start >> 1] < size:
        # A larger size would lead into the next block, whose words would be taken for this one's:
        # paths back to a root could contain cycles.
        size = memory.limits[start >> 1]
    return size if size < most else most


cdef inline bint is_reference(uint8_t kind, int64_t word) noexcept nogil:
    """Whether a word of an object, counted from its block's start, is a strong reference."""
    cdef int64_t ahead
    if kind == TABLE:
        return True
    if kind == CODE:
        return word == CODE_CONSTANTS
    if kind >= CLASS:
        return word - 2 * (kind - CLASS) == CLASS_DICT
    ahead = 2 * (kind - (WEAK_REFERENCE if kind >= WEAK_REFERENCE else OBJECT))
    word -= ahead
    if word == 0 or word == 1 or (ahead and (word == -1 or word == -2)):
        return False  # a count, a type, or the collector's list
    return not (kind >= WEAK_REFERENCE and (
        word == WEAK_REFERENT or word == WEAK_PREVIOUS or word == WEAK_NEXT))


cdef inline int64_t reference_of(const Memory* memory, Addresses pools, int64_t start,
                                 int64_t word) noexcept nogil:
    """Returns what a word refers to; negative if nothing. Small tables refer to objects only: other
    references in them are stale."""
    cdef int64_t target = target_of(memory, pools, memory.words[start + word])
    if (target >= 0 and memory.kinds[start >> 1] == TABLE and memory.kinds[target >> 1] == TABLE
            and start < memory.pool_words):
        return NOWHERE
    return target


cdef inline bint is_exact(const Memory* memory, uint64_t address, int64_t target) noexcept nogil:
    """Whether an address is that of the object in a block, rather than inside it."""
    cdef int64_t ahead
    cdef uint8_t kind = memory.kinds[target >> 1]
    if target >= memory.pool_words or kind == TABLE or kind >= LEAF:
        return True
    ahead = 2 * (kind - (WEAK_REFERENCE if kind >= WEAK_REFERENCE else OBJECT))
    return <int64_t>(address & (POOL_BYTES - 1)) // 8 == (target + ahead) % POOL_WORDS


cdef class References:
    """References between objects, in a copy of a process's memory."""

    cdef const uint64_t[::1] words, piece_starts, piece_ends
    cdef const int64_t[::1] piece_at
    cdef const uint8_t[::1] kinds
    cdef const uint16_t[::1] limits
    cdef Addresses pools
    cdef Memory memory

    def __cinit__(self, const uint64_t[::1] words, int64_t pool_words, Addresses pools,
                  const uint64_t[::1] piece_starts, const uint64_t[::1] piece_ends,
                  const int64_t[::1] piece_at, const uint8_t[::1] kinds,
                  const uint16_t[::1] limits):
        """Takes at least one piece of memory; pieces ascend by address, and in ``words``.

        ``kinds``, ``limits``: indexed by half of a block's start. A limit is the block's used
        words, or 0 for all.
        """
        self.words, self.pools, self.kinds, self.limits = words, pools, kinds, limits
        self.piece_starts, self.piece_ends, self.piece_at = piece_starts, piece_ends, piece_at
        self.memory = Memory(&words[0], pool_words, &piece_starts[0], &piece_ends[0],
                             &piece_at[0], piece_starts.shape[0], &kinds[0], &limits[0])

    def begin(self, uint64_t word):
        """Returns the start of the block or piece that contains a word."""
        if <int64_t>word < self.memory.pool_words:
            return begin_of_block(&self.memory, <int64_t>word)
        return self.memory.piece_at[piece_of(
            <const uint64_t*>self.memory.piece_at, self.memory.piece_count, word)]

    def size(self, int64_t start):
        """Returns the number of used words of the block or piece at ``start``."""
        return words_of(&self.memory, start)

    def target(self, uint64_t address):
        """Start of the block or piece that contains an address, in words; negative if unknown."""
        return target_of(&self.memory, self.pools, address)

    def trace(self, uint32_t[::1] parents, uint32_t[::1] queue, Py_ssize_t done, Py_ssize_t end):
        """Follows references from the queue's entries from ``done`` on, nearest first.

        ``queue``: halves of block starts. ``parents``, indexed likewise: the word from which a
        block was first reached; 0: it was not. Returns the queue's new end.
        """
        cdef const Memory* memory = &self.memory
        cdef int64_t start, word, size, target
        cdef uint8_t kind
        with nogil:
            while done < end:
                start = 2 * <int64_t>queue[done]
                done += 1
                kind = memory.kinds[start >> 1]
                if kind == LEAF:
                    continue
                size = words_of(memory, start)
                for word in range(size):
                    if not is_reference(kind, word):
                        continue
                    target = reference_of(memory, self.pools, start, word)
                    if target >= 0 and parents[target >> 1] == 0:
                        # 0 would mean that it was not reached, and it would be queued for ever.
                        parents[target >> 1] = <uint32_t>(start + word) or 1
                        queue[end] = <uint32_t>(target >> 1)
                        end += 1
        return end

    def referrers(self, const int64_t[::1] starts, const uint32_t[::1] parents,
                  uint32_t[::1] counts, uint32_t[::1] last):
        """Counts references to unreached blocks, from all blocks and pieces.

        ``counts``, ``last``, indexed by half of a start: the number, and the last such word.
        """
        cdef const Memory* memory = &self.memory
        cdef int64_t start, word, target
        cdef Py_ssize_t n
        cdef uint8_t kind
        with nogil:
            for n in range(starts.shape[0]):
                start = starts[n]
                kind = memory.kinds[start >> 1]
                if kind == LEAF or kind == FREE:
                    continue
                for word in range(words_of(memory, start)):
                    if not is_reference(kind, word):
                        continue
                    target = reference_of(memory, self.pools, start, word)
                    if target >= 0 and parents[target >> 1] == 0 and is_exact(
                            memory, memory.words[start + word], target):
                        counts[target >> 1] += 1
                        last[target >> 1] = <uint32_t>(start + word)
