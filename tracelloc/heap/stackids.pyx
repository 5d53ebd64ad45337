# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Hash table from ids of call stacks to indices."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc

cdef enum:
    LEAST = 256


cdef class StackIds:
    """Indices of stacks by 64-bit id; ids are evenly distributed. Id 0 always has index 0."""

    def __cinit__(self):
        self._allocate(LEAST)

    def __dealloc__(self):
        free(self.keys)
        free(self.indices)

    def get(self, uint64_t stack_id):
        """Returns the index of an id; -1 if it is unknown."""
        return self.index_of(stack_id)

    def set(self, uint64_t stack_id, uint32_t index):
        """Adds an unknown id. Several ids may have the same index."""
        self._make_room(1)
        self.put(stack_id, index)

    def add(self, const uint64_t[::1] ids, int64_t[::1] indices, uint8_t[::1] fresh, int64_t index):
        """Fills in each id's index; ``fresh`` ones get consecutive indices from ``index``."""
        cdef Py_ssize_t at
        self._make_room(ids.shape[0])
        with nogil:
            for at in range(ids.shape[0]):
                indices[at] = self.index_of(ids[at])
                fresh[at] = indices[at] < 0
                if fresh[at]:
                    indices[at] = index
                    self.put(ids[at], <uint32_t>index)
                    index += 1

    cdef _allocate(self, uint64_t room):
        cdef uint64_t* keys = <uint64_t*>calloc(room, sizeof(uint64_t))
        cdef uint32_t* indices = <uint32_t*>malloc(room * sizeof(uint32_t))
        if not keys or not indices:
            free(keys)
            free(indices)
            raise MemoryError
        self.keys, self.indices, self.room, self.count = keys, indices, room, 0

    cdef _make_room(self, uint64_t more):
        """Grows the table so that at most half of the slots are used."""
        cdef uint64_t* keys = self.keys
        cdef uint32_t* indices = self.indices
        cdef uint64_t old = self.room, room = self.room, at
        while room < 2 * (self.count + more):
            room *= 2
        if room == old:
            return
        self._allocate(room)
        for at in range(old):
            if keys[at]:
                self.put(keys[at], indices[at])
        free(keys)
        free(indices)
