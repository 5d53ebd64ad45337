"""Functions by address, and their inlined calls. DWARF 5, 3.3.

A unit's functions are indexed when an address in the unit is first looked up, and the entries
(DIEs) below a function when an address in that function is. Entries follow each other, children
after their parent, and most compilers do not write the offset of the next sibling. So all entries
have to be skipped one by one, most of them by a lookup and an addition.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.dataclass import dataclass
from tracelloc.files.demangle import with_arguments
from tracelloc.files.dwarf import abbrev, forms
from tracelloc.files.dwarf.abbrev import Abbreviation, Skipper, attributes_of
from tracelloc.files.dwarf.forms import DAMAGE, DwarfError, Recent, Value, reason_of, uleb
from tracelloc.files.dwarf.info import DebugInfo, DebugUnit
from tracelloc.files.dwarf.ranges import Range, list_at, span

_PLACE: Final = frozenset((abbrev.AT_LOW_PC, abbrev.AT_HIGH_PC, abbrev.AT_RANGES))
_CALL: Final = frozenset((*_PLACE, abbrev.AT_ABSTRACT_ORIGIN, abbrev.AT_CALL_FILE,
                          abbrev.AT_CALL_LINE))  # fmt: skip
_VARIABLE: Final = frozenset((abbrev.AT_LOCATION, abbrev.AT_SPECIFICATION,
                              abbrev.AT_ABSTRACT_ORIGIN, abbrev.AT_DECL_FILE,
                              abbrev.AT_DECL_LINE))  # fmt: skip
_ONE_BYTE: Final = 0x80  # Codes of abbreviations below this are one byte long

Attributes = dict[int, tuple[int, Value]]


class EntryWalker:
    """Walks the entries (DIEs) of one unit, for its functions, inlined calls and variables."""

    def __init__(self, unit: DebugUnit) -> None:
        """Reads the unit's abbreviations. Raises DAMAGE."""
        self._unit = unit
        self._skippers: dict[int, Skipper] = unit.abbreviations.skippers(unit.encoding)
        self._kinds = unit.abbreviations.all()
        with_code = abbrev.AT_LOW_PC, abbrev.AT_RANGES
        self._functions = self._some(abbrev.TAG_SUBPROGRAM, with_code, _PLACE)
        self._inlined = self._some(abbrev.TAG_INLINED_SUBROUTINE, with_code, _CALL)

    def _some(
        self, tag: int, needed: tuple[int, ...], names: frozenset[int]
    ) -> dict[int, Abbreviation]:
        """Returns kinds of entries with any of the ``needed`` attributes, read up to ``names``."""
        return {
            code: kind.up_to(names)
            for code, kind in self._kinds.items()
            if kind.tag == tag and kind.has(*needed)
        }

    def _plain_steps(self, special: dict[int, Abbreviation], only_leaves: bool) -> list[int]:
        """Returns, by first byte, the size of entries that can be skipped unread; 0 for others."""
        steps = [0] * 256
        for code, skipper in self._skippers.items():
            if code < _ONE_BYTE and (skipper.size >= 0 and code not in special):
                steps[code] = 1 + skipper.size
                if only_leaves and self._kinds[code].has_children:
                    steps[code] = 0
        return steps

    def _after(self, data: bytes, code: int, at: int) -> int:
        skipper = self._skippers.get(code)
        if skipper is None:
            raise DwarfError(f"an entry has the unknown abbreviation {code}")
        if skipper.size >= 0:
            return at + skipper.size
        return skipper.skip(data, at, self._unit.encoding)

    def functions(self) -> Iterator[tuple[int, list[Range]]]:
        """Yields (offset of the entry in the unit, address ranges) of each function with code."""
        for start, found in self._entries(self._functions):
            yield start, self._ranges(found)

    def variables(self) -> Iterator[Attributes]:
        kinds = self._some(abbrev.TAG_VARIABLE, (abbrev.AT_LOCATION,), _VARIABLE)
        for _, found in self._entries(kinds):
            yield found

    def _entries(self, kinds: dict[int, Abbreviation]) -> Iterator[tuple[int, Attributes]]:
        data = self._unit.data()
        end = len(data)
        steps = self._plain_steps(kinds, only_leaves=False)
        skips: list[Skipper | None] = [None] * 256  # For entries of variable size
        for code, each in self._skippers.items():
            if code < _ONE_BYTE and each.size < 0 and code not in kinds:
                skips[code] = each
        encoding = self._unit.encoding
        steps[0] = 1
        at = self._unit.first_entry
        while at < end:
            first = data[at]
            if step := steps[first]:
                at += step
                continue
            if skipper := skips[first]:
                at = skipper.skip(data, at + 1, encoding)
                continue
            start = at
            code, at = uleb(data, at)
            if code in kinds:
                kind = kinds[code]
                self._unit.info.budget.spend(len(kind.attributes))
                yield start, attributes_of(data, at, kind, encoding)
            at = self._after(data, code, at) if code else at

    def inlined(self, start: int) -> Iterator[tuple[int, list[Range], Attributes]]:
        """Yields the calls inlined into the function whose entry is at ``start``, outer ones first.

        Yields for each call: the number of the call that contains it (from 0 in this order, -1:
        the function itself), its address ranges, and its attributes.
        """
        data = self._unit.data()
        end = len(data)
        code, at = uleb(data, start)
        at = self._after(data, code, at)
        depth = 1 if self._kinds[code].has_children else 0
        steps = self._plain_steps(self._inlined, only_leaves=True)
        count = 0
        around: list[tuple[int, int]] = []  # depth and number of those not yet at their end
        while depth and at < end:
            step = steps[data[at]]
            if step:
                at += step
                continue
            code, at = uleb(data, at)
            if code == 0:
                depth -= 1
                if around and around[-1][0] == depth:
                    around.pop()
                continue
            if code in self._inlined:
                kind = self._inlined[code]
                self._unit.info.budget.spend(len(kind.attributes))
                found = attributes_of(data, at, kind, self._unit.encoding)
                yield (around[-1][1] if around else -1), self._ranges(found), found
                if self._kinds[code].has_children:
                    around.append((depth, count))
                count += 1
            at = self._after(data, code, at)
            depth += self._kinds[code].has_children

    def _ranges(self, found: Attributes) -> list[Range]:
        unit = self._unit
        if abbrev.AT_RANGES in found:
            return list_at(unit, found[abbrev.AT_RANGES])
        if abbrev.AT_LOW_PC not in found:
            return []
        base = unit.root.address_base
        low = unit.info.address(found[abbrev.AT_LOW_PC], base)
        return span(low, unit.info.end_address(found.get(abbrev.AT_HIGH_PC), low, base))


