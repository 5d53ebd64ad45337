"""Walking the entries (DIEs) of a unit: its functions, and what was inlined into one.

Entries stand one after the other, children behind their parent, and most compilers do not
say where the next sibling is. So all of them are passed, most by a look-up and an addition.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tracelloc.dwarf import abbrev
from tracelloc.dwarf.abbrev import Abbreviation, Skipper, attributes_of
from tracelloc.dwarf.forms import Value
from tracelloc.dwarf.info import Unit
from tracelloc.dwarf.ranges import Range, list_at, span
from tracelloc.dwarf.reader import DwarfError, uleb

_PLACE: Final = frozenset((abbrev.AT_LOW_PC, abbrev.AT_HIGH_PC, abbrev.AT_RANGES))
_CALL: Final = frozenset((*_PLACE, abbrev.AT_ABSTRACT_ORIGIN, abbrev.AT_CALL_FILE,
                          abbrev.AT_CALL_LINE))  # fmt: skip
_ONE_BYTE: Final = 0x80
"""Abbreviations below are one byte long."""

Attributes = dict[int, tuple[int, Value]]


class Walker:
    """What is needed to walk the entries of one unit."""

    def __init__(self, unit: Unit) -> None:
        """Raises DAMAGE."""
        self._unit = unit
        self._skippers: dict[int, Skipper] = unit.abbreviations.skippers(unit.encoding)
        self._kinds = unit.abbreviations.all()
        with_code = {
            code: kind
            for code, kind in self._kinds.items()
            if kind.has(abbrev.AT_LOW_PC, abbrev.AT_RANGES)
        }
        self._functions = {
            code: kind.up_to(_PLACE)
            for code, kind in with_code.items()
            if kind.tag == abbrev.TAG_SUBPROGRAM
        }
        self._inlined = {
            code: kind.up_to(_CALL)
            for code, kind in with_code.items()
            if kind.tag == abbrev.TAG_INLINED_SUBROUTINE
        }

    def _plain_steps(self, special: dict[int, Abbreviation], only_leaves: bool) -> list[int]:
        """By first byte: size of an entry that needs no look, 0 of any other one."""
        steps = [0] * 256
        for code, skipper in self._skippers.items():
            is_plain = skipper.size >= 0 and code not in special
            if code < _ONE_BYTE and is_plain:
                steps[code] = 1 + skipper.size
                if only_leaves and self._kinds[code].has_children:
                    steps[code] = 0
        return steps

    def _skips(self, special: dict[int, Abbreviation]) -> list[Skipper | None]:
        """By first byte: how to get past an entry whose size changes."""
        skips: list[Skipper | None] = [None] * 256
        for code, skipper in self._skippers.items():
            if code < _ONE_BYTE and skipper.size < 0 and code not in special:
                skips[code] = skipper
        return skips

    def _after(self, data: bytes, code: int, at: int) -> int:
        """Where the entry ends whose values begin at ``at``."""
        skipper = self._skippers.get(code)
        if skipper is None:
            raise DwarfError(f"an entry has the unknown abbreviation {code}")
        if skipper.size >= 0:
            return at + skipper.size
        return skipper.skip(data, at, self._unit.encoding)

    def functions(self) -> Iterator[tuple[int, list[Range]]]:
        """All functions that have code: where their entries begin, and their ranges."""
        data = self._unit.data()
        end = len(data)
        steps = self._plain_steps(self._functions, only_leaves=False)
        skips = self._skips(self._functions)
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
            if code in self._functions:
                kind = self._functions[code]
                self._unit.info.budget.spend(len(kind.attributes))
                found = attributes_of(data, at, kind, encoding)
                yield start, self._ranges(found)
            at = self._after(data, code, at) if code else at

    def inlined(self, start: int) -> Iterator[tuple[int, list[Range], Attributes]]:
        """What was inlined into the function whose entry begins at ``start``, outer ones first.

        Of each: the number of what it was inlined into (-1: the function itself), counting
        from 0 in this order; its ranges; its attributes.
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
