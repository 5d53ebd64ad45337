# cython: language_level=3, cdivision=True
"""Running the programs of call-frame information. DWARF 5, sections 6.4.2 and 6.4.3.

Where the standard leaves a choice, this module follows libgcc (unwind-dw2.c), which throws
the programs' own exceptions.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from tracelloc.files.cfi.encoding cimport (
    PE_INDIRECT, Cursor, give_up, read_fixed, read_pointer, read_sleb, read_uleb, skip,
)
from tracelloc.files.cfi.entries cimport Cie, Fde, Section
from tracelloc.files.cfi.machine cimport REGISTERS, Machine
from tracelloc.files.cfi.row cimport ROW_REASON_DAMAGED

cdef extern from *:
    ctypedef unsigned long long uint128_t "unsigned __int128"

cdef enum:
    MOST_REMEMBERED = 256  # states; compilers nest them three deep

cdef enum How:  # a register's value in the caller is found
    NO_RULE  # no rule at all
    RULE_UNDEFINED  # nowhere: it is gone; for the return address: there is no caller
    RULE_SAME  # it is still in the register
    RULE_OFFSET  # in memory, `number` bytes from the CFA
    RULE_VAL_OFFSET  # it is the CFA plus `number`
    RULE_REGISTER  # in the register of that `number`
    RULE_EXPRESSION  # in memory, where the expression says
    RULE_VAL_EXPRESSION  # it is the result of the expression

cdef struct Expression:  # DWARF operations; of 0 bytes: none
    const uint8_t* code
    int64_t size

cdef struct Rule:  # small: there are many states, and each has a rule per register
    int64_t number  # for an expression, its address
    int size  # of the expression
    int how

cdef struct State:
    uint64_t cfa_register
    int64_t cfa_offset
    Expression cfa_expression
    bint is_signed  # the return address has an authentication code
    Rule rules[REGISTERS]

cdef struct Rules:  # at one address
    const Machine* machine
    State state
    uint64_t return_register  # whose rule is that of the return address
    bint is_signal  # the caller was interrupted: its address is not behind a call
    bint is_fallback  # nothing is known about this code; these are those of a frame pointer

cdef struct Program:  # of an FDE while it runs
    const Section* section
    const Fde* fde
    const State* initial  # the state after its CIE's program
    State* remembered  # room for MOST_REMEMBERED
    int depth
    Cursor code
    uint64_t next_location  # in bytes from the function's start
    bint is_over  # the state holds from there on
    Rules rules


cdef inline void begin_state(State* state) noexcept nogil:
    memset(state, 0, sizeof(State))
    state.cfa_register = ~<uint64_t>0


cdef inline Expression expression_in(const Rule* rule) noexcept nogil:
    cdef Expression found
    found.code, found.size = <const uint8_t*>rule.number, rule.size
    return found


cdef inline void set_expression(Rule* rule, int how, Expression expression) noexcept nogil:
    rule.how, rule.number = how, <int64_t>expression.code
    rule.size = <int>expression.size


cdef inline void begin_program(
    Program* program, const Section* section, const Fde* fde, const State* initial,
    State* remembered,
) noexcept nogil:
    """Initializes a program, of which no instruction has run yet."""
    program.section, program.fde, program.initial = section, fde, initial
    program.remembered, program.depth = remembered, 0
    program.code.data, program.code.at, program.code.end = section.data, fde.start, fde.end
    program.code.is_damaged, program.is_over = False, False
    program.next_location = 0
    program.rules.machine = section.machine
    program.rules.state = initial[0]
    program.rules.return_register = fde.cie.return_register
    program.rules.is_signal, program.rules.is_fallback = fde.cie.is_signal, False


cdef inline void advance(Program* program, int operation) noexcept nogil:
    cdef const Fde* fde = program.fde
    cdef uint64_t target, delta, location = program.next_location
    cdef uint128_t step
    if operation & 0xC0:
        delta = operation & 0x3F
    elif operation == 0x02:
        delta = read_fixed(&program.code, 1)
    elif operation == 0x03:
        delta = read_fixed(&program.code, 2)
    elif operation == 0x04:
        delta = read_fixed(&program.code, 4)
    elif operation == 0x1D:  # MIPS_advance_loc8
        delta = read_fixed(&program.code, 8)
    else:  # set_loc
        target = read_pointer(
            &program.code, fde.cie.pointer_encoding, program.section.address, NULL
        ) - fde.address
        if fde.cie.pointer_encoding & PE_INDIRECT or target + fde.address < fde.address:
            give_up(&program.code)
        if target < location:
            give_up(&program.code)
        delta = (target - location) // (fde.cie.code_align or 1)
    step = <uint128_t>delta * fde.cie.code_align
    if step > ~<uint64_t>0 - location:
        program.is_over = True
    else:
        program.next_location = location + <uint64_t>step


cdef inline Expression read_expression(Cursor* code) noexcept nogil:
    """Reads a DWARF expression with its length in front."""
    cdef Expression found
    cdef uint64_t size = read_uleb(code)
    found.code, found.size = code.data + code.at, <int64_t>size
    if size == 0:
        give_up(code)
    skip(code, size)
    return found


cdef inline void set_rule(Program* program, int operation) noexcept nogil:
    """Executes an instruction that gives a register a rule, or makes no sense."""
    cdef Cursor* code = &program.code
    cdef int64_t align = program.fde.cie.data_align
    cdef uint64_t register_ = read_uleb(code)
    cdef Rule rule
    memset(&rule, 0, sizeof(rule))
    if operation == 0x05:  # offset_extended
        rule.how, rule.number = RULE_OFFSET, <int64_t>(read_uleb(code) * <uint64_t>align)
    elif operation == 0x07:
        rule.how = RULE_UNDEFINED
    elif operation == 0x08:  # same_value
        rule.how = RULE_SAME
    elif operation == 0x09:
        rule.how, rule.number = RULE_REGISTER, <int64_t>read_uleb(code)
    elif operation == 0x10:
        set_expression(&rule, RULE_EXPRESSION, read_expression(code))
    elif operation == 0x11:  # offset_extended_sf
        rule.how, rule.number = RULE_OFFSET, <int64_t>(<uint64_t>read_sleb(code) * <uint64_t>align)
    elif operation == 0x14:
        rule.how, rule.number = RULE_VAL_OFFSET, <int64_t>(read_uleb(code) * <uint64_t>align)
    elif operation == 0x15:  # val_offset_sf
        rule.how, rule.number = RULE_VAL_OFFSET, <int64_t>(<uint64_t>read_sleb(code) * <uint64_t>align)
    elif operation == 0x16:
        set_expression(&rule, RULE_VAL_EXPRESSION, read_expression(code))
    elif operation == 0x2F:  # GNU_negative_offset_extended
        rule.how, rule.number = RULE_OFFSET, <int64_t>-(read_uleb(code) * <uint64_t>align)
    else:
        give_up(code)
    if register_ < REGISTERS:
        program.rules.state.rules[register_] = rule


cdef inline void set_cfa(Program* program, int operation) noexcept nogil:
    """Executes an instruction for the CFA, or passes on other instructions."""
    cdef Cursor* code = &program.code
    cdef State* state = &program.rules.state
    cdef uint64_t align = <uint64_t>program.fde.cie.data_align
    if operation == 0x0C or operation == 0x0D or operation == 0x12:
        state.cfa_register = read_uleb(code)
        state.cfa_expression.size = 0
    if operation == 0x0C or operation == 0x0E:  # def_cfa, def_cfa_offset
        state.cfa_offset = <int64_t>read_uleb(code)
    elif operation == 0x12 or operation == 0x13:  # the ones with _sf
        state.cfa_offset = <int64_t>(<uint64_t>read_sleb(code) * align)
    elif operation == 0x0F:  # def_cfa_expression
        state.cfa_expression = read_expression(code)
    elif operation == 0x2E:  # GNU_args_size: how much a landing pad pops
        read_uleb(code)
    elif operation != 0x0D:  # def_cfa_register
        set_rule(program, operation)


cdef inline int run_piece(Program* program) noexcept nogil:
    """Runs a program to the next change of location. Returns a reason or 0."""
    cdef Cursor* code = &program.code
    cdef State* state = &program.rules.state
    cdef uint64_t number
    cdef int operation, high
    while code.at < code.end:
        operation = code.data[code.at]
        code.at += 1
        high = operation & 0xC0
        if high == 0x40 or 0x02 <= operation <= 0x04 or operation == 0x01 or operation == 0x1D:
            advance(program, operation)
            return ROW_REASON_DAMAGED if code.is_damaged else 0
        if high == 0x80:  # offset
            number = read_uleb(code) * <uint64_t>program.fde.cie.data_align
            if operation & 0x3F < REGISTERS:
                memset(&state.rules[operation & 0x3F], 0, sizeof(Rule))
                state.rules[operation & 0x3F].how = RULE_OFFSET
                state.rules[operation & 0x3F].number = <int64_t>number
        elif high == 0xC0 or operation == 0x06:  # restore, restore_extended
            number = operation & 0x3F if high else read_uleb(code)
            if number < REGISTERS:
                state.rules[number] = program.initial.rules[number]
        elif operation == 0x0A:  # remember_state
            if program.depth == MOST_REMEMBERED:
                return ROW_REASON_DAMAGED
            program.remembered[program.depth] = state[0]
            program.depth += 1
        elif operation == 0x0B:  # restore_state
            if program.depth == 0:
                return ROW_REASON_DAMAGED
            program.depth -= 1
            state[0] = program.remembered[program.depth]
        elif 0x2C <= operation <= 0x2D and program.rules.machine.has_link_register:
            # AARCH64_negate_ra_state_with_pc, AARCH64_negate_ra_state; without operands
            state.is_signed = not state.is_signed
        elif operation:
            set_cfa(program, operation)
    program.is_over = True
    return ROW_REASON_DAMAGED if code.is_damaged else 0


cdef inline int run_to(Program* program, uint64_t location) noexcept nogil:
    """Runs a program to a location, in bytes from the function's start. Returns a reason or 0."""
    cdef int failure = 0
    while not failure and not program.is_over and program.next_location <= location:
        failure = run_piece(program)
    return failure


cdef inline int run_cie(
    const Section* section, const Cie* cie, State* initial, State* remembered
) noexcept nogil:
    """Computes the state that the program of a CIE leaves. Returns a reason or 0."""
    cdef Program program
    cdef Fde whole
    cdef State empty
    cdef int failure
    begin_state(&empty)
    whole.cie, whole.address, whole.size = cie[0], 0, 0
    whole.start, whole.end = cie.start, cie.end
    begin_program(&program, section, &whole, &empty, remembered)
    failure = run_piece(&program)
    initial[0] = program.rules.state
    if not failure and not program.is_over:
        failure = ROW_REASON_DAMAGED  # it advances
    return failure
