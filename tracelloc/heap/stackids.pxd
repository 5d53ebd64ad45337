# cython: language_level=3
from libc.stdint cimport int64_t, uint32_t, uint64_t


cdef class StackIds:
    cdef uint64_t* keys  # 0: an empty slot
    cdef uint32_t* indices
    cdef uint64_t room  # a power of two
    cdef uint64_t count

    cdef _allocate(self, uint64_t room)
    cdef _make_room(self, uint64_t more)

    cdef inline uint64_t slot_of(self, uint64_t stack_id) noexcept nogil:
        """Returns the slot of an id, or the empty slot for it. Ids are hashes themselves."""
        cdef uint64_t slot = stack_id & (self.room - 1)
        while self.keys[slot] != 0 and self.keys[slot] != stack_id:
            slot = (slot + 1) & (self.room - 1)
        return slot

    cdef inline int64_t index_of(self, uint64_t stack_id) noexcept nogil:
        """Returns the index of an id; below 0 if it is unknown."""
        cdef uint64_t slot
        if stack_id == 0:
            return 0
        slot = self.slot_of(stack_id)
        return self.indices[slot] if self.keys[slot] else -1

    cdef inline void put(self, uint64_t stack_id, uint32_t index) noexcept nogil:
        """Adds an unknown id; there must be room."""
        cdef uint64_t slot = self.slot_of(stack_id)
        self.keys[slot], self.indices[slot] = stack_id, index
        self.count += 1
