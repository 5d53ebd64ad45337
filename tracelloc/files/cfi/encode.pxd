# cython: language_level=3, cdivision=True
"""Rows: the rules at one address in 64 bits, for the probes. The layout is that of probes/row.h."""

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcmp

from tracelloc.files.cfi.encoding cimport Cursor, read_sleb
from tracelloc.files.cfi.programs cimport (
    NO_RULE, RULE_EXPRESSION, RULE_OFFSET, RULE_SAME, RULE_UNDEFINED, Expression, Rule, Rules,
    State, expression_in,
)
from tracelloc.files.cfi.row cimport (
    ROW_ARM_SIGNAL_FP, ROW_ARM_SIGNAL_PC, ROW_ARM_SIGNAL_SP, ROW_BP, ROW_BP_AT_BP,
    ROW_BP_UNCHANGED, ROW_END, ROW_FRAME_POINTER, ROW_RA_BESIDE_FP, ROW_RA_ITS_SLOT,
    ROW_RA_REGISTER, ROW_REALIGNED, ROW_REASON_CALLER_SP, ROW_REASON_CFA_EXPRESSION,
    ROW_REASON_CFA_OFFSET, ROW_REASON_CFA_REGISTER, ROW_REASON_RETURN_ADDRESS, ROW_REASON_SAVED_BP,
    ROW_REASON_SIGNAL_FRAME, ROW_SIGNAL, ROW_SIGNAL_BP, ROW_SIGNAL_IP, ROW_SIGNAL_SP, ROW_SP, pack,
    unencodable,
)

cdef enum:
    DEREF = 0x06


cdef inline bint is_based(
    Expression expression, int base, bint is_read, int64_t* number
) noexcept nogil:
    """Whether an expression is nothing but ``breg N``, with ``deref`` behind it if ``is_read``."""
    cdef Cursor cursor
    cdef int64_t size = expression.size - is_read
    if size < 2 or expression.code[0] != base or is_read and expression.code[size] != DEREF:
        return False
    cursor.data, cursor.at, cursor.end, cursor.is_damaged = expression.code, 1, size, False
    number[0] = read_sleb(&cursor)
    return cursor.at == size and not cursor.is_damaged


cdef inline bint is_saved(const Rule* rule, int base, int64_t place) noexcept nogil:
    """Whether a rule is the kernel's for a register that a signal frame saves at a place."""
    cdef int64_t number
    return (
        rule.how == RULE_EXPRESSION and is_based(expression_in(rule), base, False, &number)
        and number == place
    )


# x86-64

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


# 64-bit Arm

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


cdef inline uint64_t encode_arm_signal(const State* state) noexcept nogil:
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
    cdef const State* state = &rules.state
    cdef const Rule* address = &state.rules[LR]
    cdef const Rule* fp = &state.rules[FP]
    cdef int kind = ROW_SP, place
    cdef int64_t slot = ROW_BP_UNCHANGED
    if rules.is_fallback:
        return pack(ROW_FRAME_POINTER, 16, -16)
    if rules.is_signal:
        return encode_arm_signal(state)
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


cdef inline uint64_t encode(const Rules* rules, uint64_t at) noexcept nogil:
    """Returns the row for rules at an address; it may only have the reason why there is none."""
    if rules.machine.has_link_register:
        return encode_aarch64(rules)
    return encode_x86_64(rules, at)
