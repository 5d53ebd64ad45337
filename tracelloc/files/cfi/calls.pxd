# cython: language_level=3, cdivision=True
"""Apparent calls in x86-64 and 64-bit Arm code.

Intel SDM volume 2, tables 2-2 and 2-3; Arm Architecture Reference Manual, C4.1, "Branches".
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
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


cdef inline bint is_indirect_call(uint32_t word) noexcept nogil:
    """Whether a branch to a register is blr, or blraa, blraaz, blrab and blrabz, which authenticate their target."""
    cdef uint32_t low = word & 0x1FFFFFF  # below the bits of all branches to registers
    return (
        low & 0x1FFFC1F == 0x3F0000 or low & 0x1FFF81F == 0x3F081F or low & 0x1FFF800 == 0x13F0800
    )


cdef inline Py_ssize_t find_arm_call_ends(
    const uint8_t* code, Py_ssize_t size, uint64_t address, uint64_t start, uint64_t end,
    uint64_t* found,
) noexcept nogil:
    """Stores the address of the last byte of each call, or of data like one. Returns their number.

    Direct calls count only if they lead to addresses from ``start`` up to ``end``.
    """
    cdef Py_ssize_t at = <Py_ssize_t>(-address & 3), count = 0
    cdef uint32_t word
    cdef uint64_t target
    while at + 4 <= size:
        memcpy(&word, code + at, 4)
        if word >> 26 == 0x25:  # bl: signed distance in words
            target = address + <uint64_t>at + <uint64_t>(<int64_t><int32_t>(word << 6) >> 6) * 4
            if target - start < end - start:
                found[count] = address + <uint64_t>at + 3
                count += 1
        elif word >> 25 == 0x6B and is_indirect_call(word):
            found[count] = address + <uint64_t>at + 3
            count += 1
        at += 4
    return count
