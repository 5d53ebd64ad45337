# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True
"""Merges the events of a preloaded process's rings in a correct order for each address.

``probes/preloaded/library.c`` defines that order and explains why the cut is consistent. The
process may write anything: this side counts positions itself, and drops impossible events.
"""

from time import monotonic_ns, sleep

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from tracelloc.model.events cimport (
    EVENT_ALLOC, EVENT_INNER_FREE, EVENT_LAP_BIT, EVENT_PART, EVENT_RESTORE, EVENT_SIZE_BITS,
    event, kind_of,
)

cdef extern from "preloaded/area.h":
    """
    #include <unistd.h>
    #include <sys/syscall.h>
    #define GLOBAL_EXPEDITED 2  /* enum membarrier_cmd, linux/membarrier.h */
    static uint64_t read_tsc(void)
    {
    #if defined(__aarch64__)
        uint64_t count;
        __asm__ volatile("isb\\n\\tmrs %0, cntvct_el0" : "=r"(count) : : "memory");
        return count;
    #else
        uint32_t low, high;
        __asm__ volatile("lfence\\n\\trdtsc" : "=a"(low), "=d"(high) : : "memory");
        return (uint64_t)high << 32 | low;
    #endif
    }
    static long pass_barrier(void) { return syscall(SYS_membarrier, GLOBAL_EXPEDITED, 0, 0); }
    #include <stddef.h>
    static const struct field { const char *name; size_t at; } fields[] = {
    #define PLACE(field) {#field, offsetof(struct preload_control, field)},
        PLACE(magic) PLACE(pid) PLACE(size_bytes) PLACE(is_late) PLACE(holder) PLACE(why_not)
        PLACE(leaving) PLACE(gave_up) PLACE(waited) PLACE(max_stall) PLACE(min_size)
        PLACE(clears) PLACE(max_size) PLACE(clock) PLACE(max_frames) PLACE(may_call)
        PLACE(counter) PLACE(samples) PLACE(space) PLACE(records_reserved) PLACE(records_taken)
        PLACE(counters) PLACE(registered) PLACE(state) PLACE(next)
    };
    enum { N_FIELDS = sizeof(fields) / sizeof(fields[0]) };
    #if defined(__aarch64__)
    enum { ADDRESS_BITS = 48 };
    #else
    enum { ADDRESS_BITS = 47 };
    #endif
    #define load(place) __atomic_load_n((place), __ATOMIC_SEQ_CST)
    #define store(place, value) __atomic_store_n((place), (value), __ATOMIC_RELEASE)
    """
    struct preload_control:
        uint32_t clock, registered
        uint64_t counter
    struct preload_ring:
        uint64_t reserved, taken
        uint32_t owner, inside
    struct Field "struct field":
        const char* name
        size_t at
    const Field[] fields
    enum:
        N_FIELDS, PRELOAD_DEEP_BIND, PRELOAD_NAMESPACE, PRELOAD_NO_CLOCK, PRELOAD_FILTERED,
        PRELOAD_NO_ROOM, PRELOAD_LOCKED, PRELOAD_REFUSED, PRELOAD_PRECEDED, PRELOAD_CONFINED,
        PRELOAD_LIMITED, PRELOAD_WITHDRAWN, PRELOAD_READY, PRELOAD_VOUCHED, PRELOAD_KEPT_FD,
        ADDRESS_BITS, PRELOAD_MAGIC, PRELOAD_AT_ROWS, PRELOAD_AT_KNOWN, PRELOAD_AT_RECORDS,
        PRELOAD_AT_GAPS, PRELOAD_GAPS, PRELOAD_AT_FILTER, PRELOAD_RECORD_BYTES,
        PRELOAD_ROW_SETS_LOG2, PRELOAD_MOST_FRAMES, PRELOAD_RECORD_KIND_SHIFT, PRELOAD_RECORD_PAD,
        PRELOAD_RECORD_STACK, PRELOAD_RECORD_MISS, PRELOAD_CLOCK_TSC, PRELOAD_RINGS,
        PRELOAD_RING_BYTES, PRELOAD_AT_RINGS, PRELOAD_BYTES, PRELOAD_CLOCK_COUNTER
    uint64_t PRELOAD_SLOTS_AT(uint64_t ring) noexcept nogil
    int PRELOAD_SLOTS_LOG2(uint64_t ring) noexcept nogil
    uint64_t read_tsc() noexcept nogil
    long pass_barrier() noexcept nogil
    uint64_t load(const uint64_t* place) noexcept nogil
    void store(uint64_t* place, uint64_t value) noexcept nogil
    void store_owner "store"(uint32_t* place, uint32_t value) noexcept nogil
    void pass_fence "__atomic_thread_fence"(int order) noexcept nogil
    int __ATOMIC_SEQ_CST

