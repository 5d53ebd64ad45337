"""Address ranges of units and functions, and lookup of the unit that covers an address.

Ranges: DWARF 5, 2.17.3 and 7.25; DWARF 4, 2.17.3. Units: DWARF 5, 6.1.2 (.debug_aranges) and
3.1.1. gcc and rustc list the ranges of units in .debug_aranges, clang does not, and a file may
have units of both kinds. The ranges of unlisted units come from their first entries. Only if these
lack an address, the first entries of listed units are read as well, and finally the line
programs of units without ranges.
"""

import struct
from collections.abc import Callable, Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.files.dwarf import forms
from tracelloc.files.dwarf.forms import (
    DAMAGE,
    TOMBSTONES,
    U16,
    U64,
    DwarfError,
    Value,
    initial_length,
    offset_at,
    reason_of,
    uleb,
)
from tracelloc.files.dwarf.info import DebugInfo, DebugUnit

Range = tuple[int, int]  # First address, and the address after the last

_PAIR: Final = struct.Struct("<QQ")
_BASE_FOLLOWS: Final = (1 << 64) - 1
_ADDRESSES: Final = 1 << 64
_FIRST_BYTES: Final = 256

_END, _BASE_X, _START_X_END_X, _START_X_LENGTH = range(4)
_OFFSET_PAIR, _BASE, _START_END, _START_LENGTH = range(4, 8)


def unit_ranges(unit: DebugUnit) -> list[Range]:
    """Returns the ranges of a unit from its first entry. Raises DAMAGE."""
    root = unit.root
    if root.ranges is not None:
        return list_at(unit, root.ranges)
    return span(root.low_pc, root.high_pc)


def span(low: int | None, high: int | None) -> list[Range]:
    """Returns a range as a list of one; an empty list for an empty range, or discarded code."""
    if low is None or high is None or low in TOMBSTONES or not low < high < _ADDRESSES:
        return []
    return [(low, high)]


def list_at(unit: DebugUnit, value: tuple[int, Value]) -> list[Range]:
    """Returns the address ranges that a value of DW_AT_ranges stands for. Raises DAMAGE."""
    form, offset = value
    if not isinstance(offset, int):
        raise DwarfError("a list of ranges has no offset")
    if unit.version < 5:
        return _pairs(unit, offset)
    if form == forms.RNGLISTX:
        base, size = unit.root.ranges_base, unit.encoding.offset_size
        section = unit.info.rnglists
        if section is None:
            raise DwarfError("a list of ranges is missing")
        offset = base + offset_at(section.read(base + offset * size, size), 0, size)
    return _entries(unit, offset)


