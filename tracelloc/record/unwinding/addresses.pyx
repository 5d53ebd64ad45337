# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Compiled sets of addresses."""

from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free

from tracelloc.heap.hashing cimport home_of

cdef enum:
    LEAST = 1024


cdef class AddressSet:
    """Set of nonzero addresses: a hash table of 8 bytes a slot, half of them in use."""

    cdef uint64_t* slots  # 0: empty
    cdef uint64_t room, count

    def __cinit__(self):
        self.slots, self.room = <uint64_t*>calloc(LEAST, sizeof(uint64_t)), LEAST
        if not self.slots:
            raise MemoryError

    def __dealloc__(self):
        free(self.slots)

    def __len__(self):
        return self.count

    def add(self, const uint64_t[::1] addresses, uint64_t[::1] new):
        """Adds addresses; puts new ones into ``new``, each once. Returns their number."""
        cdef Py_ssize_t at, count = 0
        cdef bint has_room = True
        with nogil:
            for at in range(addresses.shape[0]):
                if addresses[at] and self._put(addresses[at]):
                    new[count] = addresses[at]
                    count += 1
                    self.count += 1
                    if 2 * self.count > self.room and not self._grow():
                        has_room = False
                        break
        if not has_room:
            raise MemoryError
        return count

    def copy(self, uint64_t[::1] addresses):
        """Fills an array with all addresses, unordered."""
        cdef uint64_t at
        cdef Py_ssize_t to = 0
        for at in range(self.room):
            if self.slots[at]:
                addresses[to] = self.slots[at]
                to += 1

    cdef inline bint _put(self, uint64_t address) noexcept nogil:
        """Inserts an address. Returns False if it is already there."""
        cdef uint64_t at = home_of(address, self.room)
        while self.slots[at] != 0:
            if self.slots[at] == address:
                return False
            at = at + 1 if at + 1 < self.room else 0
        self.slots[at] = address
        return True

    cdef bint _grow(self) noexcept nogil:
        cdef uint64_t* old = self.slots
        cdef uint64_t at, room = self.room
        cdef uint64_t* slots = <uint64_t*>calloc(2 * room, sizeof(uint64_t))
        if not slots:
            return False
        self.slots, self.room = slots, 2 * room
        for at in range(room):
            if old[at]:
                self._put(old[at])
        free(old)
        return True
