# cython: language_level=3
"""Rows: the rules at one address that the probes can use, in 64 bits (``probes/row.h``)."""

from libc.stdint cimport int64_t, uint64_t

cdef extern from "<linux/types.h>":
    pass

cdef extern from "row.h":
    enum:
        ROW_SP
        ROW_BP
        ROW_REALIGNED
        ROW_SIGNAL
        ROW_END
        ROW_FRAME_POINTER
        ROW_UNENCODABLE
    enum:
        ROW_REASON_CFA_REGISTER
        ROW_REASON_CFA_EXPRESSION
        ROW_REASON_CFA_OFFSET
        ROW_REASON_RETURN_ADDRESS
        ROW_REASON_SAVED_BP
        ROW_REASON_CALLER_SP
        ROW_REASON_SIGNAL_FRAME
        ROW_REASON_DAMAGED
        ROW_REASON_TOO_LONG
    enum:
        ROW_RA_BESIDE_FP
        ROW_RA_REGISTER
        ROW_RA_ITS_SLOT
    int64_t ROW_ARM_SIGNAL_FP
    int64_t ROW_ARM_SIGNAL_SP
    int64_t ROW_ARM_SIGNAL_PC
    int64_t ROW_BP_UNCHANGED
    int64_t ROW_BP_AT_BP
    int64_t ROW_SIGNAL_BP
    int64_t ROW_SIGNAL_SP
    int64_t ROW_SIGNAL_IP


cdef inline uint64_t pack(int kind, int64_t cfa_offset, int64_t bp_slot) noexcept nogil:
    """Makes a row of its fields, which must fit."""
    return <uint64_t>kind | (<uint64_t>bp_slot & 0xFFFF) << 16 | <uint64_t>cfa_offset << 32


cdef inline uint64_t unencodable(int reason) noexcept nogil:
    """Returns a row that has only the reason why rules cannot be encoded."""
    return <uint64_t>ROW_UNENCODABLE | <uint64_t>reason << 8
