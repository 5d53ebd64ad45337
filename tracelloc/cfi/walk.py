"""Following a stack by the full rules, from registers and a copy of its memory.

What the copy does not hold is not guessed: the stack ends there, and says why. DWARF
expressions are evaluated as far as call-frame information uses them (DWARF 5, section 2.5).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from mmap import PAGESIZE
from typing import Final

from tracelloc.cfi import rules
from tracelloc.cfi.encoding import MASK, CfiError, Reason, damaged, sleb, uleb
from tracelloc.cfi.rules import CALLEE_SAVED, RBP, RIP, RSP, Rule, RuleSet

_MOST_STEPS: Final = 1024
_DEEPEST: Final = 64

Read = Callable[[int], int]
"""The 64-bit word at an address. Raises what the caller of ``evaluate`` will catch."""

_SIGN: Final = 1 << 63
_CONSTANTS: Final = {
    0x08: (1, False), 0x09: (1, True), 0x0A: (2, False), 0x0B: (2, True),
    0x0C: (4, False), 0x0D: (4, True), 0x0E: (8, False), 0x0F: (8, True),
}  # fmt: skip
"""DW_OP_const*: bytes, and whether signed."""


def _signed(value: int) -> int:
    return value - (1 << 64) if value & _SIGN else value


def _divide(a: int, b: int) -> int:
    """Signed, towards zero."""
    a, b = _signed(a), _signed(b)
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


_BINARY: Final[dict[int, Callable[[int, int], int]]] = {
    0x1A: lambda a, b: a & b,
    0x1B: _divide,
    0x1C: lambda a, b: a - b,
    0x1D: lambda a, b: a % b,
    0x1E: lambda a, b: a * b,
    0x21: lambda a, b: a | b,
    0x22: lambda a, b: a + b,
    0x24: lambda a, b: a << b if b < 64 else 0,
    0x25: lambda a, b: a >> b if b < 64 else 0,
    0x26: lambda a, b: _signed(a) >> min(b, 63),
    0x27: lambda a, b: a ^ b,
    0x29: lambda a, b: a == b,
    0x2A: lambda a, b: _signed(a) >= _signed(b),
    0x2B: lambda a, b: _signed(a) > _signed(b),
    0x2C: lambda a, b: _signed(a) <= _signed(b),
    0x2D: lambda a, b: _signed(a) < _signed(b),
    0x2E: lambda a, b: a != b,
}
"""By operation: the entry below the top, and the top."""
_UNARY: Final[dict[int, Callable[[int], int]]] = {
    0x19: lambda a: abs(_signed(a)),
    0x1F: lambda a: -a,
    0x20: lambda a: ~a,
}


class UnknownRegisterError(Exception):
    """The value of a register is needed that nobody knows."""


def evaluate(code: bytes, registers: Mapping[int, int], read: Read, first: int | None) -> int:
    """The result of an expression. Raises CfiError, UnknownRegisterError and what ``read`` does.

    ``first`` is put on the stack before it starts: the CFA in rules of registers.
    """
    stack = [] if first is None else [first]
    machine = _Machine(code, registers, read, stack)
    at = 0
    try:
        for _ in range(_MOST_STEPS):
            if at >= len(code):
                return stack[-1]
            at = machine.step(at)
            if len(stack) > _DEEPEST or not 0 <= at <= len(code):
                break
            if stack:
                stack[-1] &= MASK
    except (IndexError, ZeroDivisionError):
        raise damaged("expression that makes no sense") from None
    raise CfiError(Reason.TOO_LONG, "expression without an end")


class _Machine:
    def __init__(
        self, code: bytes, registers: Mapping[int, int], read: Read, stack: list[int]
    ) -> None:
        self._code = code
        self._registers = registers
        self._read = read
        self._stack = stack

    def step(self, at: int) -> int:
        """Carries out the operation at ``at``. Returns where the next one is."""
        stack, operation = self._stack, self._code[at]
        at += 1
        if 0x30 <= operation <= 0x4F:  # lit0-31
            stack.append(operation - 0x30)
        elif 0x70 <= operation <= 0x8F:  # breg0-31
            at = self._push_register(operation - 0x70, at)
        elif operation in _BINARY:
            top = stack.pop()
            stack.append(_BINARY[operation](stack.pop(), top))
        elif operation in _UNARY:
            stack.append(_UNARY[operation](stack.pop()))
        elif operation in _CONSTANTS:
            size, is_signed = _CONSTANTS[operation]
            value, at = self._number(at, size, signed=is_signed)
            stack.append(value)
        elif operation == 0x06:  # deref
            stack.append(self._read(stack.pop()))
        elif operation in (0x12, 0x13, 0x14, 0x15, 0x16, 0x17):
            at = self._move(operation, at)
        else:
            at = self._rare(operation, at)
        return at

    def _push_register(self, register: int, at: int) -> int:
        offset, at = sleb(self._code, at, len(self._code))
        if register not in self._registers:
            raise UnknownRegisterError
        self._stack.append(self._registers[register] + offset)
        return at

    def _number(self, at: int, size: int, *, signed: bool) -> tuple[int, int]:
        piece = self._code[at : at + size]
        if len(piece) < size:
            raise damaged("expression cut short")
        return int.from_bytes(piece, "little", signed=signed), at + size

    def _move(self, operation: int, at: int) -> int:
        stack = self._stack
        if operation == 0x13:  # drop
            stack.pop()
        elif operation == 0x16:  # swap
            stack[-1], stack[-2] = stack[-2], stack[-1]
        elif operation == 0x17:  # rot
            stack[-1], stack[-2], stack[-3] = stack[-2], stack[-3], stack[-1]
        else:  # dup, over, pick
            below = {0x12: 0, 0x14: 1}.get(operation)
            if below is None:
                below, at = self._number(at, 1, signed=False)
            stack.append(stack[-1 - below])
        return at

    def _rare(self, operation: int, at: int) -> int:
        code, stack, end = self._code, self._stack, len(self._code)
        if operation in (0x10, 0x11):  # constu, consts
            value, at = (uleb if operation == 0x10 else sleb)(code, at, end)
            stack.append(value)
        elif operation == 0x23:  # plus_uconst
            value, at = uleb(code, at, end)
            stack.append(stack.pop() + value)
        elif operation == 0x92:  # bregx
            register, at = uleb(code, at, end)
            at = self._push_register(register, at)
        elif operation == 0x94:  # deref_size
            size, at = self._number(at, 1, signed=False)
            if not 1 <= size <= 8:
                raise damaged("expression that reads no word")
            stack.append(self._read(stack.pop()) & ((1 << 8 * size) - 1))
        elif operation in (0x28, 0x2F):  # bra, skip
            distance, at = self._number(at, 2, signed=True)
            if operation == 0x2F or stack.pop():
                at += distance
        elif operation != 0x96:  # nop
            raise damaged(f"unknown operation {operation:#x} in an expression")
        return at


WORD_BYTES: Final = 8


class End(Enum):
    """Why a stack ends where it does. Only ``OUTERMOST`` ones are whole."""

    OUTERMOST = "there is no caller"
    LIMIT = "more frames than were asked for"
    OUTSIDE_COPY = "memory that was not copied"
    NO_MODULE = "an address where no file is mapped"
    DAMAGED = "call-frame information that makes no sense"
    UNKNOWN_REGISTER = "a register that was not recorded"
    NO_PROGRESS = "a caller that is not further up the stack"


@dataclass(frozen=True, slots=True)
class UnwoundStack:
    """A stack as far as it could be followed."""

    frames: tuple[int, ...]
    """Where execution was, then return addresses, innermost first."""
    end: End
    fallback_count: int
    """Frames that had no call-frame information: their callers were found by the
    frame pointer, if they had one."""


@dataclass(frozen=True, slots=True)
class StackCopy:
    """Memory of a stack as it was."""

    address: int
    data: bytes
    holes: int = 0
    """Pages that are missing: a bit for each."""

    def word(self, address: int) -> int:
        """The 64-bit number at an address. Raises OutsideCopyError."""
        at = address - self.address
        if not 0 <= at <= len(self.data) - WORD_BYTES:
            raise OutsideCopyError
        last = at + WORD_BYTES - 1
        if (self.holes >> at // PAGESIZE | self.holes >> last // PAGESIZE) & 1:
            raise OutsideCopyError
        return int.from_bytes(self.data[at : at + WORD_BYTES], "little")


class OutsideCopyError(Exception):
    """Memory is needed that was not copied."""


Lookup = Callable[[int], RuleSet | None]
"""The rules at an address of the running program; None where no file is mapped.

