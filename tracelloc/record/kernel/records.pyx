# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Sorts the rings' records by memory image; finds where the kernel's types begin."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from tracelloc.model.events cimport EVENT_LAP_BIT, EVENT_PART, event, kind_of, stack

cdef extern from *:
    """
    #define load(place) __atomic_load_n((place), __ATOMIC_ACQUIRE)
    #define load_head(place) __atomic_load_n((place), __ATOMIC_ACQUIRE)
    #define store(place, value) __atomic_store_n((place), (value), __ATOMIC_RELEASE)
    """
    uint64_t load(const uint64_t* place) noexcept nogil
    uint32_t load_head(const uint32_t* place) noexcept nogil
    void store(uint64_t* place, uint64_t value) noexcept nogil

cdef extern from "<linux/bpf.h>":
    enum:
        BPF_RINGBUF_BUSY_BIT
        BPF_RINGBUF_DISCARD_BIT
        BPF_RINGBUF_HDR_SZ

cdef enum:
    LAPS = (1 << 64 - EVENT_LAP_BIT) - 1  # mask of the laps that slots distinguish

def load_acquire(const uint64_t[::1] words):
    """Returns the first word of shared memory; what was written before it is visible then."""
    return load(&words[0])


def store_release(uint64_t[::1] words, uint64_t value):
    """Writes the first word of shared memory after everything read before."""
    store(&words[0], value)


def read_head(const uint8_t[::1] data, Py_ssize_t at):
    """Returns the first word of a record's head in a BPF ring buffer: length and flags."""
    return load_head(<const uint32_t*>&data[at])


cdef struct Share:  # records of one image
    uint32_t image
    Py_ssize_t records, frames  # first their counts; then, where the next ones go


cdef class Shares:
    """Counts of records by memory image."""

    cdef Share* shares
    cdef Py_ssize_t count, newest

    def __dealloc__(self):
        free(self.shares)

    cdef Share* share_of(self, uint32_t image) noexcept nogil:
        """Returns the share of an image, added if new; NULL if out of memory."""
        cdef Py_ssize_t at
        cdef Share* more
        if self.count and self.shares[self.newest].image == image:
            return &self.shares[self.newest]
        for at in range(self.count):
            if self.shares[at].image == image:
                self.newest = at
                return &self.shares[at]
        if self.count % 64 == 0:
            more = <Share*>realloc(self.shares, (self.count + 64) * sizeof(Share))
            if not more:
                return NULL
            self.shares = more
        self.newest = self.count
        self.count += 1
        self.shares[self.newest].image = image
        self.shares[self.newest].records = self.shares[self.newest].frames = 0
        return &self.shares[self.newest]

    cdef list arrange(self):
        """Turns counts into start offsets; returns (image, records, frames) by image number."""
        cdef Py_ssize_t at, records = 0, frames = 0
        cdef Share* share
        found = []
        for _, at in sorted([(self.shares[at].image, at) for at in range(self.count)]):
            share = &self.shares[at]
            found.append((share.image, share.records, share.frames))
            share.records, records = records, records + share.records
            share.frames, frames = frames, frames + share.frames
        return found


def copy_events(const uint8_t[::1] slots, uint64_t start, uint8_t[::1] into):
    """Copies events from ring slot ``start`` on, until ``into`` is full.

    Returns the number of events before the first slot that is not yet written in its lap
    (``probes/ring.h``).
    """
    cdef const event* ring = <const event*>&slots[0]
    cdef event* copied = <event*>&into[0]
    cdef uint64_t room = slots.shape[0] // <Py_ssize_t>sizeof(event), lap
    cdef Py_ssize_t n = into.shape[0] // <Py_ssize_t>sizeof(event), at
    cdef const event* one
    with nogil:
        for at in range(n):
            one = &ring[(start + at) & (room - 1)]
            lap = (start + at) // room + 1
            # Read before the rest of the slot, as it was written last.
            if load(&one.size_tag) >> EVENT_LAP_BIT != lap & LAPS:
                n = at
                break
            copied[at] = one[0]
    return n


