"""Functions by address, and what was inlined into them. DWARF 5, 3.3.

The functions of a unit are indexed when an address in it is first asked for; the entries
below a function, when an address in that function is.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.dwarf import abbrev, forms
from tracelloc.dwarf.abbrev import attributes_of
from tracelloc.dwarf.forms import Value
from tracelloc.dwarf.info import DebugInfo, Unit
from tracelloc.dwarf.reader import DAMAGE, DwarfError, reason_of, uleb
from tracelloc.dwarf.walk import Walker

_MOST_NAMES: Final = 1 << 14
_KEPT_WALKERS: Final = 16
_KEPT_FUNCTIONS: Final = 1 << 12
_KEPT_ROWS: Final = 1 << 20
"""Of function tables."""
_KEPT_INLINED: Final = 1 << 18
_LOOK_BACK: Final = 64
"""How many functions before an address are tried: nested ones lie in others."""
_DEEPEST: Final = 500
"""How many functions inlined into each other are given for one address."""
_LONGEST_NAME_CHAIN: Final = 8
"""From a copy to its origin to its declaration."""


@dataclass(frozen=True, slots=True)
class Call:
    """A function at an address, and where it was called from if it was inlined."""

    name: str | None
    """Linkage name, or the plain one if it has none."""
    call_file: int | None
    """Number in the unit's line program; None: unknown, or not inlined."""
    call_line: int | None
    """From 1."""


@dataclass(frozen=True, slots=True)
class _Table:
    """Ranges and whose they are: entries of functions, or rows of inlined ones."""

    low: npt.NDArray[np.uint64]
    high: npt.NDArray[np.uint64]
    owner: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Inlined:
    parent: int
    """Row of what it was inlined into; -1: the function itself."""
    origin: tuple[int, Value] | None
    call_file: int | None
    call_line: int | None


def _table(rows: list[tuple[int, int, int]]) -> _Table:
    low, high, owner = zip(*rows, strict=True) if rows else ((), (), ())
    return _Table(np.array(low, np.uint64), np.array(high, np.uint64), np.array(owner, np.int64))