_MOST_NAMES: Final = 1 << 14
_KEPT_WALKERS: Final = 16
_FUNCTION_WEIGHT: Final = 1 << 6
_KEPT_ROWS: Final = 1 << 20  # Most rows of cached function tables
_KEPT_INLINED: Final = 1 << 18
_LOOK_BACK: Final = 64  # Functions before an address that are checked: they may be nested
_DEEPEST: Final = 500  # Most inlined calls returned for one address
_LONGEST_NAME_CHAIN: Final = 8  # References followed: to the origin, to the declaration


@dataclass(frozen=True, slots=True)
class Call:
    """A function that contains an address, and its call site if it was inlined."""

    name: str | None  # Linkage name, or else the plain name; None if unknown
    call_file: int | None  # Its number in the unit's line program; None: unknown, or not inlined
    call_line: int | None  # Line of the call, from 1; None: unknown, or not inlined


@dataclass(frozen=True, slots=True)
class _Table:
    """Address ranges with their owners: offsets of functions' entries, or numbers of calls."""

    low: npt.NDArray[np.uint64]
    high: npt.NDArray[np.uint64]
    owner: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Inlined:
    parent: int  # Number of the call that contains it; -1: the function itself
    origin: tuple[int, Value] | None
    call_file: int | None
    call_line: int | None


def _table(rows: list[tuple[int, int, int]]) -> _Table:
    low, high, owner = zip(*rows, strict=True) if rows else ((), (), ())
    return _Table(np.array(low, np.uint64), np.array(high, np.uint64), np.array(owner, np.int64))


