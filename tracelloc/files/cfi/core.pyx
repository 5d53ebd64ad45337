# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False
"""The compiled core of call-frame information: entries, programs, rows and unwinding.

Files and copies of stacks are hostile input: every read is checked against the end of its data,
every loop is bounded by the bytes it reads, and undecodable input has a named reason. Safe for
use from several threads: objects do not change after construction.
"""

from libc.stdint cimport int64_t, uint64_t

from tracelloc.files.cfi.batch cimport Run, begin_fde, end_run, find_rows, new_run
from tracelloc.files.cfi.calls cimport find_arm_call_ends, find_call_ends
from tracelloc.files.cfi.encode cimport encode
from tracelloc.files.cfi.encoding cimport Cursor, read_pointer
from tracelloc.files.cfi.entries cimport Fde, Section, read_fde, scan_entries
from tracelloc.files.cfi.expressions cimport (
    DAMAGED, GOES_ON, LIMIT, NO_MODULE, End, Memory, Registers,
)
from tracelloc.files.cfi.machine cimport REGISTERS, Machine
from tracelloc.files.cfi.programs cimport (
    NO_RULE, RULE_EXPRESSION, RULE_OFFSET, RULE_REGISTER, RULE_SAME,
    RULE_UNDEFINED, RULE_VAL_EXPRESSION, RULE_VAL_OFFSET, Expression, Rule, Rules,
    begin_state, expression_in, run_to, set_expression,
)
from tracelloc.files.cfi.row cimport unencodable
from tracelloc.files.cfi.step cimport set_register, step

from tracelloc.architecture import ARCHITECTURES
from tracelloc.architecture.x86_64 import X86_64
from tracelloc.files.cfi.walk import CfiError, End as Ends, Reason, Walk

cdef enum:
    USUAL_TABLE = 0x3B  # of .eh_frame_hdr: pairs of signed 32-bit numbers, relative to it
    MOST_MACHINES = 4

MASK = (1 << 64) - 1
"""Addresses are calculated modulo 2**64."""
UNDEFINED, SAME, OFFSET = RULE_UNDEFINED, RULE_SAME, RULE_OFFSET
VAL_OFFSET, REGISTER = RULE_VAL_OFFSET, RULE_REGISTER
EXPRESSION, VAL_EXPRESSION = RULE_EXPRESSION, RULE_VAL_EXPRESSION

cdef Machine machines[MOST_MACHINES]


cdef void describe(Machine* machine, architecture) except *:
    """Copies what compiled code needs from an architecture's description."""
    numbers = architecture.dwarf
    machine.count, machine.sp = numbers.count, numbers.stack_pointer
    machine.fp, machine.ip = numbers.frame_pointer, numbers.program_counter
    machine.callee_saved = sum(1 << number for number in numbers.callee_saved)
    machine.return_address_mask = architecture.return_address_mask
    machine.has_link_register = numbers.has_link_register
    if machine.count > REGISTERS:
        raise ValueError("registers without room")


cdef const Machine* machine_of(architecture) except NULL:
    return &machines[<int>ARCHITECTURES.index(architecture)]


for index in range(len(ARCHITECTURES)):
    describe(&machines[<int>index], ARCHITECTURES[index])


