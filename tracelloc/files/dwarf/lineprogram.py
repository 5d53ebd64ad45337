"""Source lines of addresses, from a unit's line program. DWARF 5, 6.2.5.

A program is a list of sequences. Each sequence begins with an instruction that sets an address
and generates rows (address, file, line) of ascending addresses. A regular expression finds the
ends of sequences ten times as fast as running them would. Only sequences with addresses that are
looked up are run.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.dataclass import dataclass
from tracelloc.files.dwarf.forms import (
    DAMAGE,
    TOMBSTONES,
    U16,
    U64,
    DwarfError,
    Recent,
    reason_of,
    sleb,
    uleb,
)
from tracelloc.files.dwarf.info import DebugInfo, DebugUnit
from tracelloc.files.dwarf.lineheader import LineHeader, file_name, read_header
from tracelloc.files.dwarf.ranges import UnitIndex

_COPY, _ADVANCE_PC, _ADVANCE_LINE, _SET_FILE, _SET_COLUMN = range(1, 6)
_CONST_ADD_PC, _FIXED_ADVANCE_PC = 8, 9
_OPERANDS: Final = {_ADVANCE_PC: 1, _ADVANCE_LINE: 1, _SET_FILE: 1, _SET_COLUMN: 1, 12: 1,
                    _COPY: 0, 6: 0, 7: 0, _CONST_ADD_PC: 0, 10: 0, 11: 0}  # fmt: skip
_END_SEQUENCE, _SET_ADDRESS = 1, 2
_MATCH_TOKENS: Final = 20_000  # Instructions per match: bounds the engine's backtracking
_KEPT_SEQUENCES: Final = 4096
_LOOK_BACK: Final = 4  # Number of sequences before an address that are checked: some may be empty


@lru_cache(maxsize=16)
def _plain_instructions(opcode_base: int, operand_counts: bytes) -> re.Pattern[bytes]:
    """Returns a pattern of plain instructions, up to one that starts or ends a sequence."""

    def one_of(codes: list[int]) -> bytes:
        return b"[" + b"".join(b"\\x%02x" % code for code in codes) + b"]"

    by_count: dict[int, list[int]] = {0: list(range(opcode_base, 256))}
    for code in range(1, opcode_base):
        if code != _FIXED_ADVANCE_PC:
            count = _OPERANDS.get(code, operand_counts[code - 1])
            by_count.setdefault(count, []).append(code)
    number = rb"[\x80-\xff]{0,9}[\x00-\x7f]"
    ways = [one_of(codes) + number * count for count, codes in by_count.items() if codes]
    ways.sort(key=len)
    if opcode_base > _FIXED_ADVANCE_PC:
        ways.append(rb"\x09..")
    # DW_LNE_set_discriminator
    ways.append(rb"\x00(?:\x02\x04.|\x03\x04..|\x04\x04...|\x05\x04....)")
    return re.compile(rb"(?:%s){0,%d}" % (b"|".join(ways), _MATCH_TOKENS), re.DOTALL)


@dataclass(frozen=True, slots=True)
class LineRows:
    """The rows of one sequence. A row covers the addresses up to the next row's."""

    address: npt.NDArray[np.uint64]  # Ascending; the last row is the end, without a line
    file: npt.NDArray[np.uint32]
    line: npt.NDArray[np.uint32]  # From 1; 0: no line

    def find(self, address: int) -> tuple[int, int] | None:
        at = int(np.searchsorted(self.address, np.uint64(address), side="right"))
        if at == 0 or at == len(self.address):
            return None
        return int(self.file[at - 1]), int(self.line[at - 1])


