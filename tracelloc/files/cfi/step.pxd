# cython: language_level=3, cdivision=True
"""Steps from a frame to its caller by the full rules. DWARF 5, section 6.4.4."""

from libc.stdint cimport uint64_t

from tracelloc.files.cfi.expressions cimport (
    GOES_ON, NO_PROGRESS, OUTERMOST, UNKNOWN_REGISTER, End, Memory, Registers, evaluate, is_known,
    read_word,
)
from tracelloc.files.cfi.machine cimport Machine
from tracelloc.files.cfi.programs cimport (
    NO_RULE, RULE_EXPRESSION, RULE_OFFSET, RULE_REGISTER, RULE_SAME, RULE_UNDEFINED,
    RULE_VAL_EXPRESSION, RULE_VAL_OFFSET, Rule, Rules,
    expression_in,
)


cdef inline void set_register(Registers* registers, uint64_t number, uint64_t value) noexcept nogil:
    registers.values[number] = value
    registers.known |= <uint64_t>1 << number


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
        end = evaluate(expression_in(rule), known, memory, &cfa, value)
        if end == GOES_ON and rule.how == RULE_EXPRESSION:
            end = read_word(memory, value[0], value)
        return end
    return UNKNOWN_REGISTER


cdef inline bint is_unchanged(const Rule* rule) noexcept nogil:
    return rule.how == NO_RULE or rule.how == RULE_SAME


cdef inline bint is_progress(
    const Rules* found, const Rule* address, uint64_t sp, uint64_t caller_sp
) noexcept nogil:
    """Whether the caller is further up the stack.

    A function that uses no stack leaves its caller's stack pointer alone. That happens once: the
    return address was still in a register, which the caller's frame does not restore.
    """
    if found.is_signal or caller_sp > sp:
        return True
    return found.machine.has_link_register and is_unchanged(address) and caller_sp == sp


cdef inline End step(
    const Rules* found, const Registers* known, const Memory* memory, Registers* caller
) noexcept nogil:
    """Computes the caller's known registers, or the reason why there is no caller."""
    cdef const Machine* machine = found.machine
    cdef const Rule* rule = NULL
    cdef uint64_t cfa, value, number
    cdef End end
    if found.return_register < machine.count:
        rule = &found.state.rules[found.return_register]
    if found.is_fallback and is_known(known, machine.fp) and known.values[machine.fp] == 0:
        return OUTERMOST  # AMD64 supplement, section 3.4.1; AAPCS64, section 6.4.6
    if not rule or rule.how == NO_RULE and not machine.has_link_register:
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
    caller.known &= machine.callee_saved
    set_register(caller, machine.sp, cfa)
    for number in range(machine.count):
        if is_unchanged(&found.state.rules[number]) or number == found.return_register:
            continue
        if find_value(&found.state.rules[number], cfa, known, memory, &value) == GOES_ON:
            set_register(caller, number, value)
        else:
            caller.known &= ~(<uint64_t>1 << number)  # may never be needed
    if not is_known(caller, machine.sp):
        return UNKNOWN_REGISTER
    if not (is_unchanged(rule) and machine.has_link_register):
        end = find_value(rule, cfa, known, memory, &value)
        if end != GOES_ON:
            return end
    elif is_known(known, found.return_register):
        value = known.values[found.return_register]
    else:
        return UNKNOWN_REGISTER
    value &= machine.return_address_mask
    if not value:
        return OUTERMOST
    set_register(caller, machine.ip, value)
    return GOES_ON if is_progress(
        found, rule, known.values[machine.sp], caller.values[machine.sp]
    ) else NO_PROGRESS
