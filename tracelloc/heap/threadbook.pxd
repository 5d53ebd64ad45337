# cython: language_level=3, cdivision=True
"""Figures of threads, and flows of blocks between threads: both in hash tables."""

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset

from tracelloc.heap.blocktable cimport Block
from tracelloc.heap.hashing cimport home_of

cdef enum:
    NOBODY = 0  # the row of unknown threads
    LEAST_THREADS = 8
    LEAST_FLOWS = 64

cdef struct Pending:  # the block that a thread's unfinished realloc took
    uint64_t address  # 0: no realloc is unfinished
    uint64_t time_ns
    Block block
    bint is_known
    bint is_temporary

cdef struct Thread:
    uint32_t tid
    uint32_t newest  # where in its part of `last` the next allocation goes
    int64_t allocated_bytes, allocated_count, freed_bytes, freed_count
    Pending pending

cdef struct Threads:
    Py_ssize_t count, room, most
    Py_ssize_t kept  # addresses of each thread in `last`
    Py_ssize_t recent  # the row that was looked up last
    Py_ssize_t unfinished  # threads with an unfinished realloc
    Thread* rows
    uint16_t* slots  # rows by the hash of their tid, two slots a row
    uint64_t* last  # the addresses that each thread allocated last

cdef struct Flow:  # blocks that one thread allocated and another freed
    uint64_t key  # both rows combined, plus 1; 0: an empty slot
    int64_t count, size

cdef struct Flows:
    Py_ssize_t count, room, most
    Flow* slots


cdef inline bint begin_threads(Threads* threads, Py_ssize_t most, Py_ssize_t kept) noexcept nogil:
    """Initializes the threads, with the row ``NOBODY`` alone. False if out of memory."""
    threads.count, threads.room, threads.most, threads.kept = 1, LEAST_THREADS, most, kept
    threads.rows = <Thread*>calloc(LEAST_THREADS, sizeof(Thread))
    threads.slots = <uint16_t*>calloc(2 * LEAST_THREADS, sizeof(uint16_t))
    threads.last = <uint64_t*>calloc(LEAST_THREADS * kept, sizeof(uint64_t))
    return threads.rows and threads.slots and threads.last


cdef inline void end_threads(Threads* threads) noexcept nogil:
    free(threads.rows)
    free(threads.slots)
    free(threads.last)


cdef inline Py_ssize_t thread_row(Threads* threads, uint32_t tid) noexcept nogil:
    """Returns a thread's row, which is added if it is new. Below 0 if out of memory."""
    cdef uint64_t slot
    cdef Py_ssize_t row
    if threads.rows[threads.recent].tid == tid:
        return threads.recent
    if tid == 0:
        return NOBODY
    slot = home_of(tid, 2 * threads.room)
    while threads.slots[slot]:
        row = threads.slots[slot]
        if threads.rows[row].tid == tid:
            threads.recent = row
            return row
        slot = slot + 1 if slot + 1 < 2 * <uint64_t>threads.room else 0
    if threads.count >= threads.most:
        return NOBODY
    if threads.count == threads.room:
        return thread_row(threads, tid) if grow_threads(threads) else -1
    row = threads.count
    threads.count += 1
    threads.rows[row].tid = tid
    threads.slots[slot] = <uint16_t>row
    return row


cdef inline bint grow_threads(Threads* threads) noexcept nogil:
    """Doubles the rows. False if out of memory."""
    cdef Py_ssize_t old = threads.room, room = 2 * old, kept = threads.kept, row
    cdef uint64_t slot
    cdef Thread* rows = <Thread*>realloc(threads.rows, room * sizeof(Thread))
    cdef uint64_t* last = <uint64_t*>realloc(threads.last, room * kept * sizeof(uint64_t))
    cdef uint16_t* slots = <uint16_t*>calloc(2 * room, sizeof(uint16_t))
    threads.rows = rows if rows else threads.rows
    threads.last = last if last else threads.last
    if not rows or not last or not slots:
        free(slots)
        return False
    free(threads.slots)
    threads.slots, threads.room = slots, room
    memset(&rows[old], 0, old * sizeof(Thread))
    memset(&last[old * kept], 0, old * kept * sizeof(uint64_t))
    for row in range(1, threads.count):
        slot = home_of(rows[row].tid, 2 * room)
        while slots[slot]:
            slot = slot + 1 if slot + 1 < 2 * <uint64_t>room else 0
        slots[slot] = <uint16_t>row
    return True


cdef inline void remember(Threads* threads, Py_ssize_t row, uint64_t address) noexcept nogil:
    cdef uint32_t at = threads.rows[row].newest
    threads.last[row * threads.kept + at] = address
    threads.rows[row].newest = at + 1 if at + 1 < <uint32_t>threads.kept else 0


cdef inline bint is_last(
    Threads* threads, Py_ssize_t row, uint64_t address, bint forget
) noexcept nogil:
    """Whether a thread allocated an address lately; if so, ``forget`` removes that."""
    cdef uint64_t* last = &threads.last[row * threads.kept]
    cdef Py_ssize_t at
    for at in range(threads.kept):
        if last[at] == address:
            if forget:
                last[at] = 0
            return True
    return False


cdef inline bint begin_flows(Flows* flows, Py_ssize_t most) noexcept nogil:
    """Initializes the flows: none. False if out of memory."""
    flows.count, flows.room, flows.most = 0, LEAST_FLOWS, most
    flows.slots = <Flow*>calloc(LEAST_FLOWS, sizeof(Flow))
    return flows.slots != NULL


cdef inline Flow* find_flow(Flows* flows, uint64_t key) noexcept nogil:
    """Returns the slot of a flow, or the empty slot for it."""
    cdef uint64_t at = home_of(key, flows.room)
    while flows.slots[at].key != key and flows.slots[at].key != 0:
        at = at + 1 if at + 1 < <uint64_t>flows.room else 0
    return &flows.slots[at]


cdef inline bint add_flow(
    Flows* flows, Py_ssize_t maker, Py_ssize_t ender, int64_t count, int64_t size
) noexcept nogil:
    """Counts blocks that passed from one thread's row to another. False if out of memory."""
    cdef uint64_t key = (<uint64_t>maker << 16 | <uint64_t>ender) + 1
    cdef Flow* flow
    if 2 * (flows.count + 2) > flows.room and not grow_flows(flows):
        return False
    flow = find_flow(flows, key)
    if flow.key == 0 and flows.count >= flows.most:
        key = 1  # from nobody to nobody
        flow = find_flow(flows, key)
    if flow.key == 0:
        flow.key = key
        flows.count += 1
    flow.count += count
    flow.size += size
    return True


cdef inline bint grow_flows(Flows* flows) noexcept nogil:
    """Doubles the slots. False if out of memory."""
    cdef Flow* old = flows.slots
    cdef Py_ssize_t room = flows.room, at
    cdef Flow* slots = <Flow*>calloc(2 * room, sizeof(Flow))
    if not slots:
        return False
    flows.slots, flows.room = slots, 2 * room
    for at in range(room):
        if old[at].key:
            find_flow(flows, old[at].key)[0] = old[at]
    free(old)
    return True