cdef class RuleSet:
    """The unwind rules at one address.

    The CFA (canonical frame address) is the value of the stack pointer before the call that
    made this frame: ``cfa_register`` plus ``cfa_offset``, or else the result of
    ``cfa_expression`` if that is not empty.
    """

    cdef Rules rules
    cdef object owner  # of the expressions' bytes

    def __init__(
        self, cfa_register, cfa_offset, bytes cfa_expression=b"", registers=None,
        return_register=None, *, is_signal=False, is_fallback=False, architecture=X86_64,
    ):
        cdef Rule* rule
        if return_register is None:
            return_register = architecture.dwarf.return_address
        self.rules.machine = machine_of(architecture)
        registers = dict(registers or ())
        self.owner = cfa_expression, registers
        begin_state(&self.rules.state)
        self.rules.state.cfa_register = cfa_register & MASK
        self.rules.state.cfa_offset = <int64_t><uint64_t>(cfa_offset & MASK)
        self.rules.state.cfa_expression = as_expression(cfa_expression)
        for register_, (how, number, expression) in registers.items():
            if not 0 <= register_ < self.rules.machine.count:
                raise ValueError(f"no rules are kept for register {register_}")
            rule = &self.rules.state.rules[<int>register_]
            if how == RULE_EXPRESSION or how == RULE_VAL_EXPRESSION:
                set_expression(rule, how, as_expression(expression))
            else:
                rule.how, rule.number = how, number
        self.rules.return_register = return_register
        self.rules.is_signal, self.rules.is_fallback = is_signal, is_fallback

    @property
    def cfa_register(self):
        return self.rules.state.cfa_register

    @property
    def cfa_offset(self):
        return self.rules.state.cfa_offset

    @property
    def cfa_expression(self):
        return as_bytes(self.rules.state.cfa_expression)

    @property
    def registers(self):
        """Rules of registers by DWARF number: (how, number, expression). Others are unchanged."""
        return {
            number: as_tuple(&self.rules.state.rules[<int>number])
            for number in range(self.rules.machine.count)
            if self.rules.state.rules[<int>number].how != NO_RULE
        }

    @property
    def return_register(self):
        return self.rules.return_register

    @property
    def is_signal(self):
        return self.rules.is_signal != 0

    @property
    def is_signed(self):
        return self.rules.state.is_signed != 0

    @property
    def is_fallback(self):
        return self.rules.is_fallback != 0

    def row(self, address):
        return encode(&self.rules, <uint64_t>(address & MASK))


def reason_row(int reason):
    return unencodable(reason)


cdef Expression as_expression(bytes code):
    cdef Expression found
    found.code, found.size = code, len(code)
    return found


cdef bytes as_bytes(Expression expression):
    return (<const char*>expression.code)[:expression.size]


cdef tuple as_tuple(const Rule* rule):
    if rule.how == RULE_EXPRESSION or rule.how == RULE_VAL_EXPRESSION:
        return rule.how, 0, as_bytes(expression_in(rule))
    return rule.how, rule.number, b""


cdef class Entries:
    """The entries (CIEs and FDEs) of one unwind section, decoded on demand."""

    cdef readonly bytes data
    cdef Section section

    def __init__(self, bytes data, uint64_t address, *, bint is_eh, architecture=X86_64):
        """``address`` is the section's own; ``is_eh`` tells ``.eh_frame`` from ``.debug_frame``."""
        self.section.machine = machine_of(architecture)
        self.data = data
        self.section.data, self.section.size = data, len(data)
        self.section.address, self.section.is_eh = address, is_eh

    @property
    def address(self):
        return self.section.address

    def fde(self, offset):
        """Returns address and size of an FDE's code, by the FDE's offset. Raises CfiError."""
        cdef Fde fde
        cdef int failure = read_fde(&self.section, self._offset(offset), &fde)
        if failure:
            raise CfiError(Reason(failure))
        return fde.address, fde.size

    cdef int64_t _offset(self, offset):
        return offset if 0 <= offset < self.section.size else -1

    def scan(self, uint64_t[::1] starts, int64_t[::1] offsets):
        """Stores (address, offset) of FDEs that cover code, as they fit; returns how many."""
        cdef int64_t count = 0, room = min(starts.shape[0], offsets.shape[0])
        if room:
            with nogil:
                count = scan_entries(&self.section, &starts[0], &offsets[0], room)
        return count

    def rules(self, offset, address):
        """Returns an address's rules from the FDE at an offset, if that covers it. CfiError."""
        cdef uint64_t at = address & MASK
        cdef int64_t entry = self._offset(offset)
        cdef RuleSet found = None
        cdef int failure, program_failure = 0
        cdef Run* run = new_run(&self.section)
        if not run:
            raise MemoryError
        failure = begin_fde(run, entry, &program_failure)
        if not failure and at >= run.fde.address and at - run.fde.address < run.fde.size:
            failure = program_failure or run_to(&run.program, at - run.fde.address)
            if not failure:
                found = RuleSet.__new__(RuleSet)
                found.rules, found.owner = run.program.rules, self.data
        end_run(run)
        if failure:
            raise CfiError(Reason(failure))
        return found

    def rows(
        self, const uint64_t[::1] starts, const int64_t[::1] offsets,
        const uint64_t[::1] wanted, uint64_t[::1] found,
    ):
        """Stores the row of each address that an FDE covers and that has no row yet (0).

        ``starts`` are the sorted start addresses of functions, ``offsets`` those of their FDEs.
        The ``wanted`` addresses are sorted, too.
        """
        cdef Run* run = new_run(&self.section)
        if not run:
            raise MemoryError
        if starts.shape[0] != offsets.shape[0] or wanted.shape[0] != found.shape[0]:
            end_run(run)
            raise ValueError("arrays of different lengths")
        if starts.shape[0] and wanted.shape[0]:
            with nogil:
                find_rows(
                    run, &starts[0], &offsets[0], starts.shape[0], &wanted[0], &found[0],
                    wanted.shape[0],
                )
        end_run(run)


