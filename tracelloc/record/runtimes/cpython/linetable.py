"""Lines of a CPython function's instructions (Objects/locations.md of CPython, 3.11 on)."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Final

_UNIT_BYTES: Final = 2
_NO_LINE: Final = 15
_LONG: Final = 14
_NO_COLUMN: Final = 13
_ONE_LINE: Final = (10, 11, 12)
_MOST_LINES: Final = (1 << 31) - 1
_NONE: Final = -1  # Stands for no line


class LineTable:
    """The decoded ``co_linetable`` of one code object."""

    def __init__(self, table: bytes, first_line: int) -> None:
        """Decodes the table, up to the first damage."""
        self._first_line = first_line
        self._starts = array("I")
        self._lines = array("i")
        line, start, at = first_line, 0, 0
        while at < len(table):
            code = table[at] >> 3 & 15
            length = (table[at] & 7) + 1
            at += 1
            if code in (_LONG, _NO_COLUMN):
                change, at = _signed(table, at)
                line += change
                for _ in range(3 if code == _LONG else 0):
                    _, at = _unsigned(table, at)
            elif code in _ONE_LINE:
                line += code - _ONE_LINE[0]
                at += 2
            elif code != _NO_LINE:
                at += 1
            self._starts.append(start)
            self._lines.append(_NONE if code == _NO_LINE else max(_NONE, min(line, _MOST_LINES)))
            start += length * _UNIT_BYTES
        self._end = start

    def line(self, offset: int) -> int | None:
        """The line of the instruction at an offset in bytes; None if it has no line."""
        if offset < 0:
            return self._first_line
        if offset >= self._end:
            return None
        line = self._lines[bisect_right(self._starts, offset) - 1]
        return None if line == _NONE else line


def _unsigned(table: bytes, at: int) -> tuple[int, int]:
    """(a number stored in pieces of 6 bits, where the next one begins)"""
    value = shift = 0
    while at < len(table):
        byte = table[at]
        at += 1
        value |= (byte & 63) << shift
        shift += 6
        if not byte & 64:
            break
    return value, at


def _signed(table: bytes, at: int) -> tuple[int, int]:
    value, at = _unsigned(table, at)
    return (-(value >> 1) if value & 1 else value >> 1), at
