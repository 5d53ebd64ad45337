"""Address ranges of units and functions. DWARF 5, 2.17.3 and 7.25; DWARF 4, 2.17.3."""

from __future__ import annotations

import struct
from typing import Final

from tracelloc.dwarf import forms
from tracelloc.dwarf.forms import Value
from tracelloc.dwarf.info import Unit
from tracelloc.dwarf.reader import TOMBSTONES, U64, DwarfError, offset_at, uleb

Range = tuple[int, int]
"""First address, and the one behind the last."""

_PAIR: Final = struct.Struct("<QQ")
_BASE_FOLLOWS: Final = (1 << 64) - 1
_ADDRESSES: Final = 1 << 64
_FIRST_BYTES: Final = 256

_END, _BASE_X, _START_X_END_X, _START_X_LENGTH = range(4)
_OFFSET_PAIR, _BASE, _START_END, _START_LENGTH = range(4, 8)


def unit_ranges(unit: Unit) -> list[Range]:
    """The code of a unit, as its first entry has it. Raises DAMAGE."""
    root = unit.root
    if root.ranges is not None:
        return list_at(unit, root.ranges)
    return span(root.low_pc, root.high_pc)


def span(low: int | None, high: int | None) -> list[Range]:
    """One range as a list; none if it is empty or of code that was left out."""
    if low is None or high is None or low in TOMBSTONES or not low < high < _ADDRESSES:
        return []
    return [(low, high)]


def list_at(unit: Unit, value: tuple[int, Value]) -> list[Range]:
    """The list that DW_AT_ranges names. Raises DAMAGE."""
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


def _pairs(unit: Unit, offset: int) -> list[Range]:
    """A list of .debug_ranges: pairs of addresses relative to a base, to a pair of zeros."""
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


def _entries(unit: Unit, offset: int) -> list[Range]:
    """A list of .debug_rnglists."""
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


def _decode(unit: Unit, data: bytes) -> list[Range]:
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
