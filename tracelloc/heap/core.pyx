# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False
"""The compiled core of the live table: applies events one by one, without the interpreter's lock.

What an event means is written in ``probes/event.h``, which is compiled into this module. The
core owns what only events change: the blocks, a hash table by address, and what threads did.
Figures per stack and the rows of cohorts are numpy arrays of ``Totals`` and ``CounterRows``;
where one has no room, ``run`` stops before that event and says in ``need`` what is missing.

Not thread safe: the session's lock guards it.
"""

from libc.math cimport ceil, exp2, expm1, rint
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

cdef extern from "<linux/types.h>":
    pass

cdef extern from "event.h":
    struct event:
        uint64_t address
        uint64_t size_tag
        uint64_t stack_id
        uint64_t time_ns
        uint32_t tid
        uint32_t image
    struct pair_key:
        uint64_t stack_id
        uint64_t size
        uint32_t image
        uint32_t parity
    struct pair_sums:
        int64_t count
        int64_t bytes
        uint64_t time_ns
    enum:
        EVENT_SIZE_BITS
        EVENT_KIND_MASK
        EVENT_ALLOC
        EVENT_REALLOC_FREE
        EVENT_RESTORE
        EVENT_LATE_ALLOC
        EVENT_INNER_FREE

cdef extern from *:
    """
    static inline __u64 mixed(__u64 key) {
        unsigned __int128 p = (unsigned __int128)(key ^ 0x9E3779B97F4A7C15u) * 0xD6E8FEB86659FD93u;
        return (__u64)p ^ (__u64)(p >> 64);
    }
    /* Grows with the hash: a table that grows keeps its order. */
    static inline __u64 home_of(__u64 key, __u64 room) {
        return (__u64)(((unsigned __int128)mixed(key) * room) >> 64);
    }
    #define prefetch(p) __builtin_prefetch((p), 1)
    """
    uint64_t home_of(uint64_t key, uint64_t room) noexcept nogil
    void prefetch(const void *where) noexcept nogil

cdef struct Record:  # of the ring
    uint32_t length
    uint32_t page
    event event

cdef struct Pair:  # of map ``pairs``
    pair_key key
    pair_sums sums

cdef struct Block:
    uint64_t size
    uint64_t birth_ns
    uint32_t stack
    uint32_t tid

cdef struct Blocks:  # forks have them in common until one of them writes
    int64_t owners
    uint64_t room
    uint64_t* addresses  # 0: an empty slot
    Block* slots

cdef struct Moved:
    uint64_t address
    Block block

cdef struct Pending:  # what a thread's unfinished realloc took
    uint64_t address  # 0: it is in none
    uint64_t time_ns
    Block block
    bint is_known
    bint is_temporary

cdef struct Thread:
    uint32_t tid
    uint32_t newest  # where in `last` its next allocation goes
    int64_t allocated_bytes, allocated_count, freed_bytes, freed_count
    Pending pending

cdef struct Flow:  # blocks that one thread allocated and another one freed
    uint64_t key  # the rows of both and 1; 0: an empty slot
    int64_t count, size

cdef struct Since:  # what a stack has gained since the peak, if `peak` is that peak's number
    int64_t size, count
    uint64_t peak
    uint64_t batch  # the last one that changed what the stack holds

cdef enum:
    NOBODY = 0  # the row of threads that are not known
    SLICES = 48
    CLASSES = 32
    PARTS = 1024  # of a block, which sampled counts are in
    AHEAD = 12  # events whose slots are fetched before they are needed
    LEAST_BLOCKS = 256
    LEAST_THREADS = 8
    LEAST_FLOWS = 64
    LEAST_IDS = 256
    ROW_LIMIT = 1 << 16

ctypedef int64_t* Column

cdef struct Figures:  # the columns of ``Totals``, by stack, in the order of its fields
    Column allocated_bytes, allocated_count, freed_bytes, freed_count
    Column temporary_bytes, temporary_count, remote_bytes, remote_count
    Column peak_bytes, first_ns, last_ns

cdef enum Rows:  # of cohorts, one table behind the other
    BORN = 0
    ALIVE = SLICES
    ALIVE_BYTES = 2 * SLICES
    FLOOR_BYTES = 3 * SLICES
    LIFETIMES = 4 * SLICES
    ROWS = 4 * SLICES + CLASSES

cdef enum Need:
    NOTHING, STACK, ROOM_FOR_STACKS, ROW, MEMORY

NEED_STACK, NEED_ROOM, NEED_ROW, NEED_MEMORY = STACK, ROOM_FOR_STACKS, ROW, MEMORY


