# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False
"""The compiled core of call-frame information: entries, programs, rows and the unwinding itself.

Files and copies of stacks are hostile input: every read is checked against the end of what
is read, every loop is bounded by the bytes it reads, and what can't be decoded has a reason.
All of it may be called from several threads: nothing changes once it is made.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc

from tracelloc.cfi.encode cimport encode
from tracelloc.cfi.encoding cimport Cursor, read_pointer
from tracelloc.cfi.entries cimport Fde, Section, read_fde, scan_entries
from tracelloc.cfi.expressions cimport (
    DAMAGED, GOES_ON, LIMIT, NO_MODULE, NO_PROGRESS, OUTERMOST, UNKNOWN_REGISTER, End, Memory,
    Registers, evaluate, is_known, read_word,
)
from tracelloc.cfi.programs cimport (
    NO_RULE, RULE_EXPRESSION, MOST_REMEMBERED, RULE_OFFSET, RULE_REGISTER, REGISTERS, RBP, RIP, RSP, RULE_SAME,
    RULE_UNDEFINED, RULE_VAL_EXPRESSION, RULE_VAL_OFFSET, Expression, Program, Rule, State, begin_program,
    begin_state, run_cie, run_to,
)
from tracelloc.cfi.row cimport (
    ROW_FRAME_POINTER, ROW_REASON_TOO_LONG, pack, unencodable,
)

from tracelloc.cfi.reasons import CfiError, Reason
from tracelloc.cfi.walk import End as Ends, Walk

cdef enum:
    CIES = 16  # whose states are kept; files have a handful
    SPARE_BYTES = 1 << 16
    USUAL_TABLE = 0x3B  # of .eh_frame_hdr: pairs of signed 32-bit numbers, relative to it
    CALLEE_SAVED = 1 << 3 | 1 << 6 | 1 << 12 | 1 << 13 | 1 << 14 | 1 << 15  # AMD64, figure 3.4

MASK = (1 << 64) - 1
"""Addresses are calculated modulo 2**64."""
UNDEFINED, SAME, OFFSET = RULE_UNDEFINED, RULE_SAME, RULE_OFFSET
VAL_OFFSET, REGISTER = RULE_VAL_OFFSET, RULE_REGISTER
EXPRESSION, VAL_EXPRESSION = RULE_EXPRESSION, RULE_VAL_EXPRESSION

cdef struct Known:
    int64_t offset  # of the CIE
    int failure
    State initial

cdef struct Run:  # of many programs
    const Section* section
    State* remembered
    int64_t budget  # bytes
    Known cies[CIES]
    Fde fde
    Program program


cdef Run* new_run(const Section* section) noexcept nogil:
    """For programs of one section; NULL: no memory."""
    cdef Run* run = <Run*>malloc(sizeof(Run))
    cdef State* remembered = <State*>malloc(MOST_REMEMBERED * sizeof(State))
    cdef int at
    if not run or not remembered:
        free(run)
        free(remembered)
        return NULL
    run.section, run.remembered = section, remembered
    # Programs don't overlap, unless someone wants to keep us busy.
    run.budget = 2 * section.size + SPARE_BYTES
    for at in range(CIES):
        run.cies[at].offset = -1
    return run


cdef void end_run(Run* run) noexcept nogil:
    free(run.remembered)
    free(run)


cdef int begin_fde(Run* run, int64_t offset, int* program_failure) noexcept nogil:
    """Reads an FDE and gets its program ready. Returns a reason, if the FDE can't be read, or 0.

    ``program_failure`` is the reason why the program has no state to start from, or 0.
    """
    cdef Fde* fde = &run.fde
    cdef Known* known
    cdef int failure = read_fde(run.section, offset, fde)
    if failure:
        return failure
    run.budget -= fde.end - fde.start
    known = &run.cies[(fde.cie.offset >> 2) % CIES]
    if known.offset != fde.cie.offset:
        run.budget -= fde.cie.end - fde.cie.start
        known.offset = fde.cie.offset
        known.failure = run_cie(run.section, &fde.cie, &known.initial, run.remembered)
    if run.budget < 0:
        return ROW_REASON_TOO_LONG
    program_failure[0] = known.failure
    begin_program(&run.program, run.section, fde, &known.initial, run.remembered)
    return 0


cdef uint64_t next_row(Run* run, int* failure, uint64_t at) noexcept nogil:
    """The row at an address of the function, not before the last one that was asked for."""
    if not failure[0]:
        failure[0] = run_to(&run.program, at - run.fde.address)
    if failure[0]:
        return unencodable(failure[0])
    return encode(&run.program.state, run.fde.cie.return_register, run.fde.cie.is_signal, at)


cdef class RuleSet:
    """The rules at one address.

    The CFA (canonical frame address) is the value of the stack pointer before the call that
    made this frame: ``cfa_register`` plus ``cfa_offset``, or else the result of
    ``cfa_expression`` if that is not empty.
    """

    cdef State state
    cdef readonly uint64_t return_register
    cdef readonly bint is_signal
    cdef readonly bint is_fallback
    cdef object owner  # of the expressions' bytes

    def __init__(
        self, cfa_register, cfa_offset, bytes cfa_expression=b"", registers=None,
        return_register=RIP, *, is_signal=False, is_fallback=False,
    ):
        registers = dict(registers or ())
        self.owner = cfa_expression, registers
        begin_state(&self.state)
        self.state.cfa_register = cfa_register & MASK
        self.state.cfa_offset = <int64_t><uint64_t>(cfa_offset & MASK)
        self.state.cfa_expression = as_expression(cfa_expression)
        for register_, (how, number, expression) in registers.items():
            if not 0 <= register_ < REGISTERS:
                raise ValueError(f"no rules are kept for register {register_}")
            self.state.rules[<int>register_].how = how
            self.state.rules[<int>register_].number = number
            self.state.rules[<int>register_].expression = as_expression(expression)
        self.return_register = return_register
        self.is_signal, self.is_fallback = is_signal, is_fallback

    @property
    def cfa_register(self):
        return self.state.cfa_register

    @property
    def cfa_offset(self):
        return self.state.cfa_offset

    @property
    def cfa_expression(self):
        return as_bytes(self.state.cfa_expression)

    @property
    def registers(self):
        """How, number and expression by DWARF number. A register without a rule is as it was."""
        rules = {}
        for number in range(REGISTERS):
            if self.state.rules[<int>number].how != NO_RULE:
                rules[number] = as_tuple(&self.state.rules[<int>number])
        return rules

    def row(self, uint64_t address):
        """The row for these rules at an address, as probes/row.h has it."""
        if self.is_fallback:
            return pack(ROW_FRAME_POINTER, 16, -16)
        return encode(&self.state, self.return_register, self.is_signal, address)


def reason_row(int reason):
    """The row that only says why there is none."""
    return unencodable(reason)


cdef Expression as_expression(bytes code):
    cdef Expression found
    found.code, found.size = code, len(code)
    return found


cdef bytes as_bytes(Expression expression):
    return (<const char*>expression.code)[:expression.size]


cdef tuple as_tuple(const Rule* rule):
    return rule.how, rule.number, as_bytes(rule.expression)


cdef class Entries:
    """The entries of one section, decoded where somebody asks."""

    cdef readonly bytes data
    cdef Section section

    def __init__(self, bytes data, uint64_t address, *, bint is_eh):
        """``address`` is the section's own; ``is_eh`` tells ``.eh_frame`` from ``.debug_frame``."""
        self.data = data
        self.section.data, self.section.size = data, len(data)
        self.section.address, self.section.is_eh = address, is_eh

    @property
    def address(self):
        return self.section.address

    def fde(self, offset):
        """Address and size of the code of the FDE at an offset of the section. Raises CfiError."""
        cdef Fde fde
        cdef int failure = read_fde(&self.section, self._offset(offset), &fde)
        if failure:
            raise CfiError(Reason(failure))
        return fde.address, fde.size

    cdef int64_t _offset(self, offset):
        return offset if 0 <= offset < self.section.size else -1

    def scan(self, uint64_t[::1] starts, int64_t[::1] offsets):
        """Notes address and offset of all FDEs that can be decoded and cover code.

        Returns how many they are. Ends where there is no more room.
        """
        cdef int64_t count = 0, room = min(starts.shape[0], offsets.shape[0])
        if room:
            with nogil:
                count = scan_entries(&self.section, &starts[0], &offsets[0], room)
        return count

    def rules(self, offset, uint64_t address):
        """The rules at an address by the FDE at an offset; None if it does not cover that.

        Raises CfiError.
        """
        cdef Run* run = new_run(&self.section)
        cdef RuleSet found = None
        cdef int failure, program_failure = 0
        if not run:
            raise MemoryError
        failure = begin_fde(run, self._offset(offset), &program_failure)
        if not failure and address - run.fde.address < run.fde.size \
                and address >= run.fde.address:
            failure = program_failure or run_to(&run.program, address - run.fde.address)
            if not failure:
                found = RuleSet.__new__(RuleSet)
                found.state, found.owner = run.program.state, self.data
                found.return_register = run.fde.cie.return_register
                found.is_signal = run.fde.cie.is_signal
        end_run(run)
        if failure:
            raise CfiError(Reason(failure))
        return found

    def rows(
        self, const uint64_t[::1] starts, const int64_t[::1] offsets,
        const uint64_t[::1] wanted, uint64_t[::1] found,
    ):
        """Puts the row of each address there that has none yet, 0, and that an FDE covers.

        ``starts`` are the addresses where functions begin, sorted, ``offsets`` those of their
        FDEs. The addresses that are ``wanted`` are sorted too.
        """
        cdef Run* run = new_run(&self.section)
        if not run:
            raise MemoryError
        if starts.shape[0] != offsets.shape[0] or wanted.shape[0] != found.shape[0]:
            end_run(run)
            raise ValueError("arrays of different lengths")
        with nogil:
            find_rows(run, starts, offsets, wanted, found)
            end_run(run)


