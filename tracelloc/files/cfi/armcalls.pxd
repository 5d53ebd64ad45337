# cython: language_level=3, cdivision=True
"""Calls in 64-bit Arm code. Arm Architecture Reference Manual, section C4.1, "Branches"."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy


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
