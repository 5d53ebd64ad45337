# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Compiled loops over glibc's heap: chunk after chunk, and the lists of free chunks.

All input is another process's memory, which changes while it is read and may be hostile. A chunk's
address and state share a word, see ``arenas.py``. Format: malloc/malloc.c of glibc 2.26 to 2.43,
``struct malloc_chunk``.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from tracelloc.heap.hashing cimport first_above

from mmap import PAGESIZE

cdef extern from "<unistd.h>" nogil:
    int64_t pread64 "pread"(int fd, void* into, size_t size, int64_t offset)

cdef enum:
    PREV_IN_USE = 1
    IS_MAPPED = 2  # never in a heap
    FLAGS = 7
    SMALLEST = 32  # bytes of a chunk
    FENCE = 16  # bytes of the headers that end a heap
    PAGE_BLOCKS = 2052  # that begin in one page, and one that ends there
    PINNED_PART = 4  # a page is pinned if at most this part of it is in use
    TRIM_HEADER = 48  # bytes of a free chunk that malloc_trim(3) keeps
    TRIM_TOP = 33  # bytes that it keeps of the main arena's top
    ROWS = 64  # entries from one to the next of which the address is kept
    PAGES = 1024  # in the cache of the lists' memory, as far as they are needed

    STATE_FREE = 0
    STATE_IN_USE = 1
    STATE_FAST = 3
    STATE_TOP = 4
    STATE_MAPPED = 5
    STATE_OWN = 6
    STATE_END = 7

    FINE = 0
    TOO_SMALL = 1
    TOO_LARGE = 2
    FOOT_DIFFERS = 3

cdef uint64_t PAGE = PAGESIZE  # the kernel's
cdef int PAGE_BITS = PAGESIZE.bit_length() - 1


def follow_chunks(
    const uint64_t[::1] words,
    uint64_t base,
    uint64_t at,
    uint64_t before,
    uint64_t end,
    uint64_t[::1] entries,
    uint64_t[::1] firsts,
):
    """Follows chunks through a copy of memory.

    ``words`` is what was at ``base``; ``at`` is a chunk's address, ``before`` the size of the chunk
    before it in bytes (0: unknown), ``end`` the address where the heap ends. Fills in an entry
    (address and state) for each chunk, and the first word of its contents, 0 if that is not in the
    copy. A chunk's state stands in the header after it, so the last entry counts as in use.

    Returns (number of entries, address of the next chunk, reason, whether the chunk before the
    first one is in use). The reason is not 0 if the header at that address can't be right.
    """
    cdef Py_ssize_t n = 0, most = min(entries.shape[0], firsts.shape[0])
    cdef uint64_t size_bytes = 8 * <uint64_t>words.shape[0]
    cdef uint64_t word, chunk
    cdef Py_ssize_t index
    cdef int reason = FINE, is_used_before = True
    with nogil:
        while n < most and at >= base and at + 16 <= end and at - base + 16 <= size_bytes:
            index = (at - base) >> 3
            word = words[index + 1]
            chunk = word & ~<uint64_t>FLAGS
            if chunk < SMALLEST and not (chunk == FENCE and (word & PREV_IN_USE or before)):
                # The second of two headers that end a heap. Of 48 bytes, the first one has 32.
                if chunk == 0 and before == FENCE or (
                    word == PREV_IN_USE and before == SMALLEST == words[index] and at + FENCE == end
                ):
                    if n:
                        entries[n - 1] = at - before | STATE_OWN
                    at = end
                    break
                reason = TOO_SMALL
                break
            if chunk > end - at or chunk & 8 or word & IS_MAPPED:
                reason = TOO_LARGE
                break
            if before and not word & PREV_IN_USE:
                if words[index] != before:
                    reason = FOOT_DIFFERS
                    break
                if n:
                    entries[n - 1] &= ~<uint64_t>FLAGS
                else:
                    is_used_before = False
            entries[n] = at | (STATE_OWN if chunk == FENCE else STATE_IN_USE)
            firsts[n] = words[index + 2] if at - base + 24 <= size_bytes else 0
            n += 1
            before = chunk
            at += chunk
    return n, at, reason, bool(is_used_before)