def _pairs(unit: DebugUnit, offset: int) -> list[Range]:
    """Reads a list of .debug_ranges: pairs of addresses relative to a base, ended by zeros."""
    section = unit.info.ranges
    if section is None:
        raise DwarfError("a list of ranges is missing")
    base = unit.root.low_pc or 0
    found: list[Range] = []
    size = _FIRST_BYTES
    while True:
        data = section.read(offset, size)
        whole = len(data) - len(data) % _PAIR.size
        unit.info.budget.spend(1 + whole // _PAIR.size)
        for low, high in _PAIR.iter_unpack(data[:whole]):
            if low == _BASE_FOLLOWS:
                base = high
            elif low == 0 and high == 0:
                return found
            elif low < high and low not in TOMBSTONES[2:]:
                found += span(base + low, base + high)
        if len(data) < size:
            raise DwarfError("a list of ranges has no end")
        offset += whole
        size = min(size * 4, 1 << 20)


def _entries(unit: DebugUnit, offset: int) -> list[Range]:
    section = unit.info.rnglists
    if section is None or offset >= section.size:
        raise DwarfError("a list of ranges is missing")
    size = _FIRST_BYTES
    while True:
        data = section.read(offset, size)
        unit.info.budget.spend(1 + len(data) // 4)
        try:
            return _decode(unit, data)
        except (IndexError, struct.error):
            if len(data) < size:
                raise
            size *= 8


def _decode(unit: DebugUnit, data: bytes) -> list[Range]:
    found: list[Range] = []
    base = unit.root.low_pc or 0
    at = 0
    while True:
        kind = data[at]
        at += 1
        if kind == _OFFSET_PAIR:
            low, at = uleb(data, at)
            high, at = uleb(data, at)
            if base not in TOMBSTONES[2:]:
                found += span(base + low, base + high)
        elif kind == _START_LENGTH:
            (low,) = U64.unpack_from(data, at)
            length, at = uleb(data, at + 8)
            found += span(low, low + length)
        elif kind == _START_X_LENGTH:
            index, at = uleb(data, at)
            length, at = uleb(data, at)
            start = unit.info.indexed_address(index, unit.root.address_base)
            found += span(start, None if start is None else start + length)
        elif kind == _END:
            return found
        elif kind == _BASE:
            (base,) = U64.unpack_from(data, at)
            at += 8
        elif kind == _BASE_X:
            index, at = uleb(data, at)
            base = unit.info.indexed_address(index, unit.root.address_base) or 0
        elif kind == _START_END:
            low, high = _PAIR.unpack_from(data, at)
            at += 16
            found += span(low, high)
        elif kind == _START_X_END_X:
            first, at = uleb(data, at)
            last, at = uleb(data, at)
            base_at = unit.root.address_base
            found += span(
                unit.info.indexed_address(first, base_at), unit.info.indexed_address(last, base_at)
            )
        else:
            raise DwarfError(f"unknown kind of range {kind}")


_MOST_RANGES: Final = 1 << 23
_LOOK_BACK: Final = 256  # Ranges before an address that are checked, as units may overlap


class UnitIndex:
    """Looks up the compilation unit that covers an address. Not thread-safe."""

    def __init__(self, info: DebugInfo, rows_of: Callable[[DebugUnit], list[Range]]) -> None:
        """``rows_of``: returns the address ranges that a unit's line program has rows for."""
        self._info = info
        self._rows_of = rows_of
        self._listed: set[int] = set()
        self._silent: list[DebugUnit] = []
        self._parts: list[npt.NDArray[np.uint64]] = []
        self._is_complete = False
        self._count = 0
        self._read_aranges()
        self._add(unit for unit in info.units if unit.offset not in self._listed)
        self._sort()

    def find(self, addresses: npt.NDArray[np.uint64]) -> list[DebugUnit | None]:
        found = self._look_up(addresses)
        if not self._is_complete and any(unit is None for unit in found):
            self._complete()
            found = self._look_up(addresses)
        return found

    def _look_up(self, addresses: npt.NDArray[np.uint64]) -> list[DebugUnit | None]:
        found: list[DebugUnit | None] = []
        after = np.searchsorted(self._low, addresses, side="right")
        for address, end in zip(addresses.tolist(), after.tolist(), strict=True):
            for at in range(end - 1, max(-1, end - 1 - _LOOK_BACK), -1):
                if address < int(self._high[at]):
                    unit = self._info.unit_at(int(self._unit[at]))
                    found.append(unit if unit is not None and unit.may_hold_code else None)
                    break
                if address >= int(self._reach[at]):
                    found.append(None)
                    break
            else:
                found.append(None)
        return found

    def _complete(self) -> None:
        """Adds address ranges that are slower to read and rarely needed."""
        self._is_complete = True
        self._add(unit for unit in self._info.units if unit.offset in self._listed)
        for unit in self._silent:
            try:
                self._keep(self._rows_of(unit), unit)
            except DAMAGE as error:
                self._info.blame(reason_of(error))
        self._sort()

    def _add(self, units: Iterable[DebugUnit]) -> None:
        for unit in units:
            if not unit.may_hold_code:
                continue
            try:
                self._info.budget.spend(4)
                ranges = unit_ranges(unit)
                root = unit.root
            except DAMAGE as error:
                self._info.blame(reason_of(error))
                continue
            if ranges:
                self._keep(ranges, unit)
            elif root.line_offset is not None and root.low_pc is None and root.ranges is None:
                self._silent.append(unit)

    def _keep(self, ranges: list[Range], unit: DebugUnit) -> None:
        self._count += len(ranges)
        if self._count > _MOST_RANGES:
            self._info.blame(f"only {_MOST_RANGES} ranges of units are used")
        elif ranges:
            rows = np.empty((len(ranges), 3), np.uint64)
            rows[:, :2] = ranges
            rows[:, 2] = unit.offset
            self._parts.append(rows)

    def _sort(self) -> None:
        table = np.concatenate([np.empty((0, 3), np.uint64), *self._parts])
        # Of ranges with the same start, the narrowest is last, so ``_look_up`` finds it first.
        table = table[np.lexsort((~table[:, 1], table[:, 0]))]
        self._low, self._high, self._unit = (np.ascontiguousarray(c) for c in table.T)
        self._reach = np.maximum.accumulate(self._high) if len(table) else self._high

    def _read_aranges(self) -> None:
        section = self._info.aranges
        if section is None:
            return
        sets: list[npt.NDArray[np.uint64]] = []
        offsets: list[int] = []
        try:
            data = section.data()
            at = 0
            while at < len(data):
                at, offset, pairs = self._read_set(data, at)
                sets.append(pairs)
                offsets.append(offset)
        except DAMAGE as error:
            self._info.blame(reason_of(error))
        low, size = np.concatenate([np.empty((0, 2), np.uint64), *sets]).T
        owner = np.repeat(np.array(offsets, np.uint64), [len(pairs) for pairs in sets])
        real = (size > 0) & ~np.isin(low, TOMBSTONES) & (low + size > low)
        self._parts.append(np.column_stack((low, low + size, owner))[real])
        self._listed.update(owner[real].tolist())

    def _read_set(self, data: bytes, start: int) -> tuple[int, int, npt.NDArray[np.uint64]]:
        """Reads a unit's list (DWARF 5, 7.21): (offset of the next, unit, addresses and sizes)."""
        length, offset_size, at = initial_length(data, start)
        end = min(at + length, len(data))
        (version,) = U16.unpack_from(data, at)
        offset = offset_at(data, at + 2, offset_size)
        address_size, selector_size = data[at + 2 + offset_size], data[at + 3 + offset_size]
        self._info.budget.spend(1 + (end - start) // 16)
        # Pairs are aligned to their size, relative to the set's start.
        at = start + -(-(at + 4 + offset_size - start) // 16) * 16
        is_known = (version, address_size, selector_size) == (2, 8, 0)
        count = max(0, end - at) // 16 if is_known else 0
        return end, offset, np.frombuffer(data, "<u8", 2 * count, at if count else 0).reshape(-1, 2)
