"""Running the programs of call-frame information. DWARF 5, sections 6.4.2 and 6.4.3.

Where the standard leaves a choice, libgcc's (unwind-dw2.c) is taken: a program's own
exceptions are thrown by it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tracelloc.cfi import encoding, rules
from tracelloc.cfi.encoding import damaged, sleb, uleb
from tracelloc.cfi.entries import Cie, Entries, Fde
from tracelloc.cfi.rules import RBP, RSP, Rule

_ADVANCE: Final = 0x40
_OFFSET: Final = 0x80
_RESTORE: Final = 0xC0
_SET_LOC: Final = 0x01
_ADVANCE_BYTES: Final = {0x02: 1, 0x03: 2, 0x04: 4, 0x1D: 8}
_RESTORE_EXTENDED: Final = 0x06
_REMEMBER: Final = 0x0A
_RESTORE_STATE: Final = 0x0B
_DEF_CFA: Final = 0x0C
_DEF_CFA_REGISTER: Final = 0x0D
_DEF_CFA_OFFSET: Final = 0x0E
_DEF_CFA_EXPRESSION: Final = 0x0F
_DEF_CFA_SF: Final = 0x12
_DEF_CFA_OFFSET_SF: Final = 0x13
_GNU_ARGS_SIZE: Final = 0x2E

_UNSIGNED: Final = 0
_FACTORED: Final = 1
_SIGNED: Final = 2
_NEGATED: Final = 3
_BLOCK: Final = 4
_NOTHING: Final = 5
_RULES: Final = {
    0x05: (rules.OFFSET, _FACTORED),
    0x07: (rules.UNDEFINED, _NOTHING),
    0x08: (rules.SAME, _NOTHING),
    0x09: (rules.REGISTER, _UNSIGNED),
    0x10: (rules.EXPRESSION, _BLOCK),
    0x11: (rules.OFFSET, _SIGNED),
    0x14: (rules.VAL_OFFSET, _FACTORED),
    0x15: (rules.VAL_OFFSET, _SIGNED),
    0x16: (rules.VAL_EXPRESSION, _BLOCK),
    0x2F: (rules.OFFSET, _NEGATED),
}
"""Instructions that give a register a rule: which one, and the form of its operand."""

_MOST_REMEMBERED: Final = 256
"""States. Compilers nest them three deep."""

State = tuple[int, int, bytes, dict[int, Rule]]
"""CFA register, CFA offset, CFA expression, rules by register."""
Key = tuple[int, int, bytes, Rule | None, Rule | None, Rule | None]
"""What a row holds of a state: the CFA, rules of rbp, of the return address, of rsp."""

EMPTY: Final[State] = (-1, 0, b"", {})


class _Program(NamedTuple):
    code: bytes
    end: int
    align: int
    """What offsets are multiples of."""


class StateChanges:
    """Where in a function the state changes, and what it is from there on."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        """In bytes from the function's start; a later one replaces an equal one."""
        self.keys: list[Key] = []
        self.reached = 0
        """Up to where the states are known if the program turns out to be damaged."""
        self.is_movable = True
        """Whether the same program means the same elsewhere."""

    def add(self, start: int, key: Key, end: int) -> None:
        """The state from ``start`` on, up to ``end``."""
        self.starts.append(start)
        self.keys.append(key)
        self.reached = end


def execute(
    entries: Entries, fde: Fde, initial: State, last: int, rows: StateChanges | None = None
) -> State:
    """The state at ``last`` bytes from the start of a function. Raises CfiError.

    ``initial`` is the state after the program of its CIE. Notes in ``rows``, if given, all
    states on the way.
    """
    try:
        return _run(entries, fde, initial, last, rows)
    except IndexError:
        raise damaged("program cut short by the section's end") from None


