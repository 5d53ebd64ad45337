"""Rows: the rules at one address in 64 bits, for the probes.

The layout is that of probes/row.h, from which a test compiles and compares it:

====== ============ ==================================================================
bits   field        meaning
====== ============ ==================================================================
0-7    kind         ``StepKind``; 0 is no row
8-15   detail       ``UNENCODABLE``: the ``Reason``; ``PLT``: the threshold; else 0
16-31  bp slot      signed; where the caller's rbp was saved, see ``BP_*``
32-63  CFA offset   signed, in bytes
====== ============ ==================================================================

The return address is at CFA-8 and the caller's rsp is the CFA, except in a signal frame.

For many functions at once every program is run once, from its start to its end, and equal
programs are run only once: in libLLVM-14 two thirds of all are equal to another one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tracelloc.cfi import rules
from tracelloc.cfi.encoding import MASK, CfiError, Reason, sleb
from tracelloc.cfi.entries import Cie, Entries, Fde
from tracelloc.cfi.instructions import Key, State, StateChanges, execute
from tracelloc.cfi.rules import RBP, RSP, Rule, RuleSet

U64 = npt.NDArray[np.uint64]


class StepKind(IntEnum):
    """How to step from a frame to its caller."""

    SP = 1
    """CFA = rsp + CFA offset."""
    BP = 2
    """CFA = rbp + CFA offset."""
    REALIGNED = 3
    """CFA = the word at rbp + CFA offset: a stack that was aligned for vectors."""
    SIGNAL = 4
    """The kernel's signal frame: rsp is at rsp + CFA offset, rbp at rsp + bp slot, the
    address at rsp + ``SIGNAL_IP``. That address was interrupted: look it up as it is,
    not one byte before."""
    PLT = 5
    """CFA = rsp + CFA offset, and 8 more if the low four bits of rip reach the threshold
    in ``detail``. ``Cfi`` makes it ``SP``, as it knows the address."""
    END = 6
    """The outermost frame: there is no caller."""
    FRAME_POINTER = 7
    """Like ``BP``, because nothing is known about this code: it may have no frame pointer."""
    UNENCODABLE = 8
    """A row can't say it, for the ``Reason`` in ``detail``: finish in user space."""


BP_UNCHANGED: Final = 0
"""rbp is as it was."""
BP_AT_BP: Final = 1
"""The caller's rbp is where rbp points to. Any other number is relative to the CFA."""

DETAIL_SHIFT: Final = 8
BP_SHIFT: Final = 16
CFA_SHIFT: Final = 32

_DEREF: Final = 0x06
_BREG_RBP: Final = 0x76
_BREG_RSP: Final = 0x77
_AT_BP: Final = (rules.EXPRESSION, 0, bytes([_BREG_RBP, 0]))
_RETURN_BELOW_CFA: Final = (rules.OFFSET, -8, b"")
_PLT: Final = re.compile(
    rb"\x77([\x00-\x3f])\x80\x00\x3f\x1a([\x30-\x3f])\x2a\x33\x24\x22", re.DOTALL
)
"""breg7 N; breg16 0; lit15; and; litM; ge; lit3; shl; plus: what linkers write."""
_LIT0: Final = 0x30


class Row(NamedTuple):
    """A row unpacked."""

    kind: StepKind
    detail: int
    bp_slot: int
    """Bytes from the CFA, or ``BP_UNCHANGED`` or ``BP_AT_BP``."""
    cfa_offset: int

    @property
    def reason(self) -> Reason | None:
        """Why it is ``UNENCODABLE``; None if it isn't."""
        return Reason(self.detail) if self.kind is StepKind.UNENCODABLE else None


def pack(kind: StepKind, cfa_offset: int = 0, bp_slot: int = 0, detail: int = 0) -> int:
    """A row from its fields, which must fit."""
    return (
        kind
        | detail << DETAIL_SHIFT
        | (bp_slot & 0xFFFF) << BP_SHIFT
        | (cfa_offset & 0xFFFFFFFF) << CFA_SHIFT
    )


def decode(row: int) -> Row:
    """The fields of a row. Raises ValueError if it is none."""
    slot = row >> BP_SHIFT & 0xFFFF
    offset = row >> CFA_SHIFT & 0xFFFFFFFF
    return Row(
        StepKind(row & 0xFF),
        row >> DETAIL_SHIFT & 0xFF,
        slot - ((slot & 0x8000) << 1),
        offset - ((offset & 0x80000000) << 1),
    )


