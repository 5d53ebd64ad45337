# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False
"""The compiled core of the live table: applies events one by one, without the interpreter's lock.

``probes/event.h``, which is compiled into this module, defines the meaning of events. The core
owns what only events change: the blocks, a hash table by address, and the threads' figures.
Figures per stack and the rows of cohorts are numpy arrays of ``Totals`` and ``CounterRows``. If
one has no room, ``run`` stops before that event, and ``need`` tells what is missing.

Not thread safe: the session's lock guards it.
"""

from libc.math cimport ceil, exp2, expm1, ldexp, rint
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

from tracelloc.heap.blocktable cimport (
    Block, Blocks, drop_blocks, fetch_block, find_block, has_room, new_blocks, own_blocks,
    remove_block,
)
from tracelloc.heap.earliertable cimport (
    WORDS, Earlier, Part, drop_earlier, earlier_at, lowest_bit, new_earlier, own_earlier, put_earlier,
    rank_of, remove_earlier,
)
from tracelloc.model.events cimport (
    EVENT_ALLOC, EVENT_FREE, EVENT_INNER_FREE, EVENT_LATE_ALLOC, EVENT_REALLOC_FREE, EVENT_RESTORE,
    WEIGHT_BITS, WEIGHT_MANTISSA_BITS, Pair, event, kind_of, size_of,
)
from tracelloc.heap.hashing cimport home_of, log2_of, prefetch
from tracelloc.heap.stackids cimport StackIds
from tracelloc.heap.threadbook cimport (
    NOBODY, Flows, Pending, Thread, Threads, add_flow, begin_flows, begin_threads, end_threads,
    is_last, remember, thread_row,
)

cdef struct Since:  # a stack's gain since the peak, if `peak` is that peak's number
    int64_t size, count
    uint64_t peak
    uint64_t batch  # the last one that changed the stack's live blocks

cdef enum:
    SLICES = 48
    CLASSES = 32
    PARTS = 1024  # per block: the unit of sampled counts
    AHEAD = 12  # events whose slots are fetched before they are needed
    WINDOW = 9  # events among which a block's free is looked for
    EARLIER_TID = 0  # of blocks that existed before all events: who allocated them is unknown
    LEAST_BLOCKS = 256

ctypedef int64_t* Column

cdef struct Place:  # of a freed block, in cohorts
    Py_ssize_t row
    Py_ssize_t life  # below 0: its lifetime was too short

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