cdef void find_rows(
    Run* run, const uint64_t[::1] starts, const int64_t[::1] offsets,
    const uint64_t[::1] wanted, uint64_t[::1] found,
) noexcept nogil:
    cdef Py_ssize_t at = 0, function = -1, first, last, middle
    cdef uint64_t limit, start
    cdef int failure, program_failure
    while at < wanted.shape[0]:
        if found[at]:
            at += 1
            continue
        # The last function that starts at or before the address.
        first, last = function + 1, starts.shape[0]
        while first < last:
            middle = first + (last - first) // 2
            if starts[middle] <= wanted[at]:
                first = middle + 1
            else:
                last = middle
        function = first - 1
        limit = starts[first] if first < starts.shape[0] else ~<uint64_t>0
        if function < 0:
            at += 1
            continue
        program_failure = 0
        failure = begin_fde(run, offsets[function], &program_failure)
        start = run.fde.address
        while at < wanted.shape[0] and wanted[at] < limit:
            if failure:
                if not found[at]:
                    found[at] = unencodable(failure)
            elif wanted[at] >= start and wanted[at] - start < run.fde.size and not found[at]:
                found[at] = next_row(run, &program_failure, wanted[at])
            at += 1
        if limit == ~<uint64_t>0:
            return


def read_header(bytes header, uint64_t address):
    """What ``.eh_frame_hdr`` says: address of ``.eh_frame``, entries, offset of the table.

    ``address`` is the header's own. The number of entries is 0 where its table is missing
    or not of the kind that linkers write. None if it is no header. Linux Standard Base Core
    5.0, section 10.6.2.
    """
    cdef Cursor cursor
    cdef uint64_t place, count = 0
    cursor.data, cursor.at, cursor.end, cursor.is_damaged = header, 4, len(header), False
    if cursor.end < 4 or cursor.data[0] != 1:
        return None
    place = read_pointer(&cursor, cursor.data[1], address, &address)
    if cursor.data[3] == USUAL_TABLE:
        count = read_pointer(&cursor, cursor.data[2], address, &address)
    if cursor.is_damaged:
        return None
    return place, count if count <= <uint64_t>(cursor.end - cursor.at) // 8 else 0, cursor.at


