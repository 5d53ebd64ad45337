# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Sets of unwind rows (``struct row_set``, probes/maps.h), which the probes may read any time.

A way is first emptied, then gets its row, then its key.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t

cdef extern from *:
    """
    #define store(place, value) __atomic_store_n((place), (value), __ATOMIC_RELEASE)
    """
    void store(uint64_t* place, uint64_t value) noexcept nogil
    void pass_fence "__atomic_thread_fence"(int order) noexcept nogil
    int __ATOMIC_SEQ_CST

cdef enum:
    WAYS = 4  # ROW_WAYS
    TAG_SHIFT = 48  # KEY_TAG_SHIFT

cdef uint64_t MULTIPLIER = 0x9E3779B97F4A7C15
cdef uint64_t ADDRESS = (<uint64_t>1 << TAG_SHIFT) - 1


cdef inline int find_way(const uint64_t* keys, uint64_t key, const uint8_t* is_free) noexcept nogil:
    """Returns the way that has the key, otherwise a free way; -1 if there is neither."""
    cdef int way, found = -1
    for way in range(WAYS):
        if keys[way] == key:
            return way
        if found < 0 and is_free[keys[way] >> TAG_SHIFT]:
            found = way
    return found


def put_rows(
    uint64_t[:, ::1] sets, const uint64_t[::1] addresses, const uint64_t[::1] rows, uint64_t tag,
    uint64_t hashed, const uint8_t[::1] is_free, int64_t[::1] rows_under, uint64_t victim,
):
    """Adds rows, evicting others from full sets. Returns the number of evictions.

    ``hashed`` masks the bits of a key that determine its set. ``is_free``, by tag, tells whether
    its ways count as empty. ``rows_under``, by tag, counts rows and is updated. ``victim`` is
    the first way to evict.
    """
    cdef uint64_t key, evictions = 0
    cdef uint64_t* keys
    cdef Py_ssize_t at
    cdef int way, shift = 64
    while <uint64_t>1 << (64 - shift) < <uint64_t>sets.shape[0]:
        shift -= 1
    with nogil:
        for at in range(addresses.shape[0]):
            key = addresses[at] & ADDRESS | tag << TAG_SHIFT
            # A shift by 64 is undefined; with a single set there is nothing to choose.
            keys = &sets[0 if shift == 64 else (key & hashed) * MULTIPLIER >> shift, 0]
            way = find_way(keys, key, &is_free[0])
            if way < 0:
                way = <int>((victim + evictions) % WAYS)
                evictions += 1
                rows_under[keys[way] >> TAG_SHIFT] -= 1
            rows_under[tag] += keys[way] != key
            store(&keys[way], 0)
            store(&keys[WAYS + way], rows[at])
            store(&keys[way], key)
    return evictions


def keep_rows(
    uint64_t[:, ::1] sets, uint64_t tag, const uint64_t[::1] starts, const uint64_t[::1] ends
):
    """Drops rows of a tag. Returns how many remain.

    Rows remain if their addresses are in ``starts[n] <= a < ends[n]``, sorted.
    """
    cdef Py_ssize_t at, low, high, middle
    cdef uint64_t address, kept = 0
    cdef int way
    with nogil:
        for at in range(sets.shape[0]):
            for way in range(WAYS):
                if sets[at, way] >> TAG_SHIFT != tag:
                    continue
                address = sets[at, way] & ADDRESS
                low, high = 0, starts.shape[0]
                while low < high:
                    middle = (low + high) // 2
                    if starts[middle] <= address:
                        low = middle + 1
                    else:
                        high = middle
                if low and address < ends[low - 1]:
                    kept += 1
                else:
                    store(&sets[at, way], 0)
        pass_fence(__ATOMIC_SEQ_CST)  # before a tag says that the rest is valid
    return kept