class InlineReader:
    """Chains of calls by address. Not thread safe."""

    def __init__(self, info: DebugInfo) -> None:
        self._info = info
        self._units: OrderedDict[int, _Table] = OrderedDict()
        self._rows = 0
        self._walkers: OrderedDict[int, Walker] = OrderedDict()
        self._functions: OrderedDict[int, tuple[_Table, list[_Inlined]]] = OrderedDict()
        self._inlined_count = 0
        self._names: dict[int, str | None] = {}

    def chain(self, unit: Unit, address: int) -> list[Call]:
        """The functions at an address, the innermost first; none if unknown. Never raises."""
        try:
            entry = self._function_at(unit, address)
            return [] if entry is None else self._calls(unit, entry, address)
        except DAMAGE as error:
            self._info.blame(reason_of(error))
            return []

    def _calls(self, unit: Unit, entry: int, address: int) -> list[Call]:
        table, inlined = self._inlined_in(unit, entry)
        at = np.uint64(address)
        covering = table.owner[(table.low <= at) & (at < table.high)]
        # Inner entries stand behind outer ones.
        row = int(covering.max()) if len(covering) else -1
        calls: list[Call] = []
        while row >= 0 and len(calls) < _DEEPEST:
            here = inlined[row]
            name = self._referred_name(unit, here.origin, 0)
            calls.append(Call(name, here.call_file, here.call_line or None))
            row = here.parent
        if row >= 0:
            self._info.blame(f"only {_DEEPEST} inlined functions of one address are shown")
        calls.append(Call(self._name(unit.offset + entry, 0), None, None))
        return calls

    def _walker(self, unit: Unit) -> Walker:
        walker = self._walkers.get(unit.offset)
        if walker is None:
            walker = self._walkers[unit.offset] = Walker(unit)
            if len(self._walkers) > _KEPT_WALKERS:
                self._walkers.popitem(last=False)
        return walker

    def _function_at(self, unit: Unit, address: int) -> int | None:
        """Where in the unit the entry of the innermost function at an address begins."""
        table = self._units.get(unit.offset)
        if table is None:
            rows: list[tuple[int, int, int]] = []
            self._info.budget.spend(unit.size)
            try:
                for start, ranges in self._walker(unit).functions():
                    rows += [(low, high, start) for low, high in ranges]
                    if len(rows) > _KEPT_ROWS:
                        raise DwarfError("a unit has too many functions")
            except DAMAGE as error:
                # What was found before is right, and the unit is not walked again.
                self._info.blame(reason_of(error))
            rows.sort()
            table = self._units[unit.offset] = _table(rows)
            self._rows += len(rows)
            while self._rows > _KEPT_ROWS and len(self._units) > 1:
                self._rows -= len(self._units.popitem(last=False)[1].low)
        last = int(np.searchsorted(table.low, np.uint64(address), side="right")) - 1
        first = max(0, last - _LOOK_BACK)
        covering = table.owner[first : last + 1][table.high[first : last + 1] > address]
        return int(covering.max()) if len(covering) else None

    def _inlined_in(self, unit: Unit, entry: int) -> tuple[_Table, list[_Inlined]]:
        key = unit.offset + entry
        known = self._functions.get(key)
        if known is not None:
            self._functions.move_to_end(key)
            return known
        rows: list[tuple[int, int, int]] = []
        inlined: list[_Inlined] = []
        try:
            for parent, ranges, found in self._walker(unit).inlined(entry):
                if len(rows) > _KEPT_INLINED or len(inlined) > _KEPT_INLINED:
                    raise DwarfError("too much is inlined into one function")
                rows += [(low, high, len(inlined)) for low, high in ranges]
                origin = found.get(abbrev.AT_ABSTRACT_ORIGIN)
                file, line = (
                    _number(found.get(at)) for at in (abbrev.AT_CALL_FILE, abbrev.AT_CALL_LINE)
                )
                inlined.append(_Inlined(parent, origin, file, line))
        except DAMAGE as error:
            self._info.blame(reason_of(error))
        result = self._functions[key] = _table(rows), inlined
        self._inlined_count += len(inlined)
        while len(self._functions) > _KEPT_FUNCTIONS or (
            self._inlined_count > _KEPT_INLINED and len(self._functions) > 1
        ):
            self._inlined_count -= len(self._functions.popitem(last=False)[1][1])
        return result

    def _referred_name(
        self, unit: Unit, reference: tuple[int, Value] | None, depth: int
    ) -> str | None:
        """The name of the entry that an attribute refers to; None if it is in another file."""
        if reference is None or depth > _LONGEST_NAME_CHAIN:
            return None
        form, offset = reference
        if not isinstance(offset, int):
            return None
        if form in forms.UNIT_REFERENCE:
            return self._name(unit.offset + offset, depth)
        if form == forms.GNU_REF_ALT:
            self._info.elsewhere = "names of functions lie in another file (.gnu_debugaltlink)"
        return self._name(offset, depth) if form == forms.REF_ADDR else None

    def _name(self, offset: int, depth: int) -> str | None:
        """The name of the entry at an offset of .debug_info, its own or its origin's."""
        if offset in self._names:
            return self._names[offset]
        if len(self._names) >= _MOST_NAMES:
            self._names.clear()
        name = self._names[offset] = self._read_name(offset, depth)
        return name

    def _read_name(self, offset: int, depth: int) -> str | None:
        unit = self._info.unit_at(offset)
        if unit is None or not unit.may_hold_code or offset - unit.offset < unit.first_entry:
            return None
        data = unit.data()
        code, at = uleb(data, offset - unit.offset)
        kind = unit.abbreviations.get(code)
        self._info.budget.spend(8 + len(kind.attributes))
        found = attributes_of(data, at, kind, unit.encoding)
        plain: str | None = None
        for name in (abbrev.AT_LINKAGE_NAME, abbrev.AT_MIPS_LINKAGE_NAME, abbrev.AT_NAME):
            if name in found:
                plain = self._info.string(unit, found[name], unit.root.string_base)
                if plain is not None and name != abbrev.AT_NAME:
                    return plain
        for name in (abbrev.AT_ABSTRACT_ORIGIN, abbrev.AT_SPECIFICATION):
            # The declaration may have a linkage name where this entry has none.
            origin = self._referred_name(unit, found.get(name), depth + 1)
            if origin is not None:
                return origin
        return plain


def _number(value: tuple[int, Value] | None) -> int | None:
    return value[1] if value is not None and isinstance(value[1], int) else None
