"""Abbreviation tables: the formats of a unit's entries (DIEs). DWARF 5, 7.5.3.

An entry is the code of its abbreviation, followed by values without their types. How to skip each
kind of entry is computed once per table. Skipping most entries then takes a lookup and an addition.
"""

from __future__ import annotations

from typing import Final

from tracelloc.dataclass import dataclass
from tracelloc.files.dwarf import forms
from tracelloc.files.dwarf.forms import Budget, DwarfError, Encoding, Value, sleb, uleb
from tracelloc.files.elf.sections import ElfSection

TAG_INLINED_SUBROUTINE: Final = 0x1D
TAG_SUBPROGRAM: Final = 0x2E
TAG_VARIABLE: Final = 0x34

AT_LOCATION, AT_NAME = range(0x02, 0x04)
AT_STMT_LIST, AT_LOW_PC, AT_HIGH_PC = range(0x10, 0x13)
AT_COMP_DIR: Final = 0x1B
AT_ABSTRACT_ORIGIN: Final = 0x31
AT_DECL_FILE, AT_DECL_LINE = range(0x3A, 0x3C)
AT_SPECIFICATION: Final = 0x47
AT_RANGES: Final = 0x55
AT_CALL_FILE, AT_CALL_LINE = range(0x58, 0x5A)
AT_LINKAGE_NAME: Final = 0x6E
AT_STR_OFFSETS_BASE, AT_ADDR_BASE, AT_RNGLISTS_BASE = range(0x72, 0x75)
AT_DWO_NAME: Final = 0x76
AT_MIPS_LINKAGE_NAME: Final = 0x2007
AT_GNU_DWO_NAME: Final = 0x2130
AT_GNU_ADDR_BASE: Final = 0x2133

_CHUNK_BYTES: Final = 1 << 14
_MOST_ATTRIBUTES: Final = 1 << 16  # Most attributes in a table, over all its abbreviations
_LARGEST_TABLE_BYTES: Final = 1 << 21


@dataclass(frozen=True, slots=True)
class Abbreviation:
    """An abbreviation: the format of one kind of entry."""

    tag: int
    has_children: bool
    attributes: tuple[tuple[int, int, int], ...]  # (name, form, value of an implicit constant)

    def has(self, *names: int) -> bool:
        return any(name in names for name, _, _ in self.attributes)

    def up_to(self, names: frozenset[int]) -> Abbreviation:
        """Returns the abbreviation cut after the last of some attributes, for faster reading."""
        count = 1 + max((n for n, a in enumerate(self.attributes) if a[0] in names), default=-1)
        return Abbreviation(self.tag, self.has_children, self.attributes[:count])


class Skipper:
    """Skips the values of entries (DIEs) with one abbreviation, undecoded.

    ``size`` is the values' size in bytes if it is constant, otherwise -1. ``steps`` are pairs of a
    number of bytes to skip and a form, or marker of ``forms``, of a value of variable size after
    them (0: none).
    """

    __slots__ = ("size", "steps")

    def __init__(self, abbreviation: Abbreviation, encoding: Encoding) -> None:
        steps: list[tuple[int, int]] = []
        fixed = 0
        for _, form, _ in abbreviation.attributes:
            size = encoding.sizes.get(form)
            if size is not None and size >= 0:
                fixed += size
                continue
            steps.append((fixed, form if size is None or size == forms.VARIES else size))
            fixed = 0
        self.steps = (*steps, (fixed, 0))
        self.size = -1 if steps else fixed

    def skip(self, data: bytes, at: int, encoding: Encoding) -> int:
        """Returns the offset after the values that begin at ``at``, where the next entry begins."""
        for fixed, mark in self.steps:
            at += fixed
            if mark == forms.BLOCK_LEB:
                length = data[at]
                at += 1
                if length >= 0x80:
                    length, at = uleb(data, at - 1)
                at += length
            elif mark == forms.LEB:
                while data[at] >= 0x80:
                    at += 1
                at += 1
            elif mark == forms.TEXT:
                at = data.index(b"\0", at) + 1
            elif mark:
                at = encoding.read(data, at, mark)[2]
        return at


class AbbreviationTable:
    """The abbreviations of one or several units, by code; read as far as needed."""

    def __init__(self, section: ElfSection, offset: int, budget: Budget) -> None:
        """``offset``: start of the table in .debug_abbrev. The table has an end marker."""
        self._section = section
        self._offset = offset
        self._data = section.read(offset, _CHUNK_BYTES)
        self._budget = budget
        self._at = 0
        self._attributes = 0
        self._known: dict[int, Abbreviation] = {}
        self._ended = False
        self._skippers: dict[int, Skipper] | None = None

    def get(self, code: int) -> Abbreviation:
        """Returns the abbreviation with a code. Raises DwarfError, or IndexError if truncated."""
        while code not in self._known:
            if self._ended:
                raise DwarfError(f"an entry has the unknown abbreviation {code}")
            self._read_more()
        return self._known[code]

    def all(self) -> dict[int, Abbreviation]:
        while not self._ended:
            self._read_more()
        return self._known

    def skippers(self, encoding: Encoding) -> dict[int, Skipper]:
        """Returns a skipper per abbreviation, by code. All units of a table share an encoding."""
        if self._skippers is None:
            self._skippers = {n: Skipper(kind, encoding) for n, kind in self.all().items()}
        return self._skippers

    def _read_more(self) -> None:
        try:
            self._read_one()
        except IndexError:
            size = len(self._data)
            if size >= min(_LARGEST_TABLE_BYTES, self._section.size - self._offset):
                raise
            self._data = self._section.read(self._offset, size * 4)
            if len(self._data) <= size:
                raise  # the file is shorter than the section

    def _read_one(self) -> None:
        data = self._data
        code, at = uleb(data, self._at)
        if code == 0:
            self._ended = True
            return
        tag, at = uleb(data, at)
        has_children = data[at] != 0
        at += 1
        attributes = []
        while True:
            name, form = data[at], data[at + 1]
            if name < 0x80 and form < 0x80:
                at += 2
            else:
                name, at = uleb(data, at)
                form, at = uleb(data, at)
            implicit = 0
            if form == forms.IMPLICIT_CONST:
                implicit, at = sleb(data, at)
            if name == 0 and form == 0:
                break
            attributes.append((name, form, implicit))
            self._attributes += 1
            if self._attributes > _MOST_ATTRIBUTES:
                raise DwarfError("a table of abbreviations is too large")
        self._budget.spend(1 + len(attributes))
        self._known.setdefault(code, Abbreviation(tag, has_children, tuple(attributes)))
        self._at = at


def attributes_of(
    data: bytes, at: int, kind: Abbreviation, encoding: Encoding
) -> dict[int, tuple[int, Value]]:
    """Returns an entry's attributes by name: (form, value). ``at``: offset of the values."""
    found: dict[int, tuple[int, Value]] = {}
    for name, form, implicit in kind.attributes:
        if form == forms.IMPLICIT_CONST:
            found[name] = form, implicit
        else:
            real, value, at = encoding.read(data, at, form)
            found[name] = real, value
    return found