def in_use_blocks(
    const uint64_t[::1] entries,
    uint64_t offset,
    uint64_t[::1] starts,
    uint64_t[::1] reaches,
    uint8_t[::1] overheads,
):
    """Fills in the blocks in use among a heap's entries. Returns their number.

    ``offset``: bytes from an entry's address to the program's part of a block, where it starts. A
    block that is not mapped has 8 bytes of the next one's header, if there is one, and reaches to
    where the next one's contents would begin. ``overheads``: bytes of the malloc library in each.
    """
    cdef Py_ssize_t at, n = 0, most = starts.shape[0]
    cdef uint64_t state, header = 8 if offset else 0
    with nogil:
        for at in range(entries.shape[0] - 1):
            state = entries[at] & FLAGS
            if state != STATE_IN_USE and state != STATE_MAPPED or n == most:
                continue
            starts[n] = (entries[at] & ~<uint64_t>FLAGS) + offset
            reaches[n] = entries[at + 1] & ~<uint64_t>FLAGS
            overheads[n] = <uint8_t>offset
            if state == STATE_IN_USE:
                reaches[n] += offset
                overheads[n] = <uint8_t>(offset - header)
            n += 1
    return n


def blocks_between(
    const uint64_t[::1] entries, uint64_t least_bytes, uint64_t most_bytes, int64_t[::1] rows
):
    """Fills in the rows of blocks in use, not mappings, of such sizes. Returns their number."""
    cdef Py_ssize_t at, n = 0
    cdef uint64_t size_bytes
    with nogil:
        for at in range(entries.shape[0] - 1):
            size_bytes = (entries[at + 1] & ~<uint64_t>FLAGS) - (entries[at] & ~<uint64_t>FLAGS)
            rows[n] = at
            n += (
                (size_bytes >= least_bytes)
                & (size_bytes <= most_bytes)
                & ((entries[at] & FLAGS) == STATE_IN_USE)
            )
    return n


def words_within(const uint64_t[::1] words, const uint64_t[:, ::1] ranges, int64_t[::1] rows):
    """Fills in the rows of words that are in address ranges and multiples of 8.

    ``ranges``: start and end, by address. ``rows`` has room for one more than there are words.
    Returns the number of rows.
    """
    cdef Py_ssize_t at, low, n = 0, count = ranges.shape[0]
    cdef const uint64_t* starts = &ranges[0, 0] if count else NULL
    cdef uint64_t word, first = 0, span = 0
    cdef bint is_within = False
    with nogil:
        for at in range(words.shape[0]):
            word = words[at]
            if word - first >= span:  # not the gap or range of the word before
                low = first_above(starts, count, 16, word)
                is_within = low > 0 and word < ranges[low - 1, 1]
                if is_within:
                    first = ranges[low - 1, 0]
                    span = ranges[low - 1, 1] - first
                else:
                    first = ranges[low - 1, 1] if low else 0
                    span = (ranges[low, 0] if low < count else <uint64_t>-1) - first
            rows[n] = at
            n += is_within & (word & 7 == 0)
    return n

cdef struct Far:
    Py_ssize_t row
    uint64_t step_bytes


