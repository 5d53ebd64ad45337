# cython: language_level=3, cdivision=True
"""The entries of ``.eh_frame`` and ``.debug_frame``: CIEs and FDEs.

A CIE (common information entry) holds what many functions share, an FDE (frame description
entry) one function's program. Linux Standard Base Core 5.0, section 10.6; DWARF 5, section
6.4.1. The functions that read one return 0 or an ``enum row_reason``.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memchr

from tracelloc.files.cfi.encoding cimport (
    PE_ALIGNED, PE_APPLICATION, PE_INDIRECT, PE_OMIT, Cursor, give_up, read_fixed, read_pointer,
    read_sleb, read_uleb, read_value, skip,
)
from tracelloc.files.cfi.machine cimport Machine
from tracelloc.files.cfi.row cimport ROW_REASON_DAMAGED, ROW_REASON_TOO_LONG

cdef struct Section:
    const uint8_t* data
    int64_t size
    uint64_t address
    bint is_eh  # tells the two formats apart
    const Machine* machine

cdef struct Cie:  # what the functions of one compiler's output share
    int64_t offset
    uint64_t code_align
    int64_t data_align
    uint64_t return_register
    int pointer_encoding  # of addresses in its FDEs
    bint has_length  # its FDEs' augmentation data starts with its length
    bint is_signal
    int64_t start  # of its program, in bytes from the section's start
    int64_t end

cdef struct Fde:  # one function, or a part of one
    Cie cie
    uint64_t address
    uint64_t size  # of the code
    int64_t start  # of its program, in bytes from the section's start
    int64_t end

cdef struct Entry:
    uint64_t number  # 0 or -1 for a CIE, else it says where the CIE is
    int64_t number_at
    bint is_cie
    Cursor body  # behind the number

cdef enum:
    WIDE = 0xFFFFFFFF  # instead of a length: a length of 8 bytes follows
    FIRST_RESERVED = 0xFFFFFFF0
    LONGEST_AUGMENTATION = 64
    LONGEST_PROGRAM = 1 << 18  # bytes; the longest one in libLLVM-14 has 2,376


cdef inline int read_entry(const Section* section, int64_t at, Entry* entry) noexcept nogil:
    cdef Cursor cursor
    cdef uint64_t length
    cdef bint is_wide, has_wide_number
    if at < 0 or at > section.size - 8:
        return ROW_REASON_DAMAGED
    cursor.data, cursor.at, cursor.end, cursor.is_damaged = section.data, at, section.size, False
    length = read_fixed(&cursor, 4)
    is_wide = length == WIDE
    if is_wide:
        length = read_fixed(&cursor, 8)
    elif length >= FIRST_RESERVED:
        return ROW_REASON_DAMAGED
    if length > <uint64_t>(cursor.end - cursor.at):
        return ROW_REASON_DAMAGED
    cursor.end = cursor.at + <int64_t>length
    entry.number_at = cursor.at
    has_wide_number = is_wide and not section.is_eh
    entry.number = read_fixed(&cursor, 8 if has_wide_number else 4)
    if section.is_eh:
        entry.is_cie = entry.number == 0
    else:
        entry.is_cie = entry.number == (~<uint64_t>0 if is_wide else WIDE)
    entry.body = cursor
    return ROW_REASON_DAMAGED if cursor.is_damaged else 0


cdef inline void read_augmentation(
    const Section* section, Cursor* cursor, const uint8_t* letters, int64_t count, Cie* cie
) noexcept nogil:
    """Reads a CIE's augmentation data by the letters of its string; moves to its program."""
    cdef int64_t end = cursor.end, at, after = -1
    cdef uint64_t length
    cdef int kind
    cdef uint8_t letter
    cie.pointer_encoding, cie.is_signal = 0, False
    cie.has_length = count > 0 and letters[0] == c"z"
    if cie.has_length:
        length = read_uleb(cursor)
        if length > <uint64_t>(end - cursor.at):
            give_up(cursor)
            return
        after = cursor.end = cursor.at + <int64_t>length
    for at in range(1 if cie.has_length else 0, count):
        letter = letters[at]
        if letter == c"S":
            cie.is_signal = True
        elif letter == c"R" or letter == c"L" or letter == c"P":
            kind = <int>read_fixed(cursor, 1)
            if letter == c"R":
                cie.pointer_encoding = kind
            elif letter == c"P" and kind != PE_OMIT:
                if kind & PE_APPLICATION == PE_ALIGNED:
                    skip(cursor, -(section.address + <uint64_t>cursor.at) & 7)
                    kind = 0
                read_value(cursor, kind)
        elif not cie.has_length:
            # Its size is unknown, and so is where the program begins.
            give_up(cursor)
        elif letter != c"B":
            break
    cursor.end = end
    if cursor.is_damaged:
        give_up(cursor)
    elif cie.has_length:
        cursor.at = after


