# cython: language_level=3, cdivision=True
"""Apparent calls in x86-64 code. Intel SDM volume 2, tables 2-2 and 2-3."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

cdef enum:
    CALL = 0xE8
    GROUP_5 = 0xFF  # with /2 in its ModRM byte: an indirect call


cdef inline int indirect_length(const uint8_t* code) noexcept nogil:
    """Returns the length of an indirect call ``ff /2``; 0 for another instruction."""
    cdef int mode = code[1] >> 6, operand = code[1] & 7
    cdef int length = 2
    if code[1] >> 3 & 7 != 2:
        return 0
    if mode == 1:
        length += 1
    elif mode == 2:
        length += 4
    if mode != 3 and operand == 4:  # a SIB byte
        length += 1
        if mode == 0 and code[2] & 7 == 5:
            length += 4
    elif mode == 0 and operand == 5:
        length += 4
    return length


cdef inline Py_ssize_t find_call_ends(
    const uint8_t* code, Py_ssize_t size, uint64_t address, uint64_t start, uint64_t end,
    uint64_t* found,
) noexcept nogil:
    """Stores the address of the last byte of each apparent call. Returns their number.

    Direct calls count only if they lead to addresses from ``start`` up to ``end``.
    """
    cdef Py_ssize_t at, count = 0
    cdef int32_t distance
    cdef int length
    for at in range(size - 2):
        if code[at] == CALL:
            length = 5
            if at + length > size:
                continue
            memcpy(&distance, code + at + 1, 4)
            if address + <uint64_t>at + 5 + <uint64_t><int64_t>distance - start >= end - start:
                continue
        elif code[at] == GROUP_5:
            length = indirect_length(code + at)
            if not length or at + length > size:
                continue
        else:
            continue
        found[count] = address + <uint64_t>(at + length - 1)
        count += 1
    return count