class LineProgram:
    """The line program of one unit, run on demand. Not thread-safe."""

    def __init__(self, info: DebugInfo, offset: int) -> None:
        """Reads the program at an offset of .debug_line. Raises DAMAGE."""
        self._info = info
        self.header = read_header(info, offset)
        info.budget.spend(len(self.header.data) // 16)
        places = _sequences(self.header)
        places.sort()
        self._start = np.array([address for address, _, _ in places], np.uint64)
        self._place = [(begin, end) for _, begin, end in places]
        self._rows: Recent[int, LineRows] = Recent(_KEPT_SEQUENCES)
        self._names: dict[tuple[int, str], str | None] = {}

    def find(self, address: int) -> tuple[int, int] | None:
        """Returns the file number and line (0: none) of an address; None if no row covers it."""
        last = int(np.searchsorted(self._start, np.uint64(address), side="right")) - 1
        for at in range(last, max(-1, last - _LOOK_BACK), -1):
            found = self._run(at).find(address)
            if found is not None:
                return found
        return None

    def file_name(self, number: int, comp_dir: str) -> str | None:
        key = number, comp_dir
        if key not in self._names:
            self._names[key] = file_name(self._info, self.header, number, comp_dir)
        return self._names[key]

    def ranges(self) -> list[tuple[int, int]]:
        """Returns the address range of each sequence. Runs all sequences."""
        found = []
        for at in range(len(self._place)):
            rows = self._run(at)
            if len(rows.address) > 1:
                found.append((int(rows.address[0]), int(rows.address[-1])))
        return found

    def _run(self, at: int) -> LineRows:
        def run() -> LineRows:
            begin, end = self._place[at]
            self._info.budget.spend(end - begin)
            return _run(self.header, begin, end)

        return self._rows.get(at, run)


def _sequences(header: LineHeader) -> list[tuple[int, int, int]]:
    """Returns (address, begin and end in the data) of each whole sequence of code that is there."""
    data = header.data
    match = _plain_instructions(header.opcode_base, header.operand_counts).match
    found = []
    begin = at = header.start
    address = None
    while at < len(data):
        matched = match(data, at)
        end = matched.end() if matched else at
        if end < len(data) and data[end] == 0:
            length, content = uleb(data, end + 1)
            at = content + length
            if length == 0 or at > len(data):
                raise DwarfError("a line program is damaged")
            if data[content] == _SET_ADDRESS and length == 9 and address is None:
                (address,) = U64.unpack_from(data, content + 1)
            elif data[content] == _END_SEQUENCE:
                if address is not None and address not in TOMBSTONES:
                    found.append((address, begin, at))
                begin, address = at, None
        elif end == at:
            raise DwarfError("a line program is damaged or cut short")
        else:
            at = end
    return found


def _run(header: LineHeader, at: int, end: int) -> LineRows:
    data, unit = header.data, header.instruction_bytes
    base, span, first_line = header.opcode_base, header.line_range, header.line_base
    constant = (255 - base) // span * unit
    address, file, line = 0, 1, 1
    addresses = array("Q")
    files = array("Q")
    lines = array("q")
    while at < end:
        code = data[at]
        at += 1
        if code >= base:
            code -= base
            address += code // span * unit
            line += first_line + code % span
        elif code == _ADVANCE_LINE:
            change, at = sleb(data, at)
            line += change
            continue
        elif code == _ADVANCE_PC:
            change, at = uleb(data, at)
            address += change * unit
            continue
        elif code == _SET_FILE:
            file, at = uleb(data, at)
            continue
        elif code == 0:
            length, at = uleb(data, at)
            if data[at] == _SET_ADDRESS and length == 9:
                (address,) = U64.unpack_from(data, at + 1)
            at += length
            continue
        elif code == _CONST_ADD_PC:
            address += constant
            continue
        elif code == _FIXED_ADVANCE_PC:
            address += U16.unpack_from(data, at)[0]
            at += 2
            continue
        elif code != _COPY:
            for _ in range(_OPERANDS.get(code, header.operand_counts[code - 1])):
                _, at = uleb(data, at)
            continue
        addresses.append(address)
        files.append(file)
        lines.append(line)
    addresses.append(address)
    files.append(0)
    lines.append(0)
    return _columns(addresses, files, lines)


def _columns(addresses: array[int], files: array[int], lines: array[int]) -> LineRows:
    rows = LineRows(
        np.frombuffer(addresses, np.uint64),
        np.frombuffer(files, np.uint64).astype(np.uint32),
        np.frombuffer(lines, np.int64).astype(np.uint32),
    )
    # Only damaged files have rows out of order; the binary search needs them sorted.
    if np.any(rows.address[1:] < rows.address[:-1]):
        order = np.argsort(rows.address, kind="stable")
        return LineRows(rows.address[order], rows.file[order], rows.line[order])
    return rows


@dataclass(frozen=True, slots=True)
class SourceFrame:
    """One function that contains an address, and the source line in it."""

    function: str | None  # Mangled linkage name, or else the plain name
    file: str | None
    line: int | None  # Source line, from 1; None: the code belongs to no line
    inlined: bool  # Whether the function was inlined into the next one in the chain


Chain = tuple[SourceFrame, ...]  # Innermost first; the last is not inlined. Empty: unknown.


_KEPT_BYTES: Final = 1 << 25  # Size of the cache of line programs


class LineIndex:
    """Looks up source lines by address. Not thread-safe."""

    def __init__(self, info: DebugInfo) -> None:
        self._info = info
        self._programs: Recent[int, LineProgram | None] = Recent(
            _KEPT_BYTES, lambda one: 0 if one is None else len(one.header.data)
        )
        self._index: UnitIndex | None = None

    def units(self, addresses: Sequence[int]) -> list[DebugUnit | None]:
        """Returns the unit that covers each address, or None. Never raises."""
        if self._index is None:
            self._index = UnitIndex(self._info, self._rows_of)
        return self._index.find(np.array(addresses, np.uint64))

    def line_in(self, unit: DebugUnit, address: int) -> tuple[str | None, int | None]:
        """Returns file and line of an address in a unit; None if unknown. Never raises."""
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

    def file_name(self, unit: DebugUnit, number: int) -> str | None:
        """Returns the path of a file by its number in a unit's line program. Never raises."""
        try:
            program = self._program(unit)
            return program.file_name(number, unit.root.comp_dir) if program is not None else None
        except DAMAGE as error:
            self._info.blame(reason_of(error))
            return None

    def _rows_of(self, unit: DebugUnit) -> list[tuple[int, int]]:
        program = self._program(unit)
        return program.ranges() if program is not None else []

    def _program(self, unit: DebugUnit) -> LineProgram | None:
        offset = unit.root.line_offset
        if offset is None:
            return None
        return self._programs.get(offset, lambda: self._read(offset))

    def _read(self, offset: int) -> LineProgram | None:
        try:
            return LineProgram(self._info, offset)
        except DAMAGE as error:
            self._info.blame(reason_of(error))
            return None