def unencodable(reason: Reason) -> int:
    """The row that only says why there is none."""
    return pack(StepKind.UNENCODABLE, detail=reason)


END_ROW: Final = pack(StepKind.END)
FALLBACK_ROW: Final = pack(StepKind.FRAME_POINTER, 16, -16)


def encode(found: RuleSet) -> int:
    """The row for a set of rules. Never fails: ``UNENCODABLE`` rows name the reason."""
    if found.is_fallback:
        return FALLBACK_ROW
    get = found.registers.get
    key = (
        found.cfa_register,
        found.cfa_offset,
        found.cfa_expression,
        get(RBP),
        get(found.return_register),
        get(RSP),
    )
    return encode_key(key, is_signal=found.is_signal)


def encode_key(key: Key, *, is_signal: bool) -> int:
    """Encodes what a row holds of a state."""
    register, offset, expression, bp, address, sp = key
    if address is not None and address[0] == rules.UNDEFINED:
        return END_ROW
    try:
        if is_signal:
            return _encode_signal(key)
        detail = 0
        if expression:
            kind, offset, detail = _encode_expression(expression)
        elif register in (RSP, RBP):
            kind = StepKind.SP if register == RSP else StepKind.BP
        else:
            raise _UnencodableError(Reason.CFA_REGISTER)
        if not -(1 << 31) <= offset < 1 << 31:
            raise _UnencodableError(Reason.CFA_OFFSET)
        if address != _RETURN_BELOW_CFA:
            raise _UnencodableError(Reason.RETURN_ADDRESS)
        if sp is not None:
            raise _UnencodableError(Reason.CALLER_SP)
        return pack(kind, offset, _encode_bp(bp), detail)
    except _UnencodableError as error:
        return unencodable(error.reason)


class _UnencodableError(CfiError):
    def __init__(self, reason: Reason) -> None:
        super().__init__(reason, reason.name)


def _encode_bp(rule: Rule | None) -> int:
    if rule is None or rule[0] == rules.SAME:
        return BP_UNCHANGED
    if rule == _AT_BP:
        return BP_AT_BP
    how, number, _ = rule
    # An odd place would be mistaken for BP_AT_BP, and no compiler chooses one.
    if how != rules.OFFSET or number % 2 or not number or not -(1 << 15) <= number < 1 << 15:
        raise _UnencodableError(Reason.SAVED_BP)
    return number


def _encode_expression(expression: bytes) -> tuple[StepKind, int, int]:
    """Kind, CFA offset and detail."""
    plt = _PLT.fullmatch(expression)
    if plt:
        return StepKind.PLT, plt[1][0], plt[2][0] - _LIT0
    place = _place(expression[:-1], _BREG_RBP) if expression[-1] == _DEREF else None
    if place is None:
        raise _UnencodableError(Reason.CFA_EXPRESSION)
    return StepKind.REALIGNED, place, 0


def _place(expression: bytes, base: int) -> int | None:
    """N of an expression that is nothing but ``breg N``."""
    if len(expression) < 2 or expression[0] != base:
        return None
    try:
        number, end = sleb(expression, 1, len(expression))
    except CfiError:
        return None
    return number if end == len(expression) else None


def _encode_signal(key: Key) -> int:
    """Only the kernel's frame, whose layout the probes know."""
    _, _, expression, bp, address, sp = key

    def saved(rule: Rule | None) -> int | None:
        return _place(rule[2], _BREG_RSP) if rule and rule[0] == rules.EXPRESSION else None

    if (
        expression[-1:] != bytes([_DEREF])
        or _place(expression[:-1], _BREG_RSP) != rules.SIGNAL_SP
        or saved(bp) != rules.SIGNAL_BP
        or saved(address) != rules.SIGNAL_IP
        or (sp is not None and saved(sp) != rules.SIGNAL_SP)
    ):
        raise _UnencodableError(Reason.SIGNAL_FRAME)
    return pack(StepKind.SIGNAL, rules.SIGNAL_SP, rules.SIGNAL_BP)


def settle_plt(row: int, address: int) -> int:
    """A ``PLT`` row as the ``SP`` row that it is at one address; others unchanged."""
    if row & 0xFF != StepKind.PLT:
        return row
    _, threshold, slot, offset = decode(row)
    return pack(StepKind.SP, offset + 8 * ((address & 15) >= threshold), slot)


