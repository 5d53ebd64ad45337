"""Rows for many functions at once.

Every program is run once, from its start to its end, and equal programs are run only
once: in libLLVM-14 two thirds of all are equal to another one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.cfi.encoding import MASK, CfiError, Reason
from tracelloc.cfi.entries import Cie, Entries, Fde
from tracelloc.cfi.programs import Key, Rows, State, execute
from tracelloc.cfi.rows import encode_key, unencodable

U64 = npt.NDArray[np.uint64]

_NONE: Final = 0
"""Instead of a row: not covered."""
_SPARE_BYTES: Final = 1 << 16
_MOST_ROWS: Final = 1 << 21
"""Kept at once, and remembered with their programs. All of libLLVM-14 has 0.9 million."""

Program = tuple[list[int], list[int]]
"""Starts in bytes from the function's, sorted, and the rows from there on."""


class Batch:
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
        rows = Rows()
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
