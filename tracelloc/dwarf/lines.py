"""Address to file and line, a unit at a time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracelloc.dwarf.index import UnitIndex
from tracelloc.dwarf.info import DebugInfo, Unit
from tracelloc.dwarf.lineprogram import LineProgram
from tracelloc.dwarf.reader import DAMAGE, reason_of

_KEPT_BYTES: Final = 1 << 25
"""Of line programs: those last asked for stay in memory."""


@dataclass(frozen=True, slots=True)
class SourceLine:
    """Where code comes from."""

    file: str
    line: int | None
    """From 1; None for code that belongs to no line."""


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

    def find(self, addresses: Sequence[int]) -> list[SourceLine | None]:
        """The line of each address, None where it is not known; never raises."""
        units = self.units(addresses)
        return [
            self.line_in(unit, address) if unit is not None else None
            for address, unit in zip(addresses, units, strict=True)
        ]

    def line_in(self, unit: Unit, address: int) -> SourceLine | None:
        """The line of an address in a unit; never raises."""
        try:
            program = self._program(unit)
            row = program.find(address) if program is not None else None
            if program is None or row is None:
                return None
            name = program.file_name(row[0], unit.root.comp_dir)
        except DAMAGE as error:
            self._info.blame(reason_of(error))
            return None
        return SourceLine(name, row[1] or None) if name is not None else None

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