cdef class StackIds:
    """Stack ids (64 bits, evenly distributed) and the index of each. No id is 0."""

    cdef uint64_t* keys
    cdef uint32_t* indices
    cdef uint64_t room  # a power of two
    cdef uint64_t count

    def __cinit__(self):
        self._allocate(LEAST_IDS)

    def __dealloc__(self):
        free(self.keys)
        free(self.indices)

    def get(self, uint64_t stack_id):
        """The index of an id; -1 if it is not known."""
        return self._index(stack_id)

    def add(self, const uint64_t[::1] ids, int64_t[::1] indices, uint8_t[::1] fresh, int64_t index):
        """Puts the index of each id there, and whether it is new.

        New ids get indices from ``index`` on. Returns the next one.
        """
        cdef Py_ssize_t at
        if 2 * (self.count + ids.shape[0]) > self.room:
            self._grow(self.count + ids.shape[0])
        with nogil:
            for at in range(ids.shape[0]):
                indices[at] = self._index(ids[at])
                fresh[at] = indices[at] < 0
                if fresh[at]:
                    indices[at] = index
                    self._put(ids[at], <uint32_t>index)
                    index += 1
        return index

    def set(self, uint64_t stack_id, uint32_t index):
        """Adds an id, which is not known yet; others may have the index, too."""
        if 2 * (self.count + 1) > self.room:
            self._grow(self.count + 1)
        self._put(stack_id, index)

    cdef _allocate(self, uint64_t room):
        self.keys = <uint64_t*>calloc(room, sizeof(uint64_t))
        self.indices = <uint32_t*>malloc(room * sizeof(uint32_t))
        if not self.keys or not self.indices:
            raise MemoryError
        self.room = room

    cdef _grow(self, uint64_t count):
        cdef uint64_t* keys = self.keys
        cdef uint32_t* indices = self.indices
        cdef uint64_t old = self.room, room = self.room, at, before = self.count
        while room < 4 * count:
            room *= 2
        self._allocate(room)
        for at in range(old):
            if keys[at]:
                self._put(keys[at], indices[at])
        self.count = before
        free(keys)
        free(indices)

    cdef inline uint64_t _slot(self, uint64_t stack_id) noexcept nogil:
        """Where it is, or would be."""
        cdef uint64_t slot = stack_id & (self.room - 1)
        while self.keys[slot] != 0 and self.keys[slot] != stack_id:
            slot = (slot + 1) & (self.room - 1)
        return slot

    cdef inline void _put(self, uint64_t stack_id, uint32_t index) noexcept nogil:
        cdef uint64_t slot = self._slot(stack_id)
        self.keys[slot], self.indices[slot] = stack_id, index
        self.count += 1

    cdef inline int64_t _index(self, uint64_t stack_id) noexcept nogil:
        cdef uint64_t slot
        if stack_id == 0:
            return 0
        slot = self._slot(stack_id)
        return self.indices[slot] if self.keys[slot] else -1