cdef inline int read_cie(const Section* section, int64_t offset, Cie* cie) noexcept nogil:
    cdef Entry entry
    cdef Cursor* cursor = &entry.body
    cdef const uint8_t* letters
    cdef const uint8_t* zero
    cdef int64_t version, count
    cdef int failure = read_entry(section, offset, &entry)
    if failure:
        return failure
    version = <int64_t>read_fixed(cursor, 1)
    if not entry.is_cie or not (version == 1 or version == 3 or version == 4):
        return ROW_REASON_DAMAGED
    letters = section.data + cursor.at
    count = min(cursor.end - cursor.at, <int64_t>LONGEST_AUGMENTATION - 1)
    zero = <const uint8_t*>memchr(letters, 0, <size_t>count)
    if not zero:
        return ROW_REASON_DAMAGED
    count = zero - letters
    skip(cursor, <uint64_t>count + 1)
    if count >= 2 and letters[0] == c"e" and letters[1] == c"h":
        letters += 2
        count -= 2
        skip(cursor, 8)
    if version == 4 and read_fixed(cursor, 2) != 8:  # size of addresses, then of segments
        return ROW_REASON_DAMAGED
    cie.offset = offset
    cie.code_align = read_uleb(cursor)
    cie.data_align = read_sleb(cursor)
    cie.return_register = read_fixed(cursor, 1) if version == 1 else read_uleb(cursor)
    read_augmentation(section, cursor, letters, count, cie)
    cie.start, cie.end = cursor.at, cursor.end
    if cursor.is_damaged:
        return ROW_REASON_DAMAGED
    return ROW_REASON_TOO_LONG if cie.end - cie.start > LONGEST_PROGRAM else 0


cdef inline int read_fde_entry(const Section* section, Entry* entry, Fde* fde) noexcept nogil:
    cdef Cursor* cursor = &entry.body
    cdef uint64_t at = entry.number
    cdef int failure
    if entry.is_cie:
        return ROW_REASON_DAMAGED
    if section.is_eh:
        at = <uint64_t>entry.number_at - entry.number
    failure = read_cie(section, <int64_t>at, &fde.cie)
    if failure:
        return failure
    if fde.cie.pointer_encoding & PE_INDIRECT:
        return ROW_REASON_DAMAGED
    fde.address = read_pointer(cursor, fde.cie.pointer_encoding, section.address, NULL)
    fde.size = read_value(cursor, fde.cie.pointer_encoding)
    if fde.cie.has_length:
        skip(cursor, read_uleb(cursor))
    fde.start, fde.end = cursor.at, cursor.end
    if cursor.is_damaged:
        return ROW_REASON_DAMAGED
    return ROW_REASON_TOO_LONG if fde.end - fde.start > LONGEST_PROGRAM else 0


cdef inline int read_fde(const Section* section, int64_t offset, Fde* fde) noexcept nogil:
    cdef Entry entry
    cdef int failure = read_entry(section, offset, &entry)
    return failure if failure else read_fde_entry(section, &entry, fde)


cdef inline int64_t scan_entries(
    const Section* section, uint64_t* starts, int64_t* offsets, int64_t most
) noexcept nogil:
    """Stores all FDEs that can be decoded and cover code, up to ``most``. Returns their number.

    Stops if the next entry cannot be found.
    """
    cdef int64_t at = 0, count = 0
    cdef Cursor word
    cdef Entry entry
    cdef Fde fde
    while at <= section.size - 8 and count < most:
        word.data, word.at, word.end, word.is_damaged = section.data, at, section.size, False
        if read_fixed(&word, 4) == 0:
            # Ends the table, but linkers may have joined several.
            at = word.at
            continue
        if read_entry(section, at, &entry):
            break
        if not entry.is_cie and not read_fde_entry(section, &entry, &fde) and fde.size:
            starts[count], offsets[count] = fde.address, at
            count += 1
        at = entry.body.end
    return count