class InlineReader:
    """Looks up the functions at an address, inlined ones included. Not thread-safe."""

    def __init__(self, info: DebugInfo) -> None:
        self._info = info
        self._units: Recent[int, _Table] = Recent(_KEPT_ROWS, lambda one: len(one.low))
        self._walkers: Recent[int, EntryWalker] = Recent(_KEPT_WALKERS)
        # By offset of a function's entry, with a weight for those without inlined calls, too
        self._functions: Recent[int, tuple[_Table, list[_Inlined]]] = Recent(
            _KEPT_INLINED, lambda one: _FUNCTION_WEIGHT + len(one[1])
        )
        self._names: dict[int, str | None] = {}

    def chain(self, unit: DebugUnit, address: int) -> list[Call]:
        """Returns the functions at an address, innermost first; none if unknown. Never raises."""
        try:
            entry = self._function_at(unit, address)
            return [] if entry is None else self._calls(unit, entry, address)
        except DAMAGE as error:
            self._info.blame(reason_of(error))
            return []

    def _calls(self, unit: DebugUnit, entry: int, address: int) -> list[Call]:
        table, some = self._functions.get(
            unit.offset + entry, lambda: self._inlined_in(unit, entry)
        )
        at = np.uint64(address)
        covering = table.owner[(table.low <= at) & (at < table.high)]
        # Inner entries follow outer ones.
        row = int(covering.max()) if len(covering) else -1
        calls: list[Call] = []
        while row >= 0 and len(calls) < _DEEPEST:
            here = some[row]
            name = self._referred_name(unit, here.origin, 0)
            calls.append(Call(name, here.call_file, here.call_line or None))
            row = here.parent
        if row >= 0:
            self._info.blame(f"only {_DEEPEST} inlined functions of one address are shown")
        calls.append(Call(self._name(unit.offset + entry, 0), None, None))
        return calls

    def _walker(self, unit: DebugUnit) -> EntryWalker:
        return self._walkers.get(unit.offset, lambda: EntryWalker(unit))

    def _function_at(self, unit: DebugUnit, address: int) -> int | None:
        """Returns the offset in the unit of the entry of the innermost function at an address."""
        table = self._units.get(unit.offset, lambda: self._functions_of(unit))
        last = int(np.searchsorted(table.low, np.uint64(address), side="right")) - 1
        first = max(0, last - _LOOK_BACK)
        covering = table.owner[first : last + 1][table.high[first : last + 1] > address]
        return int(covering.max()) if len(covering) else None

    def _functions_of(self, unit: DebugUnit) -> _Table:
        rows: list[tuple[int, int, int]] = []
        self._info.budget.spend(unit.size)
        try:
            for start, ranges in self._walker(unit).functions():
                rows += [(low, high, start) for low, high in ranges]
                if len(rows) > _KEPT_ROWS:
                    raise DwarfError("a unit has too many functions")
        except DAMAGE as error:
            # Keep the functions found so far; the unit is not walked again.
            self._info.blame(reason_of(error))
        return _table(sorted(rows))

    def _inlined_in(self, unit: DebugUnit, entry: int) -> tuple[_Table, list[_Inlined]]:
        rows: list[tuple[int, int, int]] = []
        inlined: list[_Inlined] = []
        try:
            for parent, ranges, found in self._walker(unit).inlined(entry):
                if len(rows) > _KEPT_INLINED or len(inlined) > _KEPT_INLINED:
                    raise DwarfError("too much is inlined into one function")
                rows += [(low, high, len(inlined)) for low, high in ranges]
                origin = found.get(abbrev.AT_ABSTRACT_ORIGIN)
                file, line = (
                    number_of(found.get(at)) for at in (abbrev.AT_CALL_FILE, abbrev.AT_CALL_LINE)
                )
                inlined.append(_Inlined(parent, origin, file, line))
        except DAMAGE as error:
            self._info.blame(reason_of(error))
        return _table(rows), inlined

    def _referred_name(
        self, unit: DebugUnit, reference: tuple[int, Value] | None, depth: int
    ) -> str | None:
        """Returns the name of the entry that a reference leads to; None if in another file."""
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
        """Returns the name of the entry at an offset of .debug_info, its own or its origin's."""
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
                    return self._with_arguments(unit, plain, found)
        for name in (abbrev.AT_ABSTRACT_ORIGIN, abbrev.AT_SPECIFICATION):
            # The declaration may have a linkage name if this entry has none.
            origin = self._referred_name(unit, found.get(name), depth + 1)
            if origin is not None:
                return origin
        return plain

    def _with_arguments(self, unit: DebugUnit, symbol: str, found: Attributes) -> str:
        """Adds generic arguments to a symbol, if only debug information has them."""
        if abbrev.AT_NAME not in found or not symbol.endswith("E") or "17h" not in symbol:
            return symbol
        plain = self._info.string(unit, found[abbrev.AT_NAME], unit.root.string_base)
        return symbol if plain is None else with_arguments(symbol, plain)


def number_of(value: tuple[int, Value] | None) -> int | None:
    """Returns the number that an attribute's value is, if it is one of 64 bits."""
    found = None if value is None else value[1]
    return found if isinstance(found, int) and 0 <= found < 1 << 64 else None
