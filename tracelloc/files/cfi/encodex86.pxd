# cython: language_level=3, cdivision=True
"""Rows of x86-64: the rules at one address in 64 bits. The layout is that of probes/row.h."""

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcmp

from tracelloc.files.cfi.programs cimport (
    NO_RULE, RULE_EXPRESSION, RULE_OFFSET, RULE_SAME, RULE_UNDEFINED, Expression, Rule, Rules,
    State, expression_in,
)
from tracelloc.files.cfi.registerplaces cimport is_based, is_saved
from tracelloc.files.cfi.row cimport (
    ROW_BP, ROW_BP_AT_BP, ROW_BP_UNCHANGED, ROW_END, ROW_FRAME_POINTER, ROW_REALIGNED, ROW_REASON_CALLER_SP,
    ROW_REASON_CFA_EXPRESSION, ROW_REASON_CFA_OFFSET, ROW_REASON_CFA_REGISTER,
    ROW_REASON_RETURN_ADDRESS, ROW_REASON_SAVED_BP, ROW_REASON_SIGNAL_FRAME, ROW_SIGNAL,
    ROW_SIGNAL_BP, ROW_SIGNAL_IP, ROW_SIGNAL_SP, ROW_SP, pack, unencodable,
)

cdef enum:
    RBP = 6
    RSP = 7
    COUNT = 17  # of registers with rules
    LIT0 = 0x30
    BREG_RBP = 0x76
    BREG_RSP = 0x77
    PLT_SIZE = 11  # bytes


cdef inline bint is_plt(Expression expression) noexcept nogil:
    """Whether the CFA is found as in a PLT that linkers write.

    breg7 N; breg16 0; lit15; and; litM; ge; lit3; shl; plus: rsp + N, and 8 more if the low
    four bits of rip reach M.
    """
    cdef const uint8_t* code = expression.code
    return (
        expression.size == PLT_SIZE and code[0] == BREG_RSP and code[1] < 0x40
        and memcmp(code + 2, b"\x80\x00\x3f\x1a", 4) == 0 and LIT0 <= code[6] < LIT0 + 16
        and memcmp(code + 7, b"\x2a\x33\x24\x22", 4) == 0
    )


cdef inline uint64_t encode_signal(const State* state, const Rule* address) noexcept nogil:
    """Returns the row of a signal frame, if it has the kernel's layout, which probes know."""
    cdef const Rule* sp = &state.rules[RSP]
    cdef int64_t number
    if (
        is_based(state.cfa_expression, BREG_RSP, True, &number) and number == ROW_SIGNAL_SP
        and is_saved(&state.rules[RBP], BREG_RSP, ROW_SIGNAL_BP)
        and is_saved(address, BREG_RSP, ROW_SIGNAL_IP)
        and (sp.how == NO_RULE or is_saved(sp, BREG_RSP, ROW_SIGNAL_SP))
    ):
        return pack(ROW_SIGNAL, ROW_SIGNAL_SP, ROW_SIGNAL_BP)
    return unencodable(ROW_REASON_SIGNAL_FRAME)


cdef inline uint64_t encode_x86_64(const Rules* rules, uint64_t at) noexcept nogil:
    """Returns the row for rules at an address; it may only have the reason why there is none."""
    cdef const State* state = &rules.state
    cdef Rule none
    cdef const Rule* address = &none
    cdef const Rule* bp = &state.rules[RBP]
    cdef int64_t offset = state.cfa_offset, slot = ROW_BP_UNCHANGED, number
    cdef int kind
    none.how = NO_RULE
    if rules.is_fallback:
        return pack(ROW_FRAME_POINTER, 16, -16)
    if rules.return_register < COUNT:
        address = &state.rules[rules.return_register]
    if address.how == RULE_UNDEFINED:
        return pack(ROW_END, 0, 0)
    if rules.is_signal:
        return encode_signal(state, address)
    if is_plt(state.cfa_expression):
        kind, offset = ROW_SP, state.cfa_expression.code[1]
        if <int>(at & 15) >= state.cfa_expression.code[6] - LIT0:
            offset += 8
    elif state.cfa_expression.size:
        kind = ROW_REALIGNED
        if not is_based(state.cfa_expression, BREG_RBP, True, &offset):
            return unencodable(ROW_REASON_CFA_EXPRESSION)
    elif state.cfa_register == RSP:
        kind = ROW_SP
    elif state.cfa_register == RBP:
        kind = ROW_BP
    else:
        return unencodable(ROW_REASON_CFA_REGISTER)
    if not -(<int64_t>1 << 31) <= offset < <int64_t>1 << 31:
        return unencodable(ROW_REASON_CFA_OFFSET)
    if address.how != RULE_OFFSET or address.number != -8:
        return unencodable(ROW_REASON_RETURN_ADDRESS)
    if state.rules[RSP].how != NO_RULE:
        return unencodable(ROW_REASON_CALLER_SP)
    if bp.how == RULE_EXPRESSION and bp.size == 2 \
            and is_based(expression_in(bp), BREG_RBP, False, &number) and number == 0:
        slot = ROW_BP_AT_BP
    elif bp.how == RULE_OFFSET and bp.number % 2 == 0 and bp.number \
            and -(1 << 15) <= bp.number < 1 << 15:
        # An odd place would be mistaken for ROW_BP_AT_BP, and no compiler chooses one.
        slot = bp.number
    elif bp.how != NO_RULE and bp.how != RULE_SAME:
        return unencodable(ROW_REASON_SAVED_BP)
    return pack(kind, offset, slot)