def sort_events(const uint8_t[::1] records, uint8_t[::1] ordered):
    """Copies records of ring ``events`` image by image, unless all belong to one image.

    Returns (image, count) of each, ordered by image number.
    """
    cdef const event* events = <const event*>&records[0]
    cdef event* into = <event*>&ordered[0]
    cdef Py_ssize_t at, n = records.shape[0] // <Py_ssize_t>sizeof(event)
    cdef Shares shares = Shares()
    cdef Share* share = NULL
    with nogil:
        for at in range(n):
            share = shares.share_of(events[at].image)
            if not share:
                break
            share.records += 1
    if not share:
        raise MemoryError
    found = [(image, count) for image, count, _ in shares.arrange()]
    if len(found) > 1:
        with nogil:
            for at in range(n):
                share = shares.share_of(events[at].image)
                into[share.records] = events[at]
                share.records += 1
    return found


def find_mark(const uint8_t[::1] records, Py_ssize_t at):
    """Returns the index of the first event of all blocks at or after ``at``; if none, the count."""
    cdef const event* events = <const event*>&records[0]
    cdef Py_ssize_t n = records.shape[0] // <Py_ssize_t>sizeof(event)
    with nogil:
        while at < n and kind_of(&events[at]) < EVENT_PART:
            at += 1
    return at


cdef class StackRecords:
    """The finished records of ring ``stacks`` between two positions, in bytes since the start.

    See the kernel's Documentation/bpf/ringbuf.rst.
    """

    cdef const uint8_t[::1] data
    cdef uint64_t start, mask
    cdef readonly uint64_t end  # of the finished records
    cdef Shares shares
    cdef readonly list images  # (image, stacks, frames), ordered by image number

    def __cinit__(self, const uint8_t[::1] data, uint64_t size, uint64_t start, uint64_t end):
        """``data`` has ``size`` bytes, then a copy of its start as long as the longest record."""
        cdef const stack* one
        cdef Share* share
        self.data, self.start, self.mask, self.shares = data, start, size - 1, Shares()
        self.end = start
        while self.end < end and not self.head(self.end) & BPF_RINGBUF_BUSY_BIT:
            one = self.at(self.end)
            if one:
                share = self.shares.share_of(one.image)
                if not share:
                    raise MemoryError
                share.records += 1
                share.frames += one.n_frames
            self.end += self.length(self.end)
        self.images = self.shares.arrange()

    def copy(self, uint64_t[::1] ids, uint16_t[::1] flags, int64_t[::1] depths,
             uint64_t[::1] frames):
        """Fills columns, image by image, and the frames of all stacks. May be called once."""
        cdef uint64_t position = self.start
        cdef const stack* one
        cdef Share* share
        with nogil:
            while position < self.end:
                one = self.at(position)
                if one:
                    share = self.shares.share_of(one.image)
                    ids[share.records], flags[share.records] = one.stack_id, one.flags
                    depths[share.records] = one.n_frames
                    if one.n_frames:
                        memcpy(&frames[share.frames], &one.frames[0],
                               one.n_frames * sizeof(uint64_t))
                    share.records += 1
                    share.frames += one.n_frames
                position += self.length(position)

    cdef inline uint32_t head(self, uint64_t position) noexcept nogil:
        """Returns length and flags, which another processor may be writing."""
        return load_head(<const uint32_t*>&self.data[position & self.mask])

    cdef inline uint64_t length(self, uint64_t position) noexcept nogil:
        """Returns the length including the head, rounded up to whole words."""
        cdef uint32_t bits = self.head(position) & ~(BPF_RINGBUF_BUSY_BIT | BPF_RINGBUF_DISCARD_BIT)
        return (BPF_RINGBUF_HDR_SZ + bits + 7) & ~<uint64_t>7

    cdef inline const stack* at(self, uint64_t position) noexcept nogil:
        """Returns the record, or NULL if it was discarded."""
        if self.head(position) & BPF_RINGBUF_DISCARD_BIT:
            return NULL
        return <const stack*>&self.data[(position & self.mask) + BPF_RINGBUF_HDR_SZ]


def find_starts(
    const uint32_t[::1] words, const int64_t[::1] fixed, const int64_t[::1] each, int64_t[::1] starts
):
    """Fills ``starts`` with the index of each type's first word, and returns how many there are.

    Types are the kernel's (Documentation/bpf/btf.rst): each tells how long it is.
    ``fixed``: words of a type beside its first three, by kind; ``each``: words of each member.
    ``starts`` has room for a third of the words. A type that is cut off is left out.
    """
    cdef Py_ssize_t at = 0, count = 0
    cdef uint32_t info
    while at + 2 < words.shape[0]:
        info = words[at + 1]
        starts[count] = at
        count += 1
        at += 3 + fixed[info >> 24 & 31] + each[info >> 24 & 31] * (info & 0xFFFF)
    return count
