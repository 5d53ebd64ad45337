# cython: language_level=3, cdivision=True
"""Rows of 64-bit Arm: the rules at one address in 64 bits. The layout is that of probes/row.h."""

from libc.stdint cimport int64_t, uint64_t

from tracelloc.files.cfi.programs cimport (
    NO_RULE, RULE_OFFSET, RULE_SAME, RULE_UNDEFINED, Rule, Rules, State,
)
from tracelloc.files.cfi.registerplaces cimport is_based, is_saved
from tracelloc.files.cfi.row cimport (
    ROW_ARM_SIGNAL_FP, ROW_ARM_SIGNAL_PC, ROW_ARM_SIGNAL_SP, ROW_BP, ROW_BP_UNCHANGED, ROW_END,
    ROW_FRAME_POINTER, ROW_RA_BESIDE_FP, ROW_RA_ITS_SLOT, ROW_RA_REGISTER,
    ROW_REASON_CALLER_SP, ROW_REASON_CFA_EXPRESSION, ROW_REASON_CFA_OFFSET,
    ROW_REASON_CFA_REGISTER, ROW_REASON_RETURN_ADDRESS, ROW_REASON_SAVED_BP,
    ROW_REASON_SIGNAL_FRAME, ROW_SIGNAL, ROW_SP, pack, unencodable,
)

cdef enum:
    FP = 29
    LR = 30
    SP = 31
    PC = 32
    BREG_SP = 0x70 + 31


cdef inline bint is_unsaved(const Rule* rule) noexcept nogil:
    return rule.how == NO_RULE or rule.how == RULE_SAME


cdef inline bint is_slot(const Rule* rule) noexcept nogil:
    """Whether a register is saved at a distance from the CFA that fits into a row."""
    return (
        rule.how == RULE_OFFSET and rule.number and rule.number % 8 == 0
        and -(1 << 15) <= rule.number // 8 < 1 << 15
    )


cdef inline uint64_t encode_signal(const State* state) noexcept nogil:
    """Returns the row of a signal frame, if it has the kernel's layout, which probes know."""
    cdef int64_t number
    if (
        is_based(state.cfa_expression, BREG_SP, True, &number) and number == ROW_ARM_SIGNAL_SP
        and is_saved(&state.rules[FP], BREG_SP, ROW_ARM_SIGNAL_FP)
        and is_saved(&state.rules[PC], BREG_SP, ROW_ARM_SIGNAL_PC)
    ):
        return pack(ROW_SIGNAL, ROW_ARM_SIGNAL_SP, ROW_ARM_SIGNAL_FP)
    return unencodable(ROW_REASON_SIGNAL_FRAME)


cdef inline int return_place(const Rule* address, const Rule* fp) noexcept nogil:
    """Returns where the return address is, an enum row_ra; -1: no row can say that."""
    if is_unsaved(address):
        return ROW_RA_REGISTER
    if address.how != RULE_OFFSET:
        return -1
    if is_unsaved(fp):
        return ROW_RA_ITS_SLOT if is_slot(address) else -1
    if address.number == fp.number + 8:
        return ROW_RA_BESIDE_FP
    return -1


cdef inline uint64_t encode_aarch64(const Rules* rules) noexcept nogil:
    """Returns the row for some rules; it may only have the reason why there is none."""
    cdef const State* state = &rules.state
    cdef const Rule* address = &state.rules[LR]
    cdef const Rule* fp = &state.rules[FP]
    cdef int kind = ROW_SP, place
    cdef int64_t slot = ROW_BP_UNCHANGED
    if rules.is_fallback:
        return pack(ROW_FRAME_POINTER, 16, -16)
    if rules.is_signal:
        return encode_signal(state)
    if rules.return_register != LR:
        return unencodable(ROW_REASON_RETURN_ADDRESS)
    if address.how == RULE_UNDEFINED:
        return pack(ROW_END, 0, 0)
    if state.cfa_expression.size:
        return unencodable(ROW_REASON_CFA_EXPRESSION)
    if state.cfa_register == FP:
        kind = ROW_BP
    elif state.cfa_register != SP:
        return unencodable(ROW_REASON_CFA_REGISTER)
    if not -(<int64_t>1 << 31) <= state.cfa_offset < <int64_t>1 << 31:
        return unencodable(ROW_REASON_CFA_OFFSET)
    if state.rules[SP].how != NO_RULE:
        return unencodable(ROW_REASON_CALLER_SP)
    if not is_unsaved(fp) and not is_slot(fp):
        return unencodable(ROW_REASON_SAVED_BP)
    place = return_place(address, fp)
    if place < 0:
        return unencodable(ROW_REASON_RETURN_ADDRESS)
    if place == ROW_RA_ITS_SLOT:
        slot = address.number // 8
    elif not is_unsaved(fp):
        slot = fp.number // 8
    return pack(kind | place << 4, state.cfa_offset, slot)