def _run(  # noqa: PLR0912, PLR0915 - in one piece, as it runs for millions of bytes
    entries: Entries, fde: Fde, initial: State, last: int, rows: StateChanges | None
) -> State:
    code = entries.data
    cie, _, _, at, end = fde
    register, offset, expression, first_rules = initial
    here = dict(first_rules)
    remembered: list[State] = []
    location, align = 0, cie.data_align
    program = _Program(code, end, align)
    while at < end:
        operation = code[at]
        at += 1
        high = operation & 0xC0
        if high == _ADVANCE or operation in _ADVANCE_BYTES or operation == _SET_LOC:
            if high:
                step = operation & 0x3F
            else:
                step, at = _read_step(entries, fde, at, operation, location)
            if rows is not None:
                key = _key(register, offset, expression, here, cie)
                rows.add(location, key, location + step * cie.code_align)
                rows.is_movable &= operation != _SET_LOC
            location += step * cie.code_align
            if location > last:
                return register, offset, expression, here
        elif high == _OFFSET:
            number, at = (code[at], at + 1) if code[at] < 0x80 else uleb(code, at, end)
            if operation & 0x3F < rules.REGISTERS:
                here[operation & 0x3F] = (rules.OFFSET, number * align, b"")
        elif operation == _DEF_CFA_OFFSET:
            offset, at = (code[at], at + 1) if code[at] < 0x80 else uleb(code, at, end)
        elif high == _RESTORE or operation == _RESTORE_EXTENDED:
            number = operation & 0x3F
            if not high:
                number, at = uleb(code, at, end)
            here.pop(number, None)
            if number in first_rules:
                here[number] = first_rules[number]
        elif operation == _REMEMBER:
            if len(remembered) >= _MOST_REMEMBERED:
                raise damaged("states remembered without end")
            remembered.append((register, offset, expression, dict(here)))
        elif operation == _RESTORE_STATE:
            if not remembered:
                raise damaged("no state to restore")
            register, offset, expression, here = remembered.pop()
        elif operation in _RULES:
            at = _read_rule(program, at, operation, here)
        elif operation:
            register, offset, expression, at = _read_cfa(
                program, at, operation, (register, offset, expression)
            )
    if at > end:
        raise damaged("program cut short")
    if rows is not None:
        rows.add(location, _key(register, offset, expression, here, cie), location)
    return register, offset, expression, here


def _key(register: int, offset: int, expression: bytes, here: dict[int, Rule], cie: Cie) -> Key:
    get = here.get
    return register, offset, expression, get(RBP), get(cie.return_register), get(RSP)


def _read_step(
    entries: Entries, fde: Fde, at: int, operation: int, location: int
) -> tuple[int, int]:
    """How far an instruction advances, in code units, and where its bytes end."""
    code, end = entries.data, fde.end
    size = _ADVANCE_BYTES.get(operation)
    if size is not None:
        if at + size > end:
            raise damaged("program cut short")
        return int.from_bytes(code[at : at + size], "little"), at + size
    kind = fde.cie.pointer_encoding
    address, at = encoding.read_pointer(code, at, end, kind, entries.address)
    step = address - fde.address - location
    if step < 0 or encoding.is_indirect(kind):
        raise damaged("location set backwards")
    return step // (fde.cie.code_align or 1), at


def _read_block(code: bytes, at: int, end: int) -> tuple[bytes, int]:
    """A DWARF expression with its length in front, and where its bytes end."""
    length, at = uleb(code, at, end)
    if not length or at + length > end:
        raise damaged("expression empty or longer than its program")
    return code[at : at + length], at + length


def _read_rule(program: _Program, at: int, operation: int, here: dict[int, Rule]) -> int:
    """Carries out an instruction that gives a register a rule; where its bytes end."""
    code, end, align = program
    how, form = _RULES[operation]
    number = 0
    expression = b""
    register, at = uleb(code, at, end)
    if form == _BLOCK:
        expression, at = _read_block(code, at, end)
    elif form == _SIGNED:
        number, at = sleb(code, at, end)
        number *= align
    elif form != _NOTHING:
        number, at = uleb(code, at, end)
        if form != _UNSIGNED:
            number *= align if form == _FACTORED else -align
    if register < rules.REGISTERS:
        here[register] = (how, number, expression)
    return at


def _read_cfa(
    program: _Program, at: int, operation: int, cfa: tuple[int, int, bytes]
) -> tuple[int, int, bytes, int]:
    """Carries out one of the rarer instructions; the CFA, and where its bytes end."""
    code, end, align = program
    register, offset, expression = cfa
    if operation == _DEF_CFA:
        register, at = uleb(code, at, end)
        offset, at = uleb(code, at, end)
        expression = b""
    elif operation == _DEF_CFA_REGISTER:
        register, at = uleb(code, at, end)
        expression = b""
    elif operation == _DEF_CFA_EXPRESSION:
        expression, at = _read_block(code, at, end)
    elif operation == _DEF_CFA_SF:
        register, at = uleb(code, at, end)
        offset, at = sleb(code, at, end)
        offset *= align
        expression = b""
    elif operation == _DEF_CFA_OFFSET_SF:
        offset, at = sleb(code, at, end)
        offset *= align
    elif operation == _GNU_ARGS_SIZE:
        # How much to pop for a landing pad: of no use for finding the caller.
        _, at = uleb(code, at, end)
    else:
        raise damaged(f"unknown instruction {operation:#x}")
    return register, offset, expression, at


def initial_state(entries: Entries, cie: Cie) -> State:
    """The state that the program of a CIE leaves. Raises CfiError."""
    rows = StateChanges()
    whole = Fde(cie, 0, 0, cie.start, cie.end)
    state = execute(entries, whole, EMPTY, encoding.MASK, rows)
    if len(rows.starts) != 1:
        raise damaged("CIE that advances")
    return state