cdef class Core:
    """Blocks, threads and flows of one address space; see the module."""

    cdef Blocks* blocks
    cdef readonly uint64_t count  # live blocks
    cdef StackIds ids
    # Per stack. The figures belong to ``Totals``.
    cdef Figures figures
    cdef Py_ssize_t stacks
    cdef Since* since
    cdef uint32_t* touched
    cdef Py_ssize_t touched_count
    cdef uint64_t batch
    # Cohorts.
    cdef int64_t* rows[ROWS]
    cdef Py_ssize_t lengths[ROWS]
    cdef int64_t starts[SLICES]
    cdef int64_t row_of[SLICES]
    cdef Py_ssize_t slices
    cdef int64_t* load
    cdef int64_t* strangers
    cdef int64_t life_edges[CLASSES]
    # Threads.
    cdef Thread* threads
    cdef uint16_t* thread_slots
    cdef uint64_t* last
    cdef readonly Py_ssize_t thread_count
    cdef Py_ssize_t thread_room, most_threads
    cdef Flow* flows
    cdef Py_ssize_t flow_count, flow_room, most_flows
    # What is temporary: freed among the last so many, or so soon if that is not below 0.
    cdef Py_ssize_t kept
    cdef int64_t soon_ns
    cdef double mean  # distance of samples in bytes; 0: all blocks are reported
    # The peak.
    cdef readonly int64_t held  # outstanding bytes
    cdef int64_t most
    cdef readonly int64_t peak_ns
    cdef uint64_t peak
    cdef readonly int64_t unmatched, reuses, odd_restores
    cdef public int64_t unordered
    cdef readonly Need need
    cdef readonly Py_ssize_t missing_row  # of the cohorts, for NEED_ROW

    def __cinit__(
        self, StackIds ids, double mean, Py_ssize_t between, int64_t soon_ns,
        Py_ssize_t most_threads, Py_ssize_t most_flows, int64_t shortest_ns,
    ):
        cdef Py_ssize_t at
        self.ids = ids
        self.mean, self.kept, self.soon_ns = mean, between + 1, soon_ns
        self.most_threads, self.most_flows = most_threads, most_flows
        self.most, self.peak = -1, 1
        for at in range(CLASSES):
            self.life_edges[at] = <int64_t>ceil(shortest_ns * exp2(at / 2.0))
        self.blocks = _new_blocks(LEAST_BLOCKS)
        self.thread_room, self.thread_count = LEAST_THREADS, 1
        self.threads = <Thread*>calloc(LEAST_THREADS, sizeof(Thread))
        self.thread_slots = <uint16_t*>calloc(2 * LEAST_THREADS, sizeof(uint16_t))
        self.last = <uint64_t*>calloc(LEAST_THREADS * self.kept, sizeof(uint64_t))
        self.flow_room = LEAST_FLOWS
        self.flows = <Flow*>calloc(LEAST_FLOWS, sizeof(Flow))
        if not (self.blocks and self.threads and self.thread_slots and self.last and self.flows):
            raise MemoryError

    def __dealloc__(self):
        _drop_blocks(self.blocks)
        free(self.since)
        free(self.touched)
        free(self.threads)
        free(self.thread_slots)
        free(self.last)
        free(self.flows)

    # ---- what Python lends ----

    def bind_figures(self, list columns):
        """Arrays of ``Totals``, int64, all of one length, in the order of its fields."""
        cdef int64_t[::1] column
        cdef Py_ssize_t at, old = self.stacks
        for at, column in enumerate(columns):
            (<Column*>&self.figures)[at] = &column[0]
        self.stacks = column.shape[0]
        if self.stacks > old:
            self.since = <Since*>realloc(self.since, self.stacks * sizeof(Since))
            self.touched = <uint32_t*>realloc(self.touched, self.stacks * sizeof(uint32_t))
            if not self.since or not self.touched:
                raise MemoryError
            memset(&self.since[old], 0, (self.stacks - old) * sizeof(Since))

    def bind_slices(self, const int64_t[::1] starts, const int64_t[::1] row_of,
                    int64_t[::1] load, int64_t[::1] strangers):
        """The slices of cohorts, whose rows may have changed: they are asked for again."""
        self.slices = starts.shape[0]
        memcpy(self.starts, &starts[0], self.slices * sizeof(int64_t))
        memcpy(self.row_of, &row_of[0], self.slices * sizeof(int64_t))
        self.load, self.strangers = &load[0], &strangers[0]
        memset(self.rows, 0, sizeof(self.rows))
        memset(self.lengths, 0, sizeof(self.lengths))

    def bind_row(self, Py_ssize_t at, int64_t[::1] row):
        """The row that was missing, to be written to."""
        self.rows[at], self.lengths[at] = &row[0], row.shape[0]

    # ---- events ----

    def survey(self, const uint8_t[::1] records):
        """(the newest time, whether there are late allocations) of records of the ring."""
        cdef const Record* events = <const Record*>&records[0]
        cdef Py_ssize_t at
        cdef uint64_t newest_ns = 0
        cdef bint late = False
        with nogil:
            for at in range(records.shape[0] // <Py_ssize_t>sizeof(Record)):
                if events[at].event.time_ns > newest_ns:
                    newest_ns = events[at].event.time_ns
                late |= _kind(&events[at].event) == EVENT_LATE_ALLOC
        return newest_ns, late

    def run(self, const uint8_t[::1] records, Py_ssize_t at, bint in_order, bint late):
        """Applies records from this one on. Returns the first that was not, see ``need``."""
        cdef const Record* events = <const Record*>&records[0]
        cdef Py_ssize_t n = records.shape[0] // <Py_ssize_t>sizeof(Record)
        with nogil:
            self.need = NOTHING
            if self.blocks.owners > 1:
                self._own_blocks()
            while at < n and self.need == NOTHING:
                if at + AHEAD < n:
                    self._fetch(events[at + AHEAD].event.address)
                if self._apply(&events[at].event, in_order, late):
                    at += 1
        return at

    def end_batch(self, bint in_order, uint64_t time_ns):
        """Notes the least and the most that stacks have held, as of now."""
        cdef Py_ssize_t at
        with nogil:
            if not in_order:
                if self.held > self.most:
                    self._note_peak(time_ns)
                # What threads did meanwhile is not known.
                memset(self.last, 0, self.thread_room * self.kept * sizeof(uint64_t))
            for at in range(self.touched_count):
                self._note_bounds(self.touched[at])
            self.touched_count = 0
            self.batch += 1

    def pass_by(self, const uint8_t[::1] pairs, Py_ssize_t at):
        """Counts blocks that some threads allocated and freed, as ``run`` does events.

        Which threads these were is not known, nor whether the blocks were temporary.
        """
        cdef const Pair* some = <const Pair*>&pairs[0]
        with nogil:
            self.need = NOTHING
            while at < pairs.shape[0] // <Py_ssize_t>sizeof(Pair) and self._pass(&some[at]):
                at += 1
        return at

    def inherit(self, int64_t count, int64_t size):
        """Counts blocks that were there when the threads came to be."""
        self.threads[NOBODY].allocated_count += count
        self.threads[NOBODY].allocated_bytes += size

    def drop_blocks(self):
        """Forgets the blocks, and keeps the figures."""
        _drop_blocks(self.blocks)
        self.blocks, self.count = _new_blocks(LEAST_BLOCKS), 0
        if not self.blocks:
            raise MemoryError

    def fork(self, StackIds ids, int64_t held, int64_t time_ns):
        """That of a child process, which holds so many bytes. Blocks are copied when one writes."""
        cdef Core child = Core.__new__(
            Core, ids, self.mean, self.kept - 1, self.soon_ns, self.most_threads, self.most_flows,
            self.life_edges[0])
        _drop_blocks(child.blocks)
        child.blocks, child.count = self.blocks, self.count
        self.blocks.owners += 1
        child.held = child.most = held
        child.peak_ns = time_ns
        return child

    # ---- what readers ask for ----

    @property
    def room(self):
        """Slots for blocks."""
        return self.blocks.room

    @property
    def peak_bytes(self):
        """Outstanding bytes of all stacks when most were; None before the first event."""
        return None if self.most < 0 else self.most

    def gains(self, int64_t[::1] count, int64_t[::1] size):
        """What each stack has gained since the peak."""
        cdef Py_ssize_t at
        for at in range(min(count.shape[0], self.stacks)):
            if self.since[at].peak == self.peak:
                count[at], size[at] = self.since[at].count, self.since[at].size

    def copy_blocks(self, uint64_t at, uint64_t[::1] address, uint64_t[::1] size,
                    uint64_t[::1] birth_ns, uint32_t[::1] stack, uint32_t[::1] tid):
        """Fills columns from a slot on. Returns (the slot to go on from, how many they are)."""
        cdef Py_ssize_t to = 0
        cdef Block* block
        with nogil:
            while at < self.blocks.room and to < address.shape[0]:
                if self.blocks.addresses[at]:
                    block = &self.blocks.slots[at]
                    address[to] = self.blocks.addresses[at]
                    size[to], birth_ns[to] = block.size, block.birth_ns
                    stack[to], tid[to] = block.stack, block.tid
                    to += 1
                at += 1
        return at, to

    def thread_rows(self, int64_t[:, ::1] rows):
        """Fills a row per thread: tid, allocated bytes and blocks, freed bytes and blocks."""
        cdef Py_ssize_t at
        cdef Thread* thread
        for at in range(min(rows.shape[0], self.thread_count)):
            thread = &self.threads[at]
            rows[at, 0] = thread.tid
            rows[at, 1], rows[at, 2] = thread.allocated_bytes, thread.allocated_count
            rows[at, 3], rows[at, 4] = thread.freed_bytes, thread.freed_count

    def flow_rows(self):
        """(row of who allocated, row of who freed, blocks, bytes) of each flow."""
        cdef Py_ssize_t at
        rows = []
        for at in range(self.flow_room):
            if self.flows[at].key:
                maker, ender = divmod(self.flows[at].key - 1, ROW_LIMIT)
                rows.append((maker, ender, self.flows[at].count, self.flows[at].size))
        return rows

    # ---- blocks ----

    cdef inline void _fetch(self, uint64_t address) noexcept nogil:
        cdef uint64_t slot = home_of(address, self.blocks.room)
        prefetch(&self.blocks.addresses[slot])
        prefetch(&self.blocks.slots[slot])

    cdef void _own_blocks(self) noexcept nogil:
        cdef Blocks* old = self.blocks
        cdef Blocks* new = _new_blocks(old.room)
        if not new:
            self.need = MEMORY
            return
        memcpy(new.addresses, old.addresses, old.room * sizeof(uint64_t))
        memcpy(new.slots, old.slots, old.room * sizeof(Block))
        old.owners -= 1
        self.blocks = new

    cdef inline uint64_t _find(self, uint64_t address) noexcept nogil:
        """The block's slot, or the one where it would be."""
        cdef Blocks* blocks = self.blocks
        cdef uint64_t at = home_of(address, blocks.room)
        while blocks.addresses[at] != address and blocks.addresses[at] != 0:
            at += 1
            if at == blocks.room:
                at = 0
        return at

    cdef void _remove(self, uint64_t at) noexcept nogil:
        """Empties a slot, and moves those up that are behind their place."""
        cdef Blocks* blocks = self.blocks
        cdef uint64_t later = at, home
        while True:
            later += 1
            if later == blocks.room:
                later = 0
            if blocks.addresses[later] == 0:
                break
            home = home_of(blocks.addresses[later], blocks.room)
            # Unless its place is between the hole and itself, it fills the hole.
            if (home <= at or home > later) if at <= later else (home <= at and home > later):
                blocks.addresses[at], blocks.slots[at] = blocks.addresses[later], blocks.slots[later]
                at = later
        blocks.addresses[at] = 0
        self.count -= 1

    cdef bint _has_room(self) noexcept nogil:
        """Whether one more block has room; makes it if need be. Four in five slots are used."""
        cdef uint64_t room = self.blocks.room
        if 5 * (self.count + 1) <= 4 * room:
            return True
        # Small tables double, large ones waste less.
        if _grow_blocks(self.blocks, 2 * room if room < 1 << 20 else room + (room >> 2)):
            return True
        self.need = MEMORY
        return False

    # ---- parts ----

    cdef inline Py_ssize_t _thread(self, uint32_t tid) noexcept nogil:
        """Its row, made if it is new; below 0: no memory."""
        cdef uint64_t slot = home_of(tid, 2 * self.thread_room)
        cdef Py_ssize_t row
        if tid == 0:
            return NOBODY
        while True:
            row = self.thread_slots[slot]
            if row == 0:
                break
            if self.threads[row].tid == tid:
                return row
            slot += 1
            if slot == 2 * <uint64_t>self.thread_room:
                slot = 0
        if self.thread_count >= self.most_threads:
            return NOBODY
        if self.thread_count == self.thread_room:
            if not self._grow_threads():
                self.need = MEMORY
                return -1
            return self._thread(tid)
        row = self.thread_count
        self.thread_count += 1
        self.threads[row].tid = tid
        self.thread_slots[slot] = <uint16_t>row
        return row

    cdef bint _grow_threads(self) noexcept nogil:
        cdef Py_ssize_t old = self.thread_room, room = 2 * old, row
        cdef uint64_t slot
        cdef Thread* threads = <Thread*>realloc(self.threads, room * sizeof(Thread))
        if not threads:
            return False
        self.threads = threads
        cdef uint64_t* last = <uint64_t*>realloc(self.last, room * self.kept * sizeof(uint64_t))
        if not last:
            return False
        self.last = last
        cdef uint16_t* slots = <uint16_t*>calloc(2 * room, sizeof(uint16_t))
        if not slots:
            return False
        free(self.thread_slots)
        self.thread_slots = slots
        memset(&threads[old], 0, old * sizeof(Thread))
        memset(&last[old * self.kept], 0, old * self.kept * sizeof(uint64_t))
        self.thread_room = room
        for row in range(1, self.thread_count):
            slot = home_of(threads[row].tid, 2 * room)
            while slots[slot]:
                slot = slot + 1 if slot + 1 < 2 * <uint64_t>room else 0
            slots[slot] = <uint16_t>row
        return True

    cdef bint _flow(self, Py_ssize_t maker, Py_ssize_t ender, int64_t count, int64_t size) noexcept nogil:
        cdef Flow* flow
        if 2 * (self.flow_count + 2) > self.flow_room and not self._grow_flows():
            self.need = MEMORY
            return False
        flow = self._find_flow((<uint64_t>maker << 16 | <uint64_t>ender) + 1)
        if flow.key == 0 and self.flow_count >= self.most_flows:
            flow = self._find_flow(1)  # from nobody to nobody
            maker = ender = NOBODY
        if flow.key == 0:
            flow.key = (<uint64_t>maker << 16 | <uint64_t>ender) + 1
            self.flow_count += 1
        flow.count += count
        flow.size += size
        return True

    cdef inline Flow* _find_flow(self, uint64_t key) noexcept nogil:
        """Its slot, or the one where it would be."""
        cdef uint64_t at = home_of(key, self.flow_room)
        while self.flows[at].key != key and self.flows[at].key != 0:
            at = at + 1 if at + 1 < <uint64_t>self.flow_room else 0
        return &self.flows[at]

    cdef bint _grow_flows(self) noexcept nogil:
        cdef Flow* old = self.flows
        cdef Py_ssize_t room = self.flow_room, at
        self.flows = <Flow*>calloc(2 * room, sizeof(Flow))
        if not self.flows:
            self.flows = old
            return False
        self.flow_room = 2 * room
        for at in range(room):
            if old[at].key:
                self._find_flow(old[at].key)[0] = old[at]
        free(old)
        return True

    cdef inline bint _is_last(self, Py_ssize_t thread, uint64_t address, bint forget) noexcept nogil:
        """Whether this address is among the last that the thread got."""
        cdef uint64_t* last = &self.last[thread * self.kept]
        cdef Py_ssize_t at
        for at in range(self.kept):
            if last[at] == address:
                if forget:
                    last[at] = 0
                return True
        return False

    cdef inline void _remember(self, Py_ssize_t thread, uint64_t address) noexcept nogil:
        cdef uint32_t at = self.threads[thread].newest
        self.last[thread * self.kept + at] = address
        self.threads[thread].newest = at + 1 if at + 1 < <uint32_t>self.kept else 0

    # ---- figures ----

    cdef inline void _amount(self, uint64_t size, int64_t* count, int64_t* size_bytes) noexcept nogil:
        """What a block counts for: see ``sampling.weights``."""
        cdef double weight
        if self.mean == 0:
            count[0], size_bytes[0] = 1, <int64_t>size
            return
        weight = -1 / expm1((size if size else 1) / -self.mean)
        count[0] = <int64_t>rint(weight * PARTS)
        size_bytes[0] = <int64_t>rint(weight * <double>size)

    cdef inline Py_ssize_t _slice(self, uint64_t time_ns) noexcept nogil:
        """The cohorts' row of a moment. What is older than all counts with the first."""
        cdef Py_ssize_t low = 0, n = self.slices, half
        if <int64_t>time_ns >= self.starts[n - 1]:
            return self.row_of[n - 1]
        while n > 1:  # without branches that can't be foretold
            half = n >> 1
            low += half * (self.starts[low + half] <= <int64_t>time_ns)
            n -= half
        return self.row_of[low]

    cdef inline Py_ssize_t _life_class(self, uint64_t life_ns) noexcept nogil:
        """Of lifetimes; below 0 if it is shorter than all."""
        cdef Py_ssize_t low = 0, n = CLASSES, half
        if <int64_t>life_ns < self.life_edges[0]:
            return -1
        while n > 1:
            half = n >> 1
            low += half * (self.life_edges[low + half] <= <int64_t>life_ns)
            n -= half
        return low

    cdef inline bint _has(self, Py_ssize_t row, uint32_t stack) noexcept nogil:
        """Whether there is a row of cohorts, as long as that."""
        if <Py_ssize_t>stack < self.lengths[row]:
            return True
        self.need, self.missing_row = ROW, row
        return False

    cdef inline bint _can_hold(self, uint64_t birth_ns, uint32_t stack) noexcept nogil:
        """Whether there are the rows that a block's coming and going changes."""
        cdef Py_ssize_t row = self._slice(birth_ns)
        return (self._has(ALIVE + row, stack) and self._has(ALIVE_BYTES + row, stack)
                and self._has(FLOOR_BYTES + self.row_of[self.slices - 1], stack))

    cdef inline bint _can_end(self, Block* block, uint64_t time_ns) noexcept nogil:
        cdef Py_ssize_t life = self._life_class(time_ns - block.birth_ns)
        return (self._can_hold(block.birth_ns, block.stack)
                and (life < 0 or self._has(LIFETIMES + life, block.stack)))

    cdef inline void _hold(self, Block* block, int64_t count, int64_t size, int sign) noexcept nogil:
        """A block comes, or goes with a sign of -1: what is outstanding changes."""
        cdef Py_ssize_t row = self._slice(block.birth_ns)
        cdef uint32_t stack = block.stack
        cdef Since* since = &self.since[stack]
        self.rows[ALIVE + row][stack] += sign
        self.rows[ALIVE_BYTES + row][stack] += sign * size
        self.held += sign * size
        if since.peak != self.peak:
            since.peak, since.count, since.size = self.peak, 0, 0
        since.count += sign * count
        since.size += sign * size
        if since.batch != self.batch + 1:
            since.batch = self.batch + 1
            self.touched[self.touched_count] = stack
            self.touched_count += 1

    cdef inline void _note_bounds(self, uint32_t stack) noexcept nogil:
        cdef int64_t live = (self.figures.allocated_bytes[stack]
                             - self.figures.freed_bytes[stack])
        cdef Py_ssize_t row = FLOOR_BYTES + self.row_of[self.slices - 1]
        if live > self.figures.peak_bytes[stack]:
            self.figures.peak_bytes[stack] = live
        if live < self.rows[row][stack]:
            self.rows[row][stack] = live

    cdef inline void _note_peak(self, uint64_t time_ns) noexcept nogil:
        self.most, self.peak_ns = self.held, <int64_t>time_ns
        self.peak += 1

    # ---- events ----

    cdef bint _apply(self, const event* e, bint in_order, bint late) noexcept nogil:
        """Applies one event. False: nothing has changed, something is needed first."""
        cdef uint32_t kind = _kind(e)
        cdef Py_ssize_t row = self._thread(e.tid)
        cdef Pending* pending
        cdef bint done, was_pending
        if row < 0:
            return False
        pending = &self.threads[row].pending
        # A thread that reports anything else has finished its realloc.
        was_pending = pending.address != 0 and kind != EVENT_LATE_ALLOC
        if kind == EVENT_ALLOC or kind == EVENT_LATE_ALLOC:
            done = self._allocate(e, row, in_order, late)
        elif kind == EVENT_RESTORE:
            done = self._restore(e, row, was_pending)
        else:
            done = self._free(e, row, kind, in_order)
        if not done:
            return False
        if was_pending and kind != EVENT_REALLOC_FREE:
            self.threads[row].pending.address = 0
        if in_order and self.held > self.most:
            self._note_peak(e.time_ns)
        return True

    cdef inline bint _allocate(self, const event* e, Py_ssize_t row, bint in_order, bint late) noexcept nogil:
        cdef int64_t stack = self.ids._index(e.stack_id), count, size
        cdef Py_ssize_t born = self._slice(e.time_ns)
        cdef Thread* thread = &self.threads[row]
        cdef Block block
        if stack < 0:
            self.need = STACK
            return False
        if stack >= self.stacks:
            self.need = ROOM_FOR_STACKS
            return False
        block.size = e.size_tag & ((<uint64_t>1 << EVENT_SIZE_BITS) - 1)
        block.birth_ns, block.stack, block.tid = e.time_ns, <uint32_t>stack, e.tid
        if not (self._has(BORN + born, block.stack) and self._can_hold(e.time_ns, block.stack)
                and self._put(e.address, &block)):
            return False
        self._amount(block.size, &count, &size)
        self._hold(&block, count, size, 1)
        self.figures.allocated_count[stack] += count
        self.figures.allocated_bytes[stack] += size
        if not late or self.figures.last_ns[stack] < <int64_t>e.time_ns:
            self.figures.last_ns[stack] = e.time_ns
        if self.figures.first_ns[stack] == 0:
            self.figures.first_ns[stack] = e.time_ns
        self.rows[BORN + born][stack] += 1
        self.load[born] += 1
        thread.allocated_count += count
        thread.allocated_bytes += size
        if self.soon_ns < 0:
            if in_order:
                self._remember(row, e.address)
            else:
                self._is_last(row, e.address, True)
                self.unordered += count
        return True

    cdef bint _pass(self, const Pair* pair) noexcept nogil:
        cdef int64_t stack = self.ids._index(pair.key.stack_id), count = pair.sums.count, parts
        cdef int64_t size = pair.sums.bytes, time_ns = <int64_t>pair.sums.time_ns
        cdef Py_ssize_t born = self._slice(pair.sums.time_ns)
        if stack < 0 or stack >= self.stacks:
            self.need = STACK if stack < 0 else ROOM_FOR_STACKS
            return False
        if not self._has(BORN + born, <uint32_t>stack):
            return False
        self.rows[BORN + born][stack] += count
        self.load[born] += count
        if self.mean != 0:
            self._amount(pair.key.size, &parts, &size)
            size *= count
            count *= parts
        self.figures.allocated_count[stack] += count
        self.figures.freed_count[stack] += count
        self.figures.allocated_bytes[stack] += size
        self.figures.freed_bytes[stack] += size
        if self.figures.last_ns[stack] < time_ns:
            self.figures.last_ns[stack] = time_ns
        if self.figures.first_ns[stack] == 0:
            self.figures.first_ns[stack] = time_ns
        self.threads[NOBODY].allocated_count += count
        self.threads[NOBODY].allocated_bytes += size
        self.threads[NOBODY].freed_count += count
        self.threads[NOBODY].freed_bytes += size
        self.unordered += count
        return True

    cdef inline bint _put(self, uint64_t address, Block* block) noexcept nogil:
        """Into the table; what stands at its address was freed unseen."""
        cdef int64_t count, size
        cdef Block* old
        cdef uint64_t at
        if not self._has_room():
            return False
        at = self._find(address)
        if self.blocks.addresses[at]:
            old = &self.blocks.slots[at]
            if not self._can_hold(old.birth_ns, old.stack):
                return False
            self._amount(old.size, &count, &size)
            self.figures.freed_count[old.stack] += count
            self.figures.freed_bytes[old.stack] += size
            self._hold(old, count, size, -1)
            self.reuses += 1
        else:
            self.count += 1
            self.blocks.addresses[at] = address
        self.blocks.slots[at] = block[0]
        return True

    cdef inline bint _free(self, const event* e, Py_ssize_t row, uint32_t kind, bint in_order) noexcept nogil:
        cdef uint64_t at = self._find(e.address)
        cdef bint is_known = self.blocks.addresses[at] != 0, is_temporary = False
        cdef Block block
        cdef Pending* pending
        cdef int64_t count, size
        if is_known:
            block = self.blocks.slots[at]
            if not self._can_end(&block, e.time_ns):
                return False
            if block.tid == e.tid:
                if self.soon_ns >= 0:
                    # Below 0 if the tick came late: that is soon enough.
                    is_temporary = <int64_t>(e.time_ns - block.birth_ns) <= self.soon_ns
                elif in_order:
                    is_temporary = self._is_last(row, e.address, False)
                elif self._is_last(row, e.address, True):
                    self._amount(block.size, &count, &size)
                    self.unordered += count
            if not self._end(&block, e.tid, row, e.time_ns, is_temporary, 1):
                return False
            self._remove(at)
        elif kind != EVENT_INNER_FREE:
            # A free inside another one often is of the same block: that one has freed it.
            self.unmatched += 1
            self.strangers[self.row_of[self.slices - 1]] += 1
        if kind == EVENT_REALLOC_FREE and row != NOBODY:
            pending = &self.threads[row].pending
            pending.address, pending.time_ns = e.address, e.time_ns
            pending.is_known, pending.is_temporary = is_known, is_temporary
            if is_known:
                pending.block = block
        return True

    cdef inline bint _restore(self, const event* e, Py_ssize_t row, bint was_pending) noexcept nogil:
        """A resize has failed: the block that it took lives on."""
        cdef Pending* pending = &self.threads[row].pending
        if not was_pending or pending.address != e.address:
            self.odd_restores += 1
        elif not pending.is_known:
            self.unmatched -= 1
            self.strangers[self.row_of[self.slices - 1]] -= 1
        else:
            if not (self._can_end(&pending.block, pending.time_ns) and self._has_room()):
                return False
            if not self._put(e.address, &pending.block):
                return False
            # There is room for whatever it had changed.
            self._end(&pending.block, e.tid, row, pending.time_ns, pending.is_temporary, -1)
        return True

    cdef inline bint _end(self, Block* block, uint32_t tid, Py_ssize_t row, uint64_t time_ns,
                          bint is_temporary, int sign) noexcept nogil:
        """A block ends by a thread; with a sign of -1 it has not, after all."""
        cdef int64_t count, size
        cdef Py_ssize_t life = self._life_class(time_ns - block.birth_ns), maker
        cdef uint32_t stack = block.stack
        self._amount(block.size, &count, &size)
        if block.tid != tid:
            maker = self._thread(block.tid)
            if maker < 0 or not self._flow(maker, row, sign * count, sign * size):
                return False
            self.figures.remote_count[stack] += sign * count
            self.figures.remote_bytes[stack] += sign * size
        self._hold(block, count, size, -sign)
        self.figures.freed_count[stack] += sign * count
        self.figures.freed_bytes[stack] += sign * size
        if life >= 0:
            self.rows[LIFETIMES + life][stack] += sign
        self.threads[row].freed_count += sign * count
        self.threads[row].freed_bytes += sign * size
        if is_temporary:
            self.figures.temporary_count[stack] += sign * count
            self.figures.temporary_bytes[stack] += sign * size
        return True


cdef inline uint32_t _kind(const event* e) noexcept nogil:
    return <uint32_t>(e.size_tag >> EVENT_SIZE_BITS) & EVENT_KIND_MASK


cdef Blocks* _new_blocks(uint64_t room) noexcept nogil:
    cdef Blocks* blocks = <Blocks*>calloc(1, sizeof(Blocks))
    if not blocks:
        return NULL
    blocks.owners, blocks.room = 1, room
    blocks.addresses = <uint64_t*>calloc(room, sizeof(uint64_t))
    blocks.slots = <Block*>malloc(room * sizeof(Block))
    if not blocks.addresses or not blocks.slots:
        _drop_blocks(blocks)
        return NULL
    return blocks


cdef void _drop_blocks(Blocks* blocks) noexcept nogil:
    if not blocks:
        return
    blocks.owners -= 1
    if blocks.owners == 0:
        free(blocks.addresses)
        free(blocks.slots)
        free(blocks)


cdef inline bint _settle(Blocks* blocks, uint64_t at, uint64_t address, Block* block) noexcept nogil:
    """Puts a block in the first empty slot from its place on. False: there is none."""
    while at < blocks.room and blocks.addresses[at]:
        at += 1
    if at == blocks.room:
        return False
    blocks.addresses[at], blocks.slots[at] = address, block[0]
    return True


cdef bint _grow_blocks(Blocks* blocks, uint64_t room) noexcept nogil:
    """Grows in place, so that memory is never needed twice. False: no memory."""
    cdef uint64_t at = blocks.room, to, address, aside = 0
    cdef uint64_t* addresses = <uint64_t*>realloc(blocks.addresses, room * sizeof(uint64_t))
    cdef Block* slots = <Block*>realloc(blocks.slots, room * sizeof(Block))
    cdef Block block
    cdef Moved* moved = NULL
    blocks.addresses = addresses if addresses else blocks.addresses
    blocks.slots = slots if slots else blocks.slots
    if not addresses or not slots:
        return False
    memset(&addresses[at], 0, (room - at) * sizeof(uint64_t))
    blocks.room = room
    # From the end on: places move up, to where nothing is left of the old order. Those few
    # that would not find room there are put aside until all others have moved.
    while at > 0:
        at -= 1
        address = addresses[at]
        if address == 0:
            continue
        addresses[at] = 0
        block = slots[at]
        to = home_of(address, room)
        if to < at or not _settle(blocks, to, address, &block):
            if aside % 1024 == 0:
                moved = <Moved*>realloc(moved, (aside + 1024) * sizeof(Moved))
                if not moved:
                    return False
            moved[aside].address, moved[aside].block = address, block
            aside += 1
    for at in range(aside):
        address = moved[at].address
        if not _settle(blocks, home_of(address, room), address, &moved[at].block):
            _settle(blocks, 0, address, &moved[at].block)
    free(moved)
    return True