FIELDS = {fields[n].name.decode(): fields[n].at for n in range(N_FIELDS)}
"""Offsets of the fields of ``struct preload_control``, in bytes."""
MAGIC = <uint64_t>PRELOAD_MAGIC
AT_ROWS, AT_KNOWN, AT_RECORDS = PRELOAD_AT_ROWS, PRELOAD_AT_KNOWN, PRELOAD_AT_RECORDS
AT_GAPS, AT_FILTER, AT_RINGS = PRELOAD_AT_GAPS, PRELOAD_AT_FILTER, PRELOAD_AT_RINGS
RING_BYTES = PRELOAD_RING_BYTES
"""Offsets and sizes of the parts of the file."""
RECORD_BYTES, FILE_BYTES, RINGS = PRELOAD_RECORD_BYTES, PRELOAD_BYTES, PRELOAD_RINGS
GAPS = PRELOAD_GAPS
DEEP_BIND, NAMESPACE, NO_CLOCK = PRELOAD_DEEP_BIND, PRELOAD_NAMESPACE, PRELOAD_NO_CLOCK
FILTERED, NO_ROOM, LOCKED = PRELOAD_FILTERED, PRELOAD_NO_ROOM, PRELOAD_LOCKED
"""Why a process does not report all events (``enum preload_reason``)."""
REFUSED, PRECEDED, CONFINED, LIMITED = PRELOAD_REFUSED, PRELOAD_PRECEDED, PRELOAD_CONFINED, PRELOAD_LIMITED
READY, WITHDRAWN = PRELOAD_READY, PRELOAD_WITHDRAWN
KEPT_FD = PRELOAD_KEPT_FD
VOUCHED = PRELOAD_VOUCHED
"""States of the library after its initialization (``enum preload_state``)."""
ROW_SETS, MOST_FRAMES = 1 << PRELOAD_ROW_SETS_LOG2, PRELOAD_MOST_FRAMES
KIND_SHIFT = PRELOAD_RECORD_KIND_SHIFT
RECORD_PAD, RECORD_STACK, RECORD_MISS = PRELOAD_RECORD_PAD, PRELOAD_RECORD_STACK, PRELOAD_RECORD_MISS
CLOCK_TSC, CLOCK_COUNTER = PRELOAD_CLOCK_TSC, PRELOAD_CLOCK_COUNTER

_CALIBRATION_S = 0.002

cdef enum:
    LAPS = (1 << 64 - EVENT_LAP_BIT) - 1
    # Bit mask of possible kinds of events.
    KINDS = (1 << EVENT_RESTORE + 1) - (1 << EVENT_ALLOC) | 1 << EVENT_INNER_FREE | 1 << EVENT_PART

cdef uint64_t NEVER = <uint64_t>-1
cdef int64_t LONGEST_NS = 5_000_000_000  # longest time for a thread to write an event
cdef uint64_t SIZE = (<uint64_t>1 << EVENT_SIZE_BITS) - 1
cdef double MOST_BYTES = 2.0 ** 62  # allocated bytes beyond which totals could overflow

cdef struct Source:  # a ring with written events
    const event* slots
    int log2  # of their number
    uint64_t next, end  # slots
    uint64_t stamp  # of the next event; NEVER if none is left