cdef class Core:
    """Blocks, threads and flows of one address space, to which events are applied."""

    cdef Blocks* blocks
    cdef Earlier* earlier  # blocks from before tracing, as far as they fit there
    cdef Blocks* watched  # addresses in events, or NULL: only addresses are used
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
    cdef int64_t* unmatched_by_row
    cdef int64_t life_edges[CLASSES]
    # Threads.
    cdef Threads threads
    cdef Flows flows
    # Temporary blocks: freed among the last so many, or within soon_ns if that is not below 0.
    cdef int64_t soon_ns
    cdef double mean  # distance of samples in bytes; 0: all blocks are reported; below: weighed
    # The peak.
    cdef readonly int64_t held  # outstanding bytes
    cdef int64_t most
    cdef readonly int64_t peak_ns
    cdef uint64_t peak
    cdef readonly int64_t unmatched, reuses, odd_restores
    cdef public int64_t unordered
    cdef uint64_t done  # bit n: the n-th next record of the batch is already applied
    cdef readonly Need need
    cdef readonly Py_ssize_t missing_row  # of the cohorts, for NEED_ROW

    def __cinit__(
        self, StackIds ids, double mean, Py_ssize_t between, int64_t soon_ns,
        Py_ssize_t most_threads, Py_ssize_t most_flows, int64_t shortest_ns,
    ):
        cdef Py_ssize_t at
        self.ids = ids
        self.mean, self.soon_ns = mean, soon_ns
        self.most, self.peak = -1, 1
        for at in range(CLASSES):
            self.life_edges[at] = <int64_t>ceil(shortest_ns * exp2(at / 2.0))
        self.blocks, self.earlier = new_blocks(LEAST_BLOCKS), new_earlier()
        if not (self.blocks and self.earlier and begin_threads(&self.threads, most_threads, between + 1)
                and begin_flows(&self.flows, most_flows)):
            raise MemoryError

    def __dealloc__(self):
        drop_blocks(self.blocks)
        drop_earlier(self.earlier)
        drop_blocks(self.watched)
        end_threads(&self.threads)
        free(self.flows.slots)
        free(self.since)
        free(self.touched)

    # ---- arrays of Python ----

    def bind_figures(self, list columns):
        """Binds the arrays of ``Totals``: int64, of one length, in the order of its fields."""
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
                    int64_t[::1] load, int64_t[::1] unmatched):
        """Binds the slices of cohorts. Rows may have changed, so they are requested again."""
        self.slices = starts.shape[0]
        memcpy(self.starts, &starts[0], self.slices * sizeof(int64_t))
        memcpy(self.row_of, &row_of[0], self.slices * sizeof(int64_t))
        self.load, self.unmatched_by_row = &load[0], &unmatched[0]
        memset(self.rows, 0, sizeof(self.rows))
        memset(self.lengths, 0, sizeof(self.lengths))

    def bind_row(self, Py_ssize_t at, int64_t[::1] row):
        self.rows[at], self.lengths[at] = &row[0], row.shape[0]

    # ---- events ----

    def survey(self, const uint8_t[::1] records):
        """Returns (newest time, whether there are late allocations) of the ring's records."""
        cdef const event* events = <const event*>&records[0]
        cdef Py_ssize_t at
        cdef uint64_t newest_ns = 0
        cdef bint late = False
        with nogil:
            for at in range(records.shape[0] // <Py_ssize_t>sizeof(event)):
                if events[at].time_ns > newest_ns:
                    newest_ns = events[at].time_ns
                late |= kind_of(&events[at]) == EVENT_LATE_ALLOC
        return newest_ns, late

    def run(self, const uint8_t[::1] records, Py_ssize_t at, bint in_order, bint late):
        """Applies the ring's records from ``at`` on. Returns the first unapplied; see ``need``."""
        cdef const event* events = <const event*>&records[0]
        cdef Py_ssize_t n = records.shape[0] // <Py_ssize_t>sizeof(event)
        with nogil:
            self.need = NOTHING
            if at == 0:
                self.done = 0
            self._own_blocks()
            while at < n and self.need == NOTHING:
                if at + AHEAD < n and events[at + AHEAD].address != events[at + AHEAD - 1].address:
                    fetch_block(self.blocks, events[at + AHEAD].address)
                if (self.done & 1 or in_order and self._come_and_go(&events[at], n - at)
                        or self._apply(&events[at], in_order, late)):
                    self.done >>= 1
                    at += 1
        return at

    def end_batch(self, bint in_order, uint64_t time_ns):
        """Updates the lowest and highest live bytes of stacks at the end of a batch."""
        cdef Py_ssize_t at
        with nogil:
            if not in_order:
                if self.held > self.most:
                    self._note_peak(time_ns)
                # The order of the threads' allocations is unknown.
                memset(self.threads.last, 0,
                       self.threads.room * self.threads.kept * sizeof(uint64_t))
            for at in range(self.touched_count):
                if not self.threads.unfinished or not self._is_moving(self.touched[at]):
                    self._note_bounds(self.touched[at])
            self.touched_count = 0
            self.batch += 1

    def pass_by(self, const uint8_t[::1] pairs, Py_ssize_t at):
        """Counts blocks that were allocated and freed (pairs), as ``run`` does events.

        The threads are unknown, and so is whether the blocks were temporary.
        """
        cdef const Pair* some = <const Pair*>&pairs[0]
        with nogil:
            self.need = NOTHING
            while at < pairs.shape[0] // <Py_ssize_t>sizeof(Pair) and self._pass(&some[at]):
                at += 1
        return at

    def watch(self, bint begins):
        """Begins, or ends, recording addresses in events by ``note_addresses``."""
        drop_blocks(self.watched)
        self.watched = NULL
        if begins:
            self.watched = new_blocks(LEAST_BLOCKS)
            if not self.watched:
                raise MemoryError

    @property
    def watched_count(self):
        return self.watched.count if self.watched else 0

    def note_addresses(self, const uint8_t[::1] records):
        cdef const event* events = <const event*>&records[0]
        cdef Py_ssize_t at, n = records.shape[0] // <Py_ssize_t>sizeof(event)
        cdef uint64_t slot
        cdef bint fits = True
        with nogil:
            for at in range(n):
                if at + AHEAD < n:
                    prefetch(&self.watched.addresses[
                        home_of(events[at + AHEAD].address, self.watched.room)])
                slot = find_block(self.watched, events[at].address)
                if self.watched.addresses[slot] == 0 and events[at].address:
                    if not has_room(self.watched):
                        fits = False
                        break
                    slot = find_block(self.watched, events[at].address)
                    self.watched.addresses[slot] = events[at].address
                    self.watched.count += 1
        if not fits:
            raise MemoryError

    def find_watched(self, const uint64_t[::1] addresses, uint8_t[::1] watched):
        cdef Py_ssize_t at
        for at in range(addresses.shape[0]):
            watched[at] = self.watched.addresses[find_block(self.watched, addresses[at])] != 0

    def add_earlier(self, const uint64_t[::1] addresses, const uint64_t[::1] sizes,
                    const uint32_t[::1] stacks, uint8_t[::1] added, Py_ssize_t at,
                    uint64_t time_ns):
        """Adds blocks that existed at a time before all events, as ``run`` applies events.

        The blocks count as allocated by nobody, and not towards the load. Blocks with known events
        are left out. Fills in which are ``added``.
        """
        with nogil:
            self.need = NOTHING
            if self._own_blocks() and self._own_earlier():
                self.earlier.time_ns = time_ns
                while at < addresses.shape[0] and self._add_earlier(
                        addresses[at], sizes[at], stacks[at], &added[at], time_ns):
                    if at + AHEAD < addresses.shape[0]:
                        fetch_block(self.blocks, addresses[at + AHEAD])
                    at += 1
        return at

    def stacks_at(self, const uint64_t[::1] addresses, int64_t[::1] stacks):
        """Fills in the stack of the block at each address; -1 where there is none."""
        cdef Py_ssize_t at
        cdef Block block
        with nogil:
            for at in range(addresses.shape[0]):
                stacks[at] = block.stack if self._look_up(addresses[at], &block) else -1

    def explain_frees(self):
        """Resets the unmatched frees, which were of blocks that existed before all events."""
        self.unmatched = 0
        memset(self.unmatched_by_row, 0, SLICES * sizeof(int64_t))

    def inherit(self, int64_t count, int64_t size):
        """Counts blocks (number and bytes) that existed before all threads."""
        self.threads.rows[NOBODY].allocated_count += count
        self.threads.rows[NOBODY].allocated_bytes += size

    def forget_blocks(self):
        """Forgets all blocks, but keeps the figures."""
        cdef Blocks* empty = new_blocks(2)
        cdef Earlier* none = new_earlier()
        if not empty or not none:
            raise MemoryError
        drop_blocks(self.blocks)
        drop_earlier(self.earlier)
        self.blocks, self.earlier = empty, none

    def fork(self, StackIds ids, int64_t held, int64_t time_ns):
        """Returns a forked child's core, with ``held`` live bytes. Blocks are copied on write."""
        cdef Core child = Core.__new__(
            Core, ids, self.mean, self.threads.kept - 1, self.soon_ns, self.threads.most,
            self.flows.most, self.life_edges[0])
        drop_blocks(child.blocks)
        drop_earlier(child.earlier)
        child.blocks, child.earlier = self.blocks, self.earlier
        self.blocks.owners += 1
        self.earlier.owners += 1
        child.held = child.most = held
        child.peak_ns = time_ns
        return child

    # ---- for readers ----

    @property
    def count(self):
        return self.blocks.count + self.earlier.count

    @property
    def thread_count(self):
        """Number of known threads, including ``NOBODY``."""
        return self.threads.count

    @property
    def room(self):
        """Number of slots for blocks: earlier blocks' ones (64 for each) come first."""
        return self.earlier.part_count * WORDS + self.blocks.room

    @property
    def peak_bytes(self):
        """Outstanding bytes of all stacks at the peak; None before the first event."""
        return None if self.most < 0 else self.most

    def gains(self, int64_t[::1] count, int64_t[::1] size):
        cdef Py_ssize_t at
        for at in range(min(count.shape[0], self.stacks)):
            if self.since[at].peak == self.peak:
                count[at], size[at] = self.since[at].count, self.since[at].size

    def copy_blocks(self, uint64_t at, uint64_t born_by, uint64_t least, bint with_earlier,
                    uint64_t[::1] address, uint64_t[::1] size, uint64_t[::1] birth_ns,
                    uint32_t[::1] stack, uint32_t[::1] tid):
        """Copies blocks from slot ``at`` on, born by then and at least so large, into columns.

        ``with_earlier``: also copies those that ``add_earlier`` has added; columns have room for 64
        at least. Ends when these are full. Returns the slot to continue from, the number copied,
        and the number and bytes of all blocks born by then. These two are estimates if blocks are
        sampled; the number is then in parts of blocks.
        """
        cdef Py_ssize_t to = 0
        cdef int64_t parts, bytes_, all_parts = 0, all_bytes = 0
        cdef uint64_t slot, earlier = self.earlier.part_count * WORDS
        cdef Block* block
        cdef bint is_full = False
        with nogil:
            if not with_earlier and at < earlier:
                if self.earlier.time_ns <= born_by:
                    all_parts, all_bytes = self.earlier.count, self.earlier.size_bytes
                at = earlier
            while at < earlier and not is_full:
                is_full = not self._copy_word(
                    at, born_by, least, &to, address, size, birth_ns, stack, tid, &all_bytes)
                at += not is_full
            all_parts += to if with_earlier else 0
            while at < earlier + self.blocks.room and to < address.shape[0] and not is_full:
                slot = at - earlier
                block = &self.blocks.slots[slot]
                if self.blocks.addresses[slot] and block.birth_ns <= born_by:
                    self._amount(block.size, &parts, &bytes_)
                    all_parts += parts
                    all_bytes += bytes_
                    if block.size >= least and (with_earlier or block.tid != EARLIER_TID):
                        address[to] = self.blocks.addresses[slot]
                        size[to], birth_ns[to] = block.size, block.birth_ns
                        stack[to], tid[to] = block.stack, block.tid
                        to += 1
                at += 1
        return at, to, all_parts, all_bytes

    cdef bint _copy_word(
        self, uint64_t at, uint64_t born_by, uint64_t least, Py_ssize_t* to, uint64_t[::1] address,
        uint64_t[::1] size, uint64_t[::1] birth_ns, uint32_t[::1] stack, uint32_t[::1] tid,
        int64_t* size_bytes,
    ) noexcept nogil:
        """Copies blocks that begin within 1 KiB; false if there is no room for all of them."""
        cdef Part* part = self.earlier.parts[at // WORDS]
        cdef uint64_t word = at % WORDS, bits = part.starts[word], rank = rank_of(part, word), kind
        cdef Py_ssize_t n = to[0]
        if self.earlier.time_ns > born_by:
            return True
        while bits:
            kind = part.kind_of[rank]
            rank += 1
            if kind and part.kinds[kind - 1].size >= least:
                if n == address.shape[0]:
                    return False
                address[n] = (part.number * WORDS + word << 10) + (<uint64_t>lowest_bit(bits) << 4)
                size[n], stack[n] = part.kinds[kind - 1].size, part.kinds[kind - 1].stack
                birth_ns[n], tid[n] = self.earlier.time_ns, EARLIER_TID
                size_bytes[0] += <int64_t>size[n]
                n += 1
            bits &= bits - 1
        to[0] = n
        return True

    def thread_rows(self, int64_t[:, ::1] rows):
        """Fills a row per thread: tid, allocated bytes and blocks, freed bytes and blocks."""
        cdef Py_ssize_t at
        cdef Thread* thread
        for at in range(min(rows.shape[0], self.threads.count)):
            thread = &self.threads.rows[at]
            rows[at, 0] = thread.tid
            rows[at, 1], rows[at, 2] = thread.allocated_bytes, thread.allocated_count
            rows[at, 3], rows[at, 4] = thread.freed_bytes, thread.freed_count

    def unfinished(self):
        """Returns (stack, bytes) of each block that an unfinished realloc has taken."""
        cdef Pending* pending
        cdef Py_ssize_t at
        cdef int64_t count, size
        found = []
        for at in range(self.threads.count if self.threads.unfinished else 0):
            pending = &self.threads.rows[at].pending
            if pending.address and pending.is_known:
                self._amount(pending.block.size, &count, &size)
                found.append((pending.block.stack, size))
        return found

    def flow_rows(self):
        """Returns (allocating thread's row, freeing thread's row, blocks, bytes) of each flow."""
        cdef Py_ssize_t at
        rows = []
        for at in range(self.flows.room):
            if self.flows.slots[at].key:
                maker, ender = divmod(self.flows.slots[at].key - 1, 1 << 16)
                rows.append((maker, ender, self.flows.slots[at].count, self.flows.slots[at].size))
        return rows

    # ---- figures ----

    cdef inline void _amount(self, uint64_t size, int64_t* count, int64_t* size_bytes) noexcept nogil:
        """Computes count and bytes that a block stands for: see ``model.blocks.weights``."""
        cdef double weight
        if self.mean == 0:
            count[0], size_bytes[0] = 1, <int64_t>size
            return
        if self.mean < 0:
            weight = ldexp(
                1 + <double>(size & ((1 << WEIGHT_MANTISSA_BITS) - 1)) / (1 << WEIGHT_MANTISSA_BITS),
                <int>(size >> WEIGHT_MANTISSA_BITS & ((1 << WEIGHT_BITS - WEIGHT_MANTISSA_BITS) - 1)))
            size >>= WEIGHT_BITS
            count[0] = <int64_t>rint(weight * PARTS)
            size_bytes[0] = <int64_t>rint(weight * <double>size)
            return
        weight = -1 / expm1((size if size else 1) / -self.mean)
        count[0] = <int64_t>rint(weight * PARTS)
        size_bytes[0] = <int64_t>rint(weight * <double>size)

    cdef inline Py_ssize_t _slice(self, uint64_t time_ns) noexcept nogil:
        """Returns the cohorts' row of a time. Times before the first slice belong to that."""
        cdef Py_ssize_t low = 0, n = self.slices, half
        if <int64_t>time_ns >= self.starts[n - 1]:
            return self.row_of[n - 1]
        while n > 1:  # without unpredictable branches
            half = n >> 1
            low += half * (self.starts[low + half] <= <int64_t>time_ns)
            n -= half
        return self.row_of[low]

    cdef inline Py_ssize_t _life_class(self, uint64_t life_ns) noexcept nogil:
        """Returns the class of a lifetime, two for each power of 2; below 0 if too short."""
        cdef Py_ssize_t at
        if <int64_t>life_ns < self.life_edges[0]:
            return -1
        at = min(2 * (log2_of(life_ns) - log2_of(self.life_edges[0])), CLASSES - 2)
        # Edges are not powers of 2: the class may be this one, the next, or one of two before.
        at += self.life_edges[at + 1] <= <int64_t>life_ns
        at -= self.life_edges[at] > <int64_t>life_ns
        at -= self.life_edges[at] > <int64_t>life_ns
        return at

    cdef inline bint _has(self, Py_ssize_t row, uint32_t stack) noexcept nogil:
        """Whether a row of cohorts exists and includes a stack."""
        if <Py_ssize_t>stack < self.lengths[row]:
            return True
        self.need, self.missing_row = ROW, row
        return False

    cdef inline bint _can_hold(self, Py_ssize_t row, uint32_t stack) noexcept nogil:
        """Whether the rows exist that adding or removing a block of a row changes."""
        return (self._has(ALIVE + row, stack) and self._has(ALIVE_BYTES + row, stack)
                and self._has(FLOOR_BYTES + self.row_of[self.slices - 1], stack))

    cdef inline bint _can_end(self, Block* block, uint64_t time_ns, Place* place) noexcept nogil:
        """Whether the rows exist that a block's end changes; finds its place in them."""
        place.row = self._slice(block.birth_ns)
        place.life = -1
        if block.tid != EARLIER_TID:
            place.life = self._life_class(time_ns - block.birth_ns)
        return (self._can_hold(place.row, block.stack)
                and (place.life < 0 or self._has(LIFETIMES + place.life, block.stack)))

    cdef inline void _hold(self, Py_ssize_t row, uint32_t stack, int64_t count, int64_t size,
                           int sign) noexcept nogil:
        """Adds a live block to a row, or removes it if the sign is -1."""
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

    cdef bint _is_moving(self, uint32_t stack) noexcept nogil:
        """Whether an unfinished realloc has taken a block of this stack."""
        cdef Pending* pending
        cdef Py_ssize_t row
        for row in range(self.threads.count):
            pending = &self.threads.rows[row].pending
            if pending.address and pending.is_known and pending.block.stack == stack:
                return True
        return False

    cdef inline void _note_peak(self, uint64_t time_ns) noexcept nogil:
        self.most, self.peak_ns = self.held, <int64_t>time_ns
        self.peak += 1

    # ---- events ----

    cdef inline bint _own_blocks(self) noexcept nogil:
        cdef Blocks* blocks = own_blocks(self.blocks)
        if not blocks:
            self.need = MEMORY
            return False
        self.blocks = blocks
        return True

    cdef inline bint _own_earlier(self) noexcept nogil:
        cdef Earlier* earlier = own_earlier(self.earlier)
        if not earlier:
            self.need = MEMORY
            return False
        self.earlier = earlier
        return True

    cdef inline bint _look_up(self, uint64_t address, Block* block) noexcept nogil:
        """Fills in the block at an address; false if there is none."""
        cdef uint64_t slot = find_block(self.blocks, address)
        if self.blocks.addresses[slot]:
            block[0] = self.blocks.slots[slot]
            return True
        return self._look_up_earlier(address, block)

    cdef inline bint _look_up_earlier(self, uint64_t address, Block* block) noexcept nogil:
        cdef Part* part
        cdef uint8_t* kind = earlier_at(self.earlier, address, &part)
        if kind:
            block.size, block.stack = part.kinds[kind[0] - 1].size, part.kinds[kind[0] - 1].stack
            block.birth_ns, block.tid = self.earlier.time_ns, EARLIER_TID
        return kind != NULL

    cdef inline void _remove_earlier(self, uint64_t address) noexcept nogil:
        """Removes the earlier block at an address; a shared table must have been copied."""
        cdef Part* part = NULL
        cdef uint8_t* kind = earlier_at(self.earlier, address, &part)
        if kind:
            remove_earlier(self.earlier, part, kind)

    cdef inline bint _has_room(self) noexcept nogil:
        if has_room(self.blocks):
            return True
        self.need = MEMORY
        return False

    cdef bint _apply(self, const event* e, bint in_order, bint late) noexcept nogil:
        """Applies one event. False: nothing has changed, and ``need`` is set."""
        cdef uint32_t kind = kind_of(e)
        cdef Py_ssize_t row = thread_row(&self.threads, e.tid)
        cdef Pending* pending
        cdef bint done, was_pending
        if row < 0:
            self.need = MEMORY
            return False
        pending = &self.threads.rows[row].pending
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
            self.threads.rows[row].pending.address = 0
            self.threads.unfinished -= 1
        if in_order and self.held > self.most:
            self._note_peak(e.time_ns)
        return True

    cdef inline bint _allocate(self, const event* e, Py_ssize_t row, bint in_order, bint late) noexcept nogil:
        cdef int64_t stack = self.ids.index_of(e.stack_id), count, size
        cdef Py_ssize_t born = self._slice(e.time_ns)
        cdef Thread* thread = &self.threads.rows[row]
        cdef Block block
        if stack < 0:
            self.need = STACK
            return False
        if stack >= self.stacks:
            self.need = ROOM_FOR_STACKS
            return False
        block.size = size_of(e)
        block.birth_ns, block.stack, block.tid = e.time_ns, <uint32_t>stack, e.tid
        if not (self._has(BORN + born, block.stack) and self._can_hold(born, block.stack)
                and self._put(e.address, &block)):
            return False
        self._amount(block.size, &count, &size)
        self._hold(born, block.stack, count, size, 1)
        self._count_allocation(e.time_ns, born, stack, thread, count, size, 1, late)
        if self.soon_ns < 0:
            if in_order:
                remember(&self.threads, row, e.address)
            else:
                is_last(&self.threads, row, e.address, True)
                self.unordered += count
        return True

    cdef inline Py_ssize_t _end_of(
        self, const event* e, Py_ssize_t left, int64_t* most
    ) noexcept nogil:
        """Returns how many events later a block is freed, if that is its thread's next one; else 0.

        ``left``: events from this one on. ``most``: set to the most bytes outstanding meanwhile.
        """
        cdef Py_ssize_t at
        cdef int64_t count, size
        cdef uint32_t kind = kind_of(e)
        if kind != EVENT_ALLOC:
            return 0
        self._amount(size_of(e), &count, &size)
        most[0] = self.held + size
        for at in range(1, min(left, WINDOW)):
            kind = kind_of(&e[at])
            if e[at].tid == e.tid:
                return at if kind == EVENT_FREE and e[at].address == e.address else 0
            if e[at].address == e.address or kind == EVENT_RESTORE:
                return 0
            if kind == EVENT_ALLOC:
                self._amount(size_of(&e[at]), &count, &size)
                most[0] += size
        return 0

    cdef inline bint _come_and_go(self, const event* e, Py_ssize_t left) noexcept nogil:
        """Applies an allocation, and the free of its block if that is its thread's next event.

        The free may be applied before other threads' events in between: they are about other
        blocks, and their allocations do not exceed the peak. False: nothing has changed; the
        condition does not hold, or the pair has effects that are not counted here, so both events
        are applied one by one.
        """
        cdef int64_t stack, count, size, life_ns, most
        cdef Py_ssize_t born, row, after = self._end_of(e, left, &most)
        cdef Thread* thread
        if after == 0 or most > self.most:
            return False
        life_ns = <int64_t>(e[after].time_ns - e.time_ns)
        stack = self.ids.index_of(e.stack_id)
        row = thread_row(&self.threads, e.tid)
        if stack < 0 or stack >= self.stacks or row < 0 or life_ns >= self.life_edges[0]:
            return False
        if row == NOBODY and after > 1:
            return False  # other unknown threads share this row
        thread = &self.threads.rows[row]
        born = self._slice(e.time_ns)
        self._amount(size_of(e), &count, &size)
        if (thread.pending.address or <Py_ssize_t>stack >= self.lengths[BORN + born]
                or self.blocks.addresses[find_block(self.blocks, e.address)]):
            return False
        self._count_allocation(e.time_ns, born, stack, thread, count, size, 1, False)
        self._count_free(stack, thread, count, size)
        if self.soon_ns < 0:
            remember(&self.threads, row, e.address)
        if self.soon_ns < 0 or life_ns <= self.soon_ns:
            self.figures.temporary_count[stack] += count
            self.figures.temporary_bytes[stack] += size
        self.done |= <uint64_t>1 << after
        return True

    cdef inline void _count_allocation(
        self, uint64_t time_ns, Py_ssize_t born, int64_t stack, Thread* thread, int64_t count,
        int64_t size, int64_t blocks, bint late,
    ) noexcept nogil:
        """Counts allocated ``blocks``, which stand for others, by stack, thread and time."""
        self.figures.allocated_count[stack] += count
        self.figures.allocated_bytes[stack] += size
        if not late or self.figures.last_ns[stack] < <int64_t>time_ns:
            self.figures.last_ns[stack] = <int64_t>time_ns
        if self.figures.first_ns[stack] == 0:
            self.figures.first_ns[stack] = <int64_t>time_ns
        self.rows[BORN + born][stack] += blocks
        self.load[born] += blocks
        thread.allocated_count += count
        thread.allocated_bytes += size

    cdef inline void _count_free(
        self, int64_t stack, Thread* thread, int64_t count, int64_t size
    ) noexcept nogil:
        self.figures.freed_count[stack] += count
        self.figures.freed_bytes[stack] += size
        thread.freed_count += count
        thread.freed_bytes += size

    cdef bint _pass(self, const Pair* pair) noexcept nogil:
        cdef int64_t stack = self.ids.index_of(pair.key.stack_id), blocks = pair.sums.count
        cdef int64_t count = 1, size = pair.sums.bytes
        cdef Py_ssize_t born = self._slice(pair.sums.time_ns)
        cdef Thread* nobody = &self.threads.rows[NOBODY]
        if stack < 0 or stack >= self.stacks:
            self.need = STACK if stack < 0 else ROOM_FOR_STACKS
            return False
        if not self._has(BORN + born, <uint32_t>stack):
            return False
        if self.mean != 0:
            self._amount(pair.key.size, &count, &size)
            size *= blocks
        count *= blocks
        self._count_allocation(
            pair.sums.time_ns, born, stack, nobody, count, size, blocks, True)
        self._count_free(stack, nobody, count, size)
        self.unordered += count
        return True

    cdef inline bint _add_earlier(
        self, uint64_t address, uint64_t size, uint32_t stack, uint8_t* added, uint64_t time_ns
    ) noexcept nogil:
        cdef Py_ssize_t born = self._slice(time_ns)
        cdef Block block
        if <Py_ssize_t>stack >= self.stacks:
            self.need = ROOM_FOR_STACKS
            return False
        added[0] = False
        if (self._look_up(address, &block)
                or self.watched and self.watched.addresses[find_block(self.watched, address)]):
            return True
        block.size, block.birth_ns, block.stack, block.tid = size, time_ns, stack, EARLIER_TID
        if not (self._has(BORN + born, stack) and self._can_hold(born, stack) and (
                put_earlier(self.earlier, address, size, stack) or self._put(address, &block))):
            return False
        self._hold(born, stack, 1, <int64_t>size, 1)
        self.rows[BORN + born][stack] += 1
        self.figures.allocated_count[stack] += 1
        self.figures.allocated_bytes[stack] += <int64_t>size
        self.figures.first_ns[stack] = self.figures.last_ns[stack] = <int64_t>time_ns
        self.threads.rows[NOBODY].allocated_count += 1
        self.threads.rows[NOBODY].allocated_bytes += <int64_t>size
        added[0] = True
        return True

    cdef inline bint _put(self, uint64_t address, Block* block) noexcept nogil:
        """Adds a block to the table; an old block at its address was freed unseen."""
        cdef int64_t count, size
        cdef Block old
        cdef Py_ssize_t row
        cdef uint64_t at
        cdef bint is_live
        if not self._has_room():
            return False
        at = find_block(self.blocks, address)
        is_live = self.blocks.addresses[at] != 0
        if is_live:
            old = self.blocks.slots[at]
        if is_live or self._look_up_earlier(address, &old):
            row = self._slice(old.birth_ns)
            if not (self._can_hold(row, old.stack) and (is_live or self._own_earlier())):
                return False
            self._amount(old.size, &count, &size)
            self.figures.freed_count[old.stack] += count
            self.figures.freed_bytes[old.stack] += size
            self._hold(row, old.stack, count, size, -1)
            if not is_live:
                self._remove_earlier(address)
            self.reuses += 1
        self.blocks.count += not is_live
        self.blocks.addresses[at], self.blocks.slots[at] = address, block[0]
        return True

    cdef inline bint _free(self, const event* e, Py_ssize_t row, uint32_t kind, bint in_order) noexcept nogil:
        cdef uint64_t at = find_block(self.blocks, e.address)
        cdef Block block
        cdef bint is_live = self.blocks.addresses[at] != 0, is_temporary = False, is_known = is_live
        cdef Place place
        cdef Pending* pending
        cdef int64_t count, size
        if is_live:
            block = self.blocks.slots[at]
        elif self._look_up_earlier(e.address, &block):
            is_known = True
            if not self._own_earlier():
                return False
        if is_known:
            if not self._can_end(&block, e.time_ns, &place):
                return False
            if block.tid == e.tid:
                if self.soon_ns >= 0:
                    # Below 0 if the clock tick came late: that is soon enough.
                    is_temporary = <int64_t>(e.time_ns - block.birth_ns) <= self.soon_ns
                elif in_order:
                    is_temporary = is_last(&self.threads, row, e.address, False)
                elif is_last(&self.threads, row, e.address, True):
                    self._amount(block.size, &count, &size)
                    self.unordered += count
            if not self._end(&block, &place, e.tid, row, is_temporary, 1):
                return False
            if is_live:
                remove_block(self.blocks, at)
            else:
                self._remove_earlier(e.address)
        elif kind != EVENT_INNER_FREE:
            # An inner free often concerns the block that the outer one has freed already.
            self.unmatched += 1
            self.unmatched_by_row[self.row_of[self.slices - 1]] += 1
        if kind == EVENT_REALLOC_FREE and row != NOBODY:
            pending = &self.threads.rows[row].pending
            self.threads.unfinished += pending.address == 0
            pending.address, pending.time_ns = e.address, e.time_ns
            pending.is_known, pending.is_temporary = is_known, is_temporary
            if is_known:
                pending.block = block
        return True

    cdef inline bint _restore(self, const event* e, Py_ssize_t row, bint was_pending) noexcept nogil:
        """Handles a failed realloc: the block that it took lives on."""
        cdef Pending* pending = &self.threads.rows[row].pending
        cdef Place place
        if not was_pending or pending.address != e.address:
            self.odd_restores += 1
        elif not pending.is_known:
            if self.unmatched > 0:  # unless it was explained meanwhile
                self.unmatched -= 1
                self.unmatched_by_row[self.row_of[self.slices - 1]] -= 1
        else:
            if not (self._can_end(&pending.block, pending.time_ns, &place) and self._has_room()):
                return False
            if not self._put(e.address, &pending.block):
                return False
            # The rows exist that its end had changed.
            self._end(&pending.block, &place, e.tid, row, pending.is_temporary, -1)
        return True

    cdef inline bint _end(self, Block* block, Place* place, uint32_t tid, Py_ssize_t row,
                          bint is_temporary, int sign) noexcept nogil:
        """Ends a block, freed by thread ``tid``; a sign of -1 undoes that."""
        cdef int64_t count, size
        cdef Py_ssize_t maker
        cdef uint32_t stack = block.stack
        self._amount(block.size, &count, &size)
        if block.tid != tid and block.tid != EARLIER_TID:
            maker = thread_row(&self.threads, block.tid)
            if maker < 0 or not add_flow(&self.flows, maker, row, sign * count, sign * size):
                self.need = MEMORY
                return False
            self.figures.remote_count[stack] += sign * count
            self.figures.remote_bytes[stack] += sign * size
        self._hold(place.row, stack, count, size, -sign)
        self._count_free(stack, &self.threads.rows[row], sign * count, sign * size)
        if place.life >= 0:
            self.rows[LIFETIMES + place.life][stack] += sign
        if is_temporary:
            self.figures.temporary_count[stack] += sign * count
            self.figures.temporary_bytes[stack] += sign * size
        return True