cdef class StackCopy:
    """Memory of a stack as it was."""

    cdef Memory memory
    cdef readonly bytes data

    def __init__(self, uint64_t address, bytes data, uint64_t holes=0):
        """``holes`` has a bit for each page that is missing."""
        self.data = data
        self.memory.address, self.memory.holes = address, holes
        self.memory.data, self.memory.size = data, len(data)

    @property
    def address(self):
        return self.memory.address


def unwind(registers, StackCopy stack, look_up, *, int limit=127, bint is_interrupted=False):
    """The call stack from ``registers``: by DWARF number, at least ``RIP`` and ``RSP``.

    ``look_up`` gives the rules at an address of the running program, the byte before a return
    address; None where no file is mapped. It may raise CfiError. ``is_interrupted`` says that
    execution was at any instruction, not just behind a call. Registers that are missing are
    only missed where a rule needs them.
    """
    cdef Registers known, caller
    cdef RuleSet found
    cdef End end
    cdef int fallbacks = 0
    known.known = 0
    for number, value in registers.items():
        if number < REGISTERS:
            set_register(&known, number, value)
    frames = [known.values[RIP]]
    while True:
        if len(frames) >= limit:
            end = LIMIT
            break
        try:
            found = look_up(known.values[RIP] - (not is_interrupted))
        except CfiError:
            end = DAMAGED
            break
        if found is None:
            end = NO_MODULE
            break
        fallbacks += found.is_fallback
        end = step(found, &known, &stack.memory, &caller)
        if end != GOES_ON:
            break
        known, is_interrupted = caller, found.is_signal
        frames.append(known.values[RIP])
    return Walk(tuple(frames), Ends(end), fallbacks)


cdef void set_register(Registers* registers, uint64_t number, uint64_t value) noexcept nogil:
    registers.values[number] = value
    registers.known |= 1 << number


cdef End step(
    RuleSet found, const Registers* known, const Memory* memory, Registers* caller
) noexcept nogil:
    """The caller's registers, as far as they can be known, or why there is no caller."""
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


cdef End find_value(
    const Rule* rule, uint64_t cfa, const Registers* known, const Memory* memory, uint64_t* value
) noexcept nogil:
    """What a register holds in the caller, or why that is not known."""
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