Asked for the byte before a return address. May raise CfiError."""


def unwind(
    registers: Mapping[int, int],
    stack: StackCopy,
    lookup: Lookup,
    *,
    limit: int = 127,
    is_interrupted: bool = False,
) -> UnwoundStack:
    """The call stack from ``registers``: by DWARF number, at least ``RIP`` and ``RSP``.

    ``is_interrupted`` says that execution was at any instruction, not just behind a call.
    Registers that are missing are only missed where a rule needs them.
    """
    known = dict(registers)
    frames = [known[RIP]]
    fallbacks = 0
    end = End.LIMIT
    try:
        while len(frames) < limit:
            found = lookup(frames[-1] - (not is_interrupted))
            if found is None:
                end = End.NO_MODULE
                break
            fallbacks += found.is_fallback
            if found.is_fallback and known.get(RBP) == 0:
                end = End.OUTERMOST  # AMD64 supplement, section 3.4.1
                break
            caller = step(found, known, stack)
            if caller is None or not caller[RIP]:
                end = End.OUTERMOST
                break
            if caller[RSP] <= known[RSP] and not found.is_signal:
                end = End.NO_PROGRESS
                break
            known = caller
            is_interrupted = found.is_signal
            frames.append(known[RIP])
    except OutsideCopyError:
        end = End.OUTSIDE_COPY
    except UnknownRegisterError:
        end = End.UNKNOWN_REGISTER
    except CfiError:
        end = End.DAMAGED
    return UnwoundStack(tuple(frames), end, fallbacks)


def step(found: RuleSet, known: Mapping[int, int], stack: StackCopy) -> dict[int, int] | None:
    """The caller's registers, as far as they can be known; None if there is no caller.

    Raises OutsideCopyError, UnknownRegisterError or CfiError if the caller can't be found.
    """
    address_rule = found.registers.get(found.return_register)
    if address_rule is None:
        raise UnknownRegisterError
    if address_rule[0] == rules.UNDEFINED:
        return None
    if found.cfa_expression:
        cfa = evaluate(found.cfa_expression, known, stack.word, None)
    else:
        cfa = _register(known, found.cfa_register) + found.cfa_offset & MASK
    caller = {n: known[n] for n in CALLEE_SAVED if n in known}
    caller[RSP] = cfa
    for register, rule in found.registers.items():
        if register == found.return_register or rule[0] == rules.SAME:
            continue
        try:
            caller[register] = _value(rule, cfa, known, stack)
        except (OutsideCopyError, UnknownRegisterError, CfiError):
            # May never be needed.
            caller.pop(register, None)
    if RSP not in caller:
        raise UnknownRegisterError
    caller[RIP] = _value(address_rule, cfa, known, stack)
    return caller


def _register(known: Mapping[int, int], register: int) -> int:
    if register not in known:
        raise UnknownRegisterError
    return known[register]


def _value(rule: Rule, cfa: int, known: Mapping[int, int], stack: StackCopy) -> int:
    how, number, expression = rule
    if how == rules.OFFSET:
        return stack.word(cfa + number & MASK)
    if how == rules.VAL_OFFSET:
        return cfa + number & MASK
    if how == rules.REGISTER:
        return _register(known, number)
    if how == rules.EXPRESSION:
        return stack.word(evaluate(expression, known, stack.word, cfa))
    if how == rules.VAL_EXPRESSION:
        return evaluate(expression, known, stack.word, cfa)
    raise UnknownRegisterError