def ticks_per_second():
    """Measures the frequency of the time stamp counter, to about a thousandth."""
    cdef uint64_t begun = read_tsc()
    cdef int64_t begun_ns = monotonic_ns()
    sleep(_CALIBRATION_S)
    return (read_tsc() - begun) * 1e9 / (monotonic_ns() - begun_ns)


def fence():
    """Keeps the order of all reads and writes of memory before and after the call."""
    pass_fence(__ATOMIC_SEQ_CST)


def slots_of(int ring):
    """Returns (offset of a ring's slots in the file, their number)."""
    return PRELOAD_SLOTS_AT(ring), 1 << PRELOAD_SLOTS_LOG2(ring)


cdef inline const event* event_at(const Source* source, uint64_t slot) noexcept nogil:
    return &source.slots[slot & (<uint64_t>1 << source.log2) - 1]


cdef inline bint is_written(const Source* source, uint64_t slot) noexcept nogil:
    """Returns whether a slot has been written in its lap."""
    return load(&event_at(source, slot).size_tag) >> EVENT_LAP_BIT == (
        (slot >> source.log2) + 1 & LAPS
    )


cdef inline bint can_be(const event* e) noexcept nogil:
    """Returns whether an event has a kind and an address that a process can report."""
    return (
        KINDS >> kind_of(e) & 1 and e.address != 0
        and (e.address | e.address + (e.size_tag & SIZE)) >> ADDRESS_BITS == 0
    )


