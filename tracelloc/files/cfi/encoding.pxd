# cython: language_level=3, cdivision=True
"""Numbers and pointers as call-frame information writes them. No read goes beyond its cursor's end.

LEB128: DWARF 5, section 7.6. Pointer encodings (``DW_EH_PE_*``): Linux Standard Base Core 5.0,
section 10.5. Numbers are taken modulo 2**64, as addresses are.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef struct Cursor:
    const uint8_t* data
    int64_t at
    int64_t end
    bint is_damaged  # something made no sense; then the cursor is at its end

cdef enum:
    LONGEST_LEB = 16  # bytes; ten hold 64 bits, and assemblers pad a little
    PE_OMIT = 0xFF
    PE_INDIRECT = 0x80  # the target holds the value: only the running program knows it
    PE_ABSOLUTE = 0x00
    PE_PCREL = 0x10
    PE_DATAREL = 0x30
    PE_ALIGNED = 0x50
    PE_APPLICATION = 0x70


cdef inline uint64_t give_up(Cursor* cursor) noexcept nogil:
    """Marks the data as damaged, and ends the reading."""
    cursor.is_damaged, cursor.at = True, cursor.end
    return 0


cdef inline void skip(Cursor* cursor, uint64_t count) noexcept nogil:
    if count > <uint64_t>(cursor.end - cursor.at):
        give_up(cursor)
    else:
        cursor.at += <int64_t>count


cdef inline uint64_t read_fixed(Cursor* cursor, int size) noexcept nogil:
    """Reads an unsigned little-endian number of ``size`` bytes."""
    cdef uint64_t value = 0
    if size > cursor.end - cursor.at:
        return give_up(cursor)
    memcpy(&value, cursor.data + cursor.at, <size_t>size)
    cursor.at += size
    return value


cdef inline uint64_t read_leb(Cursor* cursor, bint is_signed) noexcept nogil:
    cdef uint64_t value = 0
    cdef uint32_t shift = 0
    cdef uint8_t byte
    while cursor.at < cursor.end and shift < 7 * LONGEST_LEB:
        byte = cursor.data[cursor.at]
        cursor.at += 1
        if shift < 64:
            value |= <uint64_t>(byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            if is_signed and byte & 0x40 and shift < 64:
                value |= ~<uint64_t>0 << shift
            return value
    return give_up(cursor)


cdef inline uint64_t read_uleb(Cursor* cursor) noexcept nogil:
    return read_leb(cursor, False)


cdef inline int64_t read_sleb(Cursor* cursor) noexcept nogil:
    return <int64_t>read_leb(cursor, True)


cdef inline uint64_t read_value(Cursor* cursor, int encoding) noexcept nogil:
    """Reads a number in the format of a pointer encoding, relative to nothing."""
    cdef int form = encoding & 0x0F
    if form == 0x01 or form == 0x09:
        return read_leb(cursor, form == 0x09)
    if form == 0x00 or form == 0x04 or form == 0x08 or form == 0x0C:
        return read_fixed(cursor, 8)
    if form == 0x02:
        return read_fixed(cursor, 2)
    if form == 0x03:
        return read_fixed(cursor, 4)
    if form == 0x0A:
        return <uint64_t><int64_t><int16_t>read_fixed(cursor, 2)
    if form == 0x0B:
        return <uint64_t><int64_t><int32_t>read_fixed(cursor, 4)
    return give_up(cursor)


cdef inline uint64_t read_pointer(
    Cursor* cursor, int encoding, uint64_t address, const uint64_t* base
) noexcept nogil:
    """Reads an address. Pointers to pointers are read, not followed.

    ``address`` is where the cursor's data starts in the file's address space, ``base`` what
    data-relative pointers are relative to; NULL: there are none.
    """
    cdef int application = encoding & PE_APPLICATION
    cdef uint64_t start
    if application == PE_ALIGNED:
        skip(cursor, -(address + <uint64_t>cursor.at) & 7)
        return read_fixed(cursor, 8)
    start = address + <uint64_t>cursor.at
    if application == PE_ABSOLUTE:
        return read_value(cursor, encoding)
    if application == PE_PCREL:
        return read_value(cursor, encoding) + start
    if application == PE_DATAREL and base:
        return read_value(cursor, encoding) + base[0]
    return give_up(cursor)