_NONE: Final = 0
"""Instead of a row: not covered."""
_SPARE_BYTES: Final = 1 << 16
_MOST_ROWS: Final = 1 << 21
"""Kept at once, and remembered with their programs. All of libLLVM-14 has 0.9 million."""

Program = tuple[list[int], list[int]]
"""Starts in bytes from the function's, sorted, and the rows from there on."""


class RowBatch:
    """The rows of functions of one section, added in order of their addresses."""

    def __init__(self, entries: Entries, initial: Callable[[Cie], State]) -> None:
        """``initial`` gives the state after a CIE's program, or raises CfiError."""
        self._entries = entries
        self._initial = initial
        self._programs: dict[tuple[int, bytes], Program] = {}
        self._encoded: tuple[dict[Key, int], dict[Key, int]] = ({}, {})
        # Programs don't overlap, unless someone wants to keep us busy.
        self._budget_bytes = len(entries.data) + _SPARE_BYTES
        self._remembered = 0
        self._clear()

    def _clear(self) -> None:
        self._bases = [0]
        self._counts = [1]
        self._starts = [0]
        self._rows = [_NONE]

    def add(self, offset: int, start: int, limit: int) -> None:
        """The rows from ``start`` up to ``limit``, by the FDE at an offset of the section."""
        try:
            fde = self._entries.fde(offset)
            starts, rows = self._program(fde)
        except CfiError as error:
            self._put(start, [0, limit - start], [unencodable(error.reason), _NONE])
            return
        low, high = start - fde.address, min(fde.size_bytes, limit - fde.address)
        if low > 0 or starts[-1] >= high:
            # Overlaps the function before or after it, or goes on behind its own end.
            starts, rows = _clip(starts, rows, max(low, 0), high)
        if starts and len(self._rows) + len(starts) > _MOST_ROWS:
            starts, rows = [max(low, 0)], [unencodable(Reason.TOO_LONG)]
        if starts:
            self._put(fde.address, [*starts, high], [*rows, _NONE])

    def _put(self, base: int, starts: list[int], rows: list[int]) -> None:
        self._bases.append(base)
        self._counts.append(len(starts))
        self._starts += starts
        self._rows += rows

    def _program(self, fde: Fde) -> Program:
        code = self._entries.data[fde.start : fde.end]
        key = (fde.cie.offset, code)
        known = self._programs.get(key)
        if known is not None:
            return known
        self._budget_bytes -= len(code)
        if self._budget_bytes < 0:
            raise CfiError(Reason.TOO_LONG, "more programs than there are bytes for")
        rows = StateChanges()
        failure = None
        try:
            execute(self._entries, fde, self._initial(fde.cie), MASK, rows)
        except CfiError as error:
            failure = unencodable(error.reason)
        program = (rows.starts, self._encode(rows.keys, fde.cie))
        if failure is not None:
            # What comes before the damage holds.
            program[0].append(rows.reached)
            program[1].append(failure)
        if rows.is_movable:
            self._remembered += len(program[0])
            if self._remembered > _MOST_ROWS:
                self._programs.clear()
                self._remembered = len(program[0])
            self._programs[key] = program
        return program

    def _encode(self, keys: list[Key], cie: Cie) -> list[int]:
        encoded = self._encoded[cie.is_signal]
        rows = []
        for key in keys:
            row = encoded.get(key)
            if row is None:
                row = encoded[key] = encode_key(key, is_signal=cie.is_signal)
            rows.append(row)
        return rows

    def look_up(self, wanted: U64) -> U64:
        """The row for each address; 0 where none of the functions covers it.

        Afterwards the functions are forgotten, so that more can be added.
        """
        starts = np.repeat(np.array(self._bases, np.uint64), np.array(self._counts))
        starts += np.array(self._starts, np.uint64)
        rows = np.array(self._rows, np.uint64)
        self._clear()
        found: U64 = rows[np.searchsorted(starts, wanted, "right") - 1]
        return found


def _clip(starts: list[int], rows: list[int], low: int, high: int) -> Program:
    """What of a program's rows lies from ``low`` up to ``high``."""
    if low >= high:
        return [], []
    first = max(n for n, start in enumerate(starts) if start <= low)
    kept = [n for n, start in enumerate(starts) if n >= first and start < high]
    return [max(starts[n], low) for n in kept], [rows[n] for n in kept]