def read_header(bytes header, uint64_t address):
    """Parses ``.eh_frame_hdr``: address of ``.eh_frame``, entries, offset of the table.

    ``address`` is the header's own. The number of entries is 0 if the table is missing or not of
    the kind that linkers write. None if the bytes are not a header. Linux Standard Base Core 5.0,
    section 10.6.2.
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


def find_calls(
    bytes code, uint64_t address, uint64_t start, uint64_t end, uint64_t[::1] found,
    architecture=X86_64,
):
    """Stores the address of the last byte of each apparent call in some code.

    Returns their number, at most one per byte. ``address`` is the code's own. Direct calls count
    only if they lead to addresses from ``start`` up to ``end``.
    """
    cdef const unsigned char* data = code
    cdef Py_ssize_t size = len(code), count = 0
    if found.shape[0] < size:
        raise ValueError("fewer places than bytes")
    if size and machine_of(architecture).has_link_register:
        with nogil:
            count = find_arm_call_ends(data, size, address, start, end, &found[0])
    elif size:
        with nogil:
            count = find_call_ends(data, size, address, start, end, &found[0])
    return count


cdef class StackCopy:
    """A copy of a stack's memory."""

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


def unwind(
    registers, StackCopy stack, look_up, *, int limit=127, bint is_interrupted=False,
    architecture=X86_64,
):
    """Unwinds from ``registers``: by DWARF number, at least program counter and stack pointer.

    ``look_up`` returns the rules at an address of the running program, the byte before a return
    address; None if no file is mapped there. It may raise CfiError. ``is_interrupted``: execution
    was at any instruction, not just after a call. A missing register matters only if a rule needs
    it.
    """
    cdef Registers known, caller
    cdef RuleSet found
    cdef End end
    cdef int fallbacks = 0
    cdef uint64_t ip = machine_of(architecture).ip
    known.known = 0
    for number, value in registers.items():
        if number < REGISTERS:
            set_register(&known, number, value)
    frames = [known.values[ip]]
    while True:
        if len(frames) >= limit:
            end = LIMIT
            break
        try:
            found = look_up(known.values[ip] - (not is_interrupted))
        except CfiError:
            end = DAMAGED
            break
        if found is None:
            end = NO_MODULE
            break
        fallbacks += found.rules.is_fallback
        end = step(&found.rules, &known, &stack.memory, &caller)
        if end != GOES_ON:
            break
        known, is_interrupted = caller, found.rules.is_signal
        frames.append(known.values[ip])
    return Walk(tuple(frames), Ends(end), fallbacks)