cdef class AreaRings:
    """The rings of events in one process's shared memory. Not thread safe."""

    cdef uint8_t[::1] area
    cdef uint32_t image
    cdef uint64_t[PRELOAD_RINGS] taken
    cdef uint64_t[PRELOAD_RINGS] bounds  # stamp up to which all of a ring has been seen
    cdef int64_t[PRELOAD_RINGS] since_ns  # when the next slot was first found unwritten; 0 if not
    cdef Source[PRELOAD_RINGS] sources
    cdef uint64_t begun  # the clock at begun_ns
    cdef int64_t begun_ns
    cdef readonly int64_t damaged  # impossible events
    cdef readonly int64_t abandoned  # events that were never written
    cdef readonly bint is_unfinished  # a thread is writing an event
    cdef readonly double fullest  # used share of the fullest ring at the last look, 0 to 1
    cdef double total_bytes  # of all allocations so far
    cdef bint is_frozen  # slots reserved from now on are ignored
    cdef uint64_t[PRELOAD_RINGS] ends  # if frozen: the end of each ring
    cdef int64_t least_ns, newest_ns  # bounds of the times of events that are taken now
    cdef int used  # number of leading rings that threads have used

    def __cinit__(self, uint8_t[::1] area, uint32_t image, int64_t now_ns):
        """``area``: the whole shared memory. Events that are already in its rings are skipped."""
        cdef int ring
        assert area.shape[0] >= PRELOAD_BYTES
        self.area, self.image, self.used = area, image, 1
        for ring in range(PRELOAD_RINGS):
            self.taken[ring] = load(&self.ring(ring).reserved)
            store(&self.ring(ring).taken, self.taken[ring])
            if self.has_been_used(ring):
                self.used = ring + 1
        self.begun, self.begun_ns = self.clock(), now_ns
        self.least_ns = now_ns

    cdef preload_ring* ring(self, int number) noexcept nogil:
        return <preload_ring*>(&self.area[PRELOAD_AT_RINGS] + number * <Py_ssize_t>PRELOAD_RING_BYTES)

    cdef inline bint has_been_used(self, int ring) noexcept nogil:
        return self.ring(ring).owner or load(&self.ring(ring).reserved)

    cdef inline int find_used(self) noexcept nogil:
        """Returns the number of rings to read: all that threads have, or have had.

        A thread takes the first ring without an owner, so it has seen owners of all rings
        before that one; threads that see a store also see those that its thread had seen. Released
        rings are known here: since the first look, only this object releases them.
        """
        while self.used < PRELOAD_RINGS and self.has_been_used(self.used):
            self.used += 1
        return self.used

    @property
    def is_quiet(self):
        """Whether no event was reported since events were taken. Any thread may call it."""
        cdef int ring
        for ring in range(self.used):
            if load(&self.ring(ring).reserved) != self.taken[ring]:
                return False
        return self.used == PRELOAD_RINGS or not self.has_been_used(self.used)

    @property
    def inside(self):
        """Returns the number of threads in a call that may still be reported."""
        cdef int ring
        return sum(self.ring(ring).inside != 0 for ring in range(self.find_used()))

    def pass_barrier(self):
        """Makes all earlier stores visible to each thread of the process. Raises OSError."""
        if pass_barrier():
            raise OSError("membarrier")

    def freeze(self):
        """Ignores events from now on, so that the process need not stop reporting."""
        cdef int ring
        if not self.is_frozen:
            self.is_frozen = True
            for ring in range(PRELOAD_RINGS):
                self.ends[ring] = load(&self.ring(ring).reserved)

    cdef uint64_t clock(self) noexcept nogil:
        cdef preload_control* control = <preload_control*>&self.area[0]
        if control.clock == PRELOAD_CLOCK_COUNTER:
            return load(&control.counter) - 1  # the last stamp in use
        return read_tsc()

    def find_events(self, bint whole, int64_t now_ns):
        """Finds the available events. Returns (their number, stamp up to which all are seen).

        ``whole`` means that no thread writes any more, so unfinished ones stay so. Raises OSError.
        """
        cdef uint64_t cut, now
        cdef Py_ssize_t count = 0
        cdef int ring
        self.is_unfinished, self.fullest = False, 0.0
        now = self.clock()
        if (<preload_control*>&self.area[0]).registered and pass_barrier():
            raise OSError("membarrier")
        with nogil:
            cut = NEVER if whole else now
            for ring in range(self.find_used()):
                count += self.look_at(ring, now, now_ns, &cut)
        if not count and not self.is_unfinished:
            self.begun, self.begun_ns = now, now_ns  # What comes is of a later time
        return count, cut

    cdef Py_ssize_t look_at(
        self, int number, uint64_t now, int64_t now_ns, uint64_t* cut
    ) noexcept nogil:
        """Finds the written events of a ring; lowers the cut if one is unfinished."""
        cdef Source* source = &self.sources[number]
        cdef uint64_t last, reserved = load(&self.ring(number).reserved)
        if self.is_frozen:
            reserved = self.ends[number]
        source.next = source.end = self.taken[number]
        source.stamp = NEVER
        source.log2 = PRELOAD_SLOTS_LOG2(number)
        if reserved - source.next > <uint64_t>1 << source.log2:
            reserved = source.next  # damaged: its events are ignored
            self.damaged += 1
        source.slots = <const event*>&self.area[PRELOAD_SLOTS_AT(number)]
        if self.is_abandoned(source, reserved, number, now_ns):
            self.taken[number] += 1
            source.next = source.end = self.taken[number]
        while source.end < reserved and is_written(source, source.end):
            source.end += 1
        self.fullest = max(self.fullest, (reserved - source.next) / <double>(1 << source.log2))
        if source.end > source.next:
            source.stamp = event_at(source, source.next).time_ns
        if source.end == reserved:
            self.bounds[number] = now
        else:
            self.is_unfinished = True
            if source.end > source.next:
                last = event_at(source, source.end - 1).time_ns
                self.bounds[number] = max(self.bounds[number], last)
            if cut[0] != NEVER:
                cut[0] = min(cut[0], self.bounds[number])
        return source.end - source.next

    cdef bint is_abandoned(
        self, const Source* source, uint64_t reserved, int number, int64_t now_ns
    ) noexcept nogil:
        """Returns whether the next slot will never be written, as its thread has left it.

        A signal handler may have jumped away. tracelloc must not wait for it forever.
        """
        if source.next >= reserved or is_written(source, source.next):
            self.since_ns[number] = 0
        elif not self.since_ns[number]:
            self.since_ns[number] = now_ns
        elif now_ns - self.since_ns[number] > LONGEST_NS:
            self.since_ns[number] = 0
            self.abandoned += 1
            return True
        return False

    def merge(self, uint64_t cut, int64_t now_ns, uint8_t[::1] into):
        """Takes the events found by ``find_events`` up to its cut, in order. Returns their number."""
        cdef event* to = <event*>&into[0]
        cdef Py_ssize_t count = 0, room = into.shape[0] // <Py_ssize_t>sizeof(event)
        cdef int used = 0, ring, first
        cdef uint64_t others, now = self.clock()
        cdef int[PRELOAD_RINGS] numbers
        cdef Source* source
        cdef double scale = 0
        self.newest_ns = now_ns
        if now > self.begun and now_ns > self.begun_ns:
            scale = <double>(now_ns - self.begun_ns) / <double>(now - self.begun)
        with nogil:
            for ring in range(self.used):
                source = &self.sources[ring]
                if source.next < source.end and source.stamp <= cut:
                    numbers[used] = ring
                    used += 1
            while used:
                # The ring with the lowest stamp, and the stamp up to which it stays the lowest.
                first, others = 0, NEVER
                for ring in range(1, used):
                    source = &self.sources[numbers[ring]]
                    if source.stamp < self.sources[numbers[first]].stamp:
                        others, first = self.sources[numbers[first]].stamp, ring
                    elif source.stamp < others:
                        others = source.stamp
                source = &self.sources[numbers[first]]
                count += self.copy_run(source, min(cut, others), &to[count], room - count, scale)
                if source.next == source.end or source.stamp > cut or count == room:
                    used -= 1
                    numbers[first] = numbers[used]
            for ring in range(self.used):
                if self.taken[ring] != self.sources[ring].next:
                    self.taken[ring] = self.sources[ring].next
                    store(&self.ring(ring).taken, self.taken[ring])
        self.begun, self.begun_ns = now, now_ns
        return count

    cdef Py_ssize_t copy_run(
        self, Source* source, uint64_t limit, event* to, Py_ssize_t room, double scale
    ) noexcept nogil:
        """Takes a ring's next possible events up to a stamp, with times in ns; returns how many."""
        cdef uint64_t at = source.next, end = min(source.end, at + <uint64_t>room)
        cdef uint64_t begun = self.begun, stamp = source.stamp, left_out = 0
        cdef int64_t begun_ns = self.begun_ns, time_ns
        cdef double since_ns
        cdef event* one = to
        while at < end and stamp <= limit:
            one[0] = event_at(source, at)[0]
            # A stamp may be anything: times must not decrease or be in the future.
            since_ns = <double><int64_t>(stamp - begun) * scale
            time_ns = begun_ns + <int64_t>min(max(since_ns, -1e15), 1e15)
            self.least_ns = max(self.least_ns, min(time_ns, self.newest_ns))
            one.time_ns = self.least_ns
            one.image = self.image
            if can_be(one):
                if kind_of(one) == EVENT_ALLOC:
                    self.total_bytes += <double>(one.size_tag & SIZE)
                one += 1
            else:
                left_out += 1
            at += 1
            stamp = event_at(source, at).time_ns  # of another lap, if none is left
        source.next = at
        source.stamp = stamp if at < source.end else NEVER
        self.damaged += left_out
        return one - to

    @property
    def is_damaged(self):
        """Whether the process has written something that its library would not."""
        return self.damaged > 0 or self.total_bytes > MOST_BYTES

    def owners(self):
        """Returns (number, thread id) of each owned ring whose events are all taken."""
        return [
            (ring, self.ring(ring).owner) for ring in range(1, self.used)
            if self.ring(ring).owner and self.taken[ring] == load(&self.ring(ring).reserved)
        ]

    def release(self, int ring):
        """Makes a ring available again after its thread has ended."""
        self.ring(ring).inside = 0
        store_owner(&self.ring(ring).owner, 0)