cdef class PackedEntries:
    """Entries by address: each one's state, and how far it is to the next one, in 8 or 16 bits.

    Longer steps are in a list, by row. The addresses of some rows are kept as well.
    """

    cdef uint8_t* codes
    cdef uint64_t* marks  # the address of each 64th row
    cdef Far* far
    cdef Py_ssize_t count, far_count
    cdef int width, unit_bits
    cdef readonly uint64_t first
    """The address of the first entry."""
    cdef readonly uint64_t last
    """The last entry, with its state."""

    def __cinit__(self, const uint64_t[::1] entries):
        cdef Py_ssize_t at, narrow = 0, wide = 0
        cdef uint64_t step, bits = 0
        cdef uint64_t[2] far  # the least steps that do not fit into a code, by width
        self.count = entries.shape[0]
        if self.count:
            self.first, self.last = entries[0] & ~<uint64_t>FLAGS, entries[self.count - 1]
        with nogil:
            for at in range(self.count - 1):
                bits |= entries[at] ^ entries[at + 1]
            self.unit_bits = 3 if bits & 8 else 4
            far[0], far[1] = 31 << self.unit_bits, 8191 << self.unit_bits
            for at in range(self.count - 1):
                step = (entries[at + 1] & ~<uint64_t>FLAGS) - (entries[at] & ~<uint64_t>FLAGS)
                narrow += step >= far[0]
                wide += step >= far[1]
            self.width = 1 if narrow * sizeof(Far) <= self.count + wide * sizeof(Far) else 2
        far[0] = far[self.width - 1]
        self.codes = <uint8_t*>malloc(self.count * self.width + 1)
        self.marks = <uint64_t*>malloc((self.count // ROWS + 1) * sizeof(uint64_t))
        self.far = <Far*>malloc(((narrow if self.width == 1 else wide) + 1) * sizeof(Far))
        if not self.codes or not self.marks or not self.far:
            raise MemoryError
        with nogil:
            for at in range(self.count):
                step = 0
                if at % ROWS == 0:
                    self.marks[at // ROWS] = entries[at] & ~<uint64_t>FLAGS
                if at < self.count - 1:
                    step = (entries[at + 1] & ~<uint64_t>FLAGS) - (entries[at] & ~<uint64_t>FLAGS)
                if step >= far[0]:
                    self.far[self.far_count].row = at
                    self.far[self.far_count].step_bytes = step
                    self.far_count += 1
                    step = far[0]
                self.set_code(at, step >> self.unit_bits << 3 | entries[at] & FLAGS)

    def __dealloc__(self):
        free(self.codes)
        free(self.marks)
        free(self.far)

    def __len__(self):
        return self.count

    cdef inline void set_code(self, Py_ssize_t row, uint64_t code) noexcept nogil:
        if self.width == 1:
            self.codes[row] = <uint8_t>code
        else:
            (<uint16_t*>self.codes)[row] = <uint16_t>code

    cdef inline uint64_t code(self, Py_ssize_t row) noexcept nogil:
        return self.codes[row] if self.width == 1 else (<uint16_t*>self.codes)[row]

    cdef inline uint64_t step(self, uint64_t code, Py_ssize_t row) noexcept nogil:
        """Returns the bytes from an entry to the next one."""
        code >>= 3
        if code != (31 if self.width == 1 else 8191):
            return code << self.unit_bits
        row = first_above(self.far, self.far_count, sizeof(Far), <uint64_t>row) - 1
        return self.far[row].step_bytes

    def unpack(self, Py_ssize_t row, uint64_t[::1] entries):
        """Fills in the entries from a row on, which is a multiple of 64."""
        cdef Py_ssize_t at
        cdef uint64_t address, code, far = 31 if self.width == 1 else 8191
        cdef const uint8_t* codes = self.codes
        cdef int width = self.width, unit_bits = self.unit_bits
        if row % ROWS or row < 0 or row + entries.shape[0] > self.count:
            raise IndexError(row)
        with nogil:
            address = self.marks[row // ROWS] if entries.shape[0] else 0
            for at in range(entries.shape[0]):
                code = codes[row + at] if width == 1 else (<const uint16_t*>codes)[row + at]
                entries[at] = address | code & FLAGS
                address += code >> 3 << unit_bits if code >> 3 < far else self.step(code, row + at)

    def at(self, const int64_t[::1] rows, uint64_t[::1] entries):
        """Fills in the entries in some rows; negative rows count from the end."""
        cdef Py_ssize_t n, row, at
        cdef uint64_t address
        for n in range(rows.shape[0]):
            row = rows[n] + (self.count if rows[n] < 0 else 0)
            if row < 0 or row >= self.count:
                raise IndexError(row)
            at = row // ROWS
            address = self.marks[at]
            for at in range(at * ROWS, row):
                address += self.step(self.code(at), at)
            entries[n] = address | self.code(row) & FLAGS

    cdef Py_ssize_t seek(self, uint64_t wanted, uint64_t* before, uint64_t* found) noexcept nogil:
        """Returns the row of the first entry that is not below another; also finds both entries.

        If it is in the first or behind the last row, there are no such entries.
        """
        cdef Py_ssize_t low
        cdef uint64_t address, code
        if not self.count or wanted <= self.first or wanted > self.last:
            return 0 if wanted <= self.first else self.count
        low = first_above(self.marks, (self.count + ROWS - 1) // ROWS, 8, wanted - 1) - 1
        address, low = self.marks[low], low * ROWS
        code = self.code(low)
        found[0] = before[0] = address | code & FLAGS
        while low < self.count - 1 and found[0] < wanted:
            address += self.step(code, low)
            low += 1
            code = self.code(low)
            before[0], found[0] = found[0], address | code & FLAGS
        return low

    def place(self, const uint64_t[::1] entries, int64_t[::1] rows):
        """Fills in, for each of some entries, the row of the first one that is not below it."""
        cdef Py_ssize_t n
        cdef uint64_t before, found
        with nogil:
            for n in range(entries.shape[0]):
                rows[n] = self.seek(entries[n], &before, &found)

    def around(
        self, const uint64_t[::1] addresses, uint64_t[::1] entries, uint64_t[::1] following
    ):
        """Fills in, for each address, the entry up to which it is, and the next one; 0: none."""
        cdef Py_ssize_t n, row
        with nogil:
            for n in range(addresses.shape[0]):
                row = self.seek((addresses[n] | FLAGS) + 1, &entries[n], &following[n])
                if not 0 < row < self.count:
                    entries[n] = following[n] = 0

    def set_states(self, const int64_t[::1] rows, int state):
        cdef Py_ssize_t n
        for n in range(rows.shape[0]):
            if not 0 <= rows[n] < self.count:
                raise IndexError(rows[n])
            self.set_code(rows[n], self.code(rows[n]) & ~<uint64_t>FLAGS | <uint64_t>(state & FLAGS))


def find_common(const uint64_t[::1] values, const uint64_t[::1] others, uint8_t[::1] found):
    """Fills in which values are also in ``others``; both arrays ascend."""
    cdef Py_ssize_t at, other = 0
    with nogil:
        for at in range(values.shape[0]):
            while other < others.shape[0] and others[other] < values[at]:
                other += 1
            found[at] = other < others.shape[0] and others[other] == values[at]


MOST_PAGE_BLOCKS = PAGE_BLOCKS
MARK_ROWS = ROWS


cdef class ArenaTally:
    """Sums up the entries of an arena, which come in order, some at a time.

    By state, in the order of ``BlockState``: the number of entries, their bytes, and the resident
    ones. ``trimmable_bytes``: whole resident pages in runs of free chunks, less the headers that
    malloc_trim(3) keeps (``mtrim`` and ``systrim`` in malloc/malloc.c).
    """

    cdef readonly list counts, sums, resident
    cdef readonly uint64_t trimmable_bytes
    cdef const uint64_t[::1] starts, ends
    cdef Py_ssize_t run  # the first resident run that ends behind what has been summed up
    cdef bint trims_top
    cdef uint64_t free_from  # the address of a run of free chunks; 0: there is none
    # The page that is looked at: its blocks in use that begin there.
    cdef uint64_t page, used_bytes
    cdef Py_ssize_t here
    cdef uint64_t begins[PAGE_BLOCKS]
    cdef uint64_t lengths[PAGE_BLOCKS]
    cdef uint64_t last_end

    def __cinit__(self, const uint64_t[::1] starts, const uint64_t[::1] ends, bint trims_top):
        """``starts``, ``ends``: of resident memory. ``trims_top``: malloc_trim(3) cuts the top."""
        self.starts, self.ends, self.trims_top = starts, ends, trims_top
        self.counts, self.sums, self.resident = [0] * 8, [0] * 8, [0] * 8

    cdef uint64_t resident_in(self, uint64_t start, uint64_t end, Py_ssize_t run) noexcept nogil:
        cdef uint64_t found = 0
        while run < self.starts.shape[0] and self.starts[run] < end:
            if self.ends[run] > start:
                found += min(end, self.ends[run]) - max(start, self.starts[run])
            run += 1
        return found

    cdef Py_ssize_t run_at(self, uint64_t address) noexcept nogil:
        """Returns the index of the first run that ends behind an address."""
        cdef Py_ssize_t count = self.ends.shape[0]
        return first_above(&self.ends[0] if count else NULL, count, 8, address)

    cdef void end_free(self, uint64_t end, bint is_top) noexcept nogil:
        cdef uint64_t first
        if self.free_from and (self.trims_top or not is_top):
            first = (self.free_from + (TRIM_TOP if is_top else TRIM_HEADER) + PAGE - 1) & ~(PAGE - 1)
            end &= ~(PAGE - 1)
            if end > first:
                self.trimmable_bytes += self.resident_in(first, end, self.run_at(first))
        self.free_from = 0

    def add(self, const uint64_t[::1] entries, uint64_t[::1] blocks, uint64_t[::1] sizes,
            double[::1] kept):
        """Adds entries; the last one only ends the one before, and begins what comes next.

        Fills in the blocks in use that keep nearly empty pages, their sizes, and the free bytes
        that each keeps: those of a page are divided among its blocks. Returns their number.
        There is room for as many as there are entries, and ``PAGE_BLOCKS`` more.
        """
        cdef Py_ssize_t at, n = 0
        cdef uint64_t start, end, state
        cdef int64_t counts[8]
        cdef int64_t sums[8]
        cdef int64_t resident[8]
        memset(counts, 0, sizeof(counts))
        memset(sums, 0, sizeof(sums))
        memset(resident, 0, sizeof(resident))
        with nogil:
            for at in range(entries.shape[0] - 1):
                start, state = entries[at] & ~<uint64_t>FLAGS, entries[at] & FLAGS
                end = start if state == STATE_END else entries[at + 1] & ~<uint64_t>FLAGS
                counts[state] += 1
                sums[state] += end - start
                while self.run < self.ends.shape[0] and self.ends[self.run] <= start:
                    self.run += 1
                resident[state] += self.resident_in(start, end, self.run)
                if state == STATE_FREE or state == STATE_FAST or state == STATE_TOP:
                    if not self.free_from:
                        self.free_from = start
                    if state == STATE_TOP:
                        self.end_free(end, True)
                else:
                    self.end_free(start, False)
                if state == STATE_IN_USE:
                    if start // PAGE != self.page:
                        n = self.close_pages(start // PAGE, blocks, sizes, kept, n)
                    self.here = min(self.here + 1, PAGE_BLOCKS)
                    self.begins[self.here - 1], self.lengths[self.here - 1] = start, end - start
                    self.used_bytes += min(end, (self.page + 1) * PAGE) - start
                    self.last_end = end
            at = entries.shape[0] - 1
            if entries[at] & FLAGS == STATE_END:
                self.end_free(entries[at] & ~<uint64_t>FLAGS, False)
        for at in range(8):
            self.counts[at] += counts[at]
            self.sums[at] += sums[at]
            self.resident[at] += resident[at]
        return n

    def finish(self, uint64_t[::1] blocks, uint64_t[::1] sizes, double[::1] kept):
        """Ends the arena. Fills in further blocks and returns their number, as ``add`` does."""
        cdef Py_ssize_t n
        with nogil:
            n = self.close_pages(<uint64_t>-1, blocks, sizes, kept, 0)
        return n

    cdef Py_ssize_t close_pages(
        self, uint64_t page, uint64_t[::1] blocks, uint64_t[::1] sizes, double[::1] kept,
        Py_ssize_t n,
    ) noexcept nogil:
        """Ends the current page, and that in which its last block ends, if before ``page``."""
        cdef uint64_t last, address = 0, size_bytes = 0
        cdef bint is_pinned
        while self.used_bytes:
            is_pinned = self.end_page(blocks, sizes, kept, &n)
            last = (self.last_end - 1) // PAGE
            if last == self.page:
                break
            # The block that goes on counts for the page in which it ends, if not for the first.
            address, size_bytes = self.begins[self.here - 1], self.lengths[self.here - 1]
            self.page, self.here = last, 0
            self.used_bytes = self.last_end - last * PAGE
            if not is_pinned:
                self.begins[0], self.lengths[0], self.here = address, size_bytes, 1
            if last == page:
                return n
        self.page, self.here, self.used_bytes = page, 0, 0
        return n

    cdef bint end_page(
        self, uint64_t[::1] blocks, uint64_t[::1] sizes, double[::1] kept, Py_ssize_t* n
    ) noexcept nogil:
        cdef uint64_t start = self.page * PAGE
        cdef Py_ssize_t at
        if self.used_bytes > PAGE // PINNED_PART:
            return False
        if self.resident_in(start, start + PAGE, self.run_at(start)) != PAGE:
            return False
        for at in range(self.here):
            blocks[n[0]], sizes[n[0]] = self.begins[at], self.lengths[at]
            kept[n[0]] = <double>(PAGE - self.used_bytes) / self.here
            n[0] += 1
        return True


cdef class ListReader:
    """Follows lists of free chunks in a process's memory; keeps pages until ``forget``."""

    cdef int memory, pagemap
    cdef uint8_t* pages
    cdef uint64_t* held

    def __cinit__(self, int memory, int pagemap):
        """Takes descriptors of ``/proc/PID/mem`` and ``…/pagemap``, which the caller closes."""
        self.memory, self.pagemap = memory, pagemap
        self.pages = <uint8_t*>malloc(PAGES * PAGE)
        self.held = <uint64_t*>malloc(PAGES * 8)
        if not self.pages or not self.held:
            raise MemoryError
        memset(self.held, 0xFF, PAGES * 8)

    def __dealloc__(self):
        free(self.pages)
        free(self.held)

    def forget(self):
        memset(self.held, 0xFF, PAGES * 8)

    cdef bint word_at(self, uint64_t address, uint64_t* into) noexcept nogil:
        """Reads the word at a multiple of 8; false if it is not in memory."""
        cdef uint64_t page = address >> PAGE_BITS
        cdef Py_ssize_t slot = page % PAGES
        cdef uint64_t about = 0
        if self.held[slot] != page:
            self.held[slot] = <uint64_t>-1
            # Reading a page that is not there would fault it in.
            if pread64(self.pagemap, &about, 8, page * 8) != 8 or not about >> 63:
                return False
            if pread64(self.memory, self.pages + slot * PAGE, PAGE, page * PAGE) != PAGE:
                return False
            self.held[slot] = page
        into[0] = (<uint64_t*>(self.pages + slot * PAGE))[(address & (PAGE - 1)) >> 3]
        return True

    def follow(
        self,
        uint64_t user,
        uint64_t size_bytes,
        bint is_mangled,
        uint64_t to_user,
        uint64_t lowest,
        uint64_t highest,
        uint64_t[::1] found,
    ):
        """Follows one list of free chunks; ``user`` is the address after the first one's header.

        All chunks have ``size_bytes`` (0: any), and lie in ``lowest`` to ``highest``. ``is_mangled``:
        links are xored with their own address shifted by 12 (safe linking, glibc 2.32).
        ``to_user``: from what a link holds to the address after the header. Fills in addresses of
        chunks. Returns (their number, whether the list came to its end).
        """
        cdef Py_ssize_t n = 0
        cdef uint64_t word = 0
        with nogil:
            while user and n < found.shape[0]:
                if user & 15 or user < lowest + 16 or user >= highest:
                    break
                if not self.word_at(user - 8, &word) or word & 8 or not word:
                    break
                if size_bytes and word & ~<uint64_t>FLAGS != size_bytes:
                    break
                found[n] = user - 16
                n += 1
                if not self.word_at(user, &word):
                    break
                if is_mangled:
                    word ^= user >> 12
                user = word + to_user if word else 0
        return n, user == 0

    def follow_links(
        self, uint64_t at, uint64_t lowest, uint64_t highest, uint64_t[::1] found
    ):
        """Follows a list of blocks that begin with the next one's address; see ``follow``."""
        cdef Py_ssize_t n = 0
        cdef uint64_t word = 0
        with nogil:
            while at and n < found.shape[0]:
                if at & 7 or at < lowest or at >= highest or not self.word_at(at, &word):
                    break
                found[n] = at
                n += 1
                at = word
        return n, at == 0
