# cython: language_level=3, cdivision=True
"""Steps from a frame to its caller by the full rules. DWARF 5, section 6.4.4."""

from libc.stdint cimport uint64_t

from tracelloc.files.cfi.expressions cimport (
    GOES_ON, NO_PROGRESS, OUTERMOST, UNKNOWN_REGISTER, End, Memory, Registers, evaluate, is_known,
    read_word,
)
from tracelloc.files.cfi.programs cimport (
    NO_RULE, RBP, REGISTERS, RIP, RSP, RULE_EXPRESSION, RULE_OFFSET, RULE_REGISTER, RULE_SAME,
    RULE_UNDEFINED, RULE_VAL_EXPRESSION, RULE_VAL_OFFSET, Rule, Rules,
)

cdef enum:
    CALLEE_SAVED = 1 << 3 | 1 << 6 | 1 << 12 | 1 << 13 | 1 << 14 | 1 << 15  # AMD64, figure 3.4


cdef inline void set_register(Registers* registers, uint64_t number, uint64_t value) noexcept nogil:
    registers.values[number] = value
    registers.known |= 1 << number


cdef inline End find_value(
    const Rule* rule, uint64_t cfa, const Registers* known, const Memory* memory, uint64_t* value
) noexcept nogil:
    """Finds a register's value in the caller, or the reason why it is unknown."""
    cdef End end
    if rule.how == RULE_OFFSET:
        return read_word(memory, cfa + <uint64_t>rule.number, value)
    if rule.how == RULE_VAL_OFFSET:
        value[0] = cfa + <uint64_t>rule.number
        return GOES_ON
    if rule.how == RULE_REGISTER and is_known(known, <uint64_t>rule.number):
        value[0] = known.values[rule.number]
        return GOES_ON
    if rule.how == RULE_EXPRESSION or rule.how == RULE_VAL_EXPRESSION:
        end = evaluate(rule.expression, known, memory, &cfa, value)
        if end == GOES_ON and rule.how == RULE_EXPRESSION:
            end = read_word(memory, value[0], value)
        return end
    return UNKNOWN_REGISTER


cdef inline End step(
    const Rules* found, const Registers* known, const Memory* memory, Registers* caller
) noexcept nogil:
    """Computes the caller's known registers, or the reason why there is no caller."""
    cdef const Rule* rule = NULL
    cdef uint64_t cfa, value, number
    cdef End end
    if found.return_register < REGISTERS:
        rule = &found.state.rules[found.return_register]
    if found.is_fallback and is_known(known, RBP) and known.values[RBP] == 0:
        return OUTERMOST  # AMD64 supplement, section 3.4.1
    if not rule or rule.how == NO_RULE:
        return UNKNOWN_REGISTER
    if rule.how == RULE_UNDEFINED:
        return OUTERMOST
    if found.state.cfa_expression.size:
        end = evaluate(found.state.cfa_expression, known, memory, NULL, &cfa)
        if end != GOES_ON:
            return end
    elif not is_known(known, found.state.cfa_register):
        return UNKNOWN_REGISTER
    else:
        cfa = known.values[found.state.cfa_register] + <uint64_t>found.state.cfa_offset
    caller[0] = known[0]
    caller.known &= CALLEE_SAVED
    set_register(caller, RSP, cfa)
    for number in range(REGISTERS):
        if found.state.rules[number].how == NO_RULE or found.state.rules[number].how == RULE_SAME \
                or number == found.return_register:
            continue
        if find_value(&found.state.rules[number], cfa, known, memory, &value) == GOES_ON:
            set_register(caller, number, value)
        else:
            caller.known &= ~(1 << number)  # may never be needed
    if not is_known(caller, RSP):
        return UNKNOWN_REGISTER
    end = find_value(rule, cfa, known, memory, &value)
    if end != GOES_ON:
        return end
    if not value:
        return OUTERMOST
    set_register(caller, RIP, value)
    if caller.values[RSP] <= known.values[RSP] and not found.is_signal:
        return NO_PROGRESS
    return GOES_ON
