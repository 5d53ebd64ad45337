"""Address to file and line, a unit at a time, and the frames that are made of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracelloc.dwarf.forms import DAMAGE, reason_of
from tracelloc.dwarf.info import DebugInfo, Unit
from tracelloc.dwarf.lineprogram import LineProgram
from tracelloc.dwarf.ranges import UnitIndex


@dataclass(frozen=True, slots=True)
class SourceFrame:
    """One function that an address belongs to, and the place in it."""

    function: str | None
    """Linkage name as the compiler wrote it; the plain one if it has none."""
    file: str | None
    line: int | None
    """From 1; None for code that belongs to no line."""
    inlined: bool
    """Whether it is not called but part of the next one in the chain."""


Chain = tuple[SourceFrame, ...]
"""Innermost first; the last one is a real function. Empty: nothing is known."""


_KEPT_BYTES: Final = 1 << 25
"""Of line programs: those last asked for stay in memory."""


class LineIndex:
    """Source lines by address. Not thread safe."""

    def __init__(self, info: DebugInfo) -> None:
        self._info = info
        self._programs: OrderedDict[int, LineProgram | None] = OrderedDict()
        self._kept_bytes = 0
        self._index: UnitIndex | None = None

    def units(self, addresses: Sequence[int]) -> list[Unit | None]:
        """The unit that covers each address; never raises."""
        if self._index is None:
            self._index = UnitIndex(self._info, self._rows_of)
        return self._index.find(np.array(addresses, np.uint64))

    def line_in(self, unit: Unit, address: int) -> tuple[str | None, int | None]:
        """File and line of an address in a unit, None where not known; never raises."""
        try:
            program = self._program(unit)
            row = program.find(address) if program is not None else None
            if program is None or row is None:
                return None, None
            name = program.file_name(row[0], unit.root.comp_dir)
        except DAMAGE as error:
            self._info.blame(reason_of(error))
            return None, None
        return name, (row[1] or None) if name is not None else None

    def file_name(self, unit: Unit, number: int) -> str | None:
        """The path of a file by its number in a unit's line program. Raises DAMAGE."""
        program = self._program(unit)
        return program.file_name(number, unit.root.comp_dir) if program is not None else None

    def _rows_of(self, unit: Unit) -> list[tuple[int, int]]:
        program = self._program(unit)
        return program.ranges() if program is not None else []

    def _program(self, unit: Unit) -> LineProgram | None:
        """A unit's line program, None if it has none or a damaged one."""
        offset = unit.root.line_offset
        if offset is None:
            return None
        if offset in self._programs:
            self._programs.move_to_end(offset)
            return self._programs[offset]
        program = None
        try:
            program = LineProgram(self._info, offset)
            self._kept_bytes += len(program.header.data)
        except DAMAGE as error:
            self._info.blame(reason_of(error))
        self._programs[offset] = program
        while self._kept_bytes > _KEPT_BYTES and len(self._programs) > 1:
            old = self._programs.popitem(last=False)[1]
            self._kept_bytes -= len(old.header.data) if old is not None else 0
        return program
