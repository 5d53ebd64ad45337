"""DWARF expressions, as far as call-frame information uses them. DWARF 5, section 2.5."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tracelloc.cfi.encoding import MASK, CfiError, Reason, damaged, sleb, uleb

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
