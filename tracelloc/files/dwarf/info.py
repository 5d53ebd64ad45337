"""The debug sections of a file, and the units in them.

A unit is one compilation. This module reads only the header and the first entry of each unit,
which contain the locations of all else. DWARF 5, 7.5.1 and 3.1.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property, lru_cache
from typing import Final

from tracelloc.dataclass import dataclass
from tracelloc.files.dwarf import abbrev, forms
from tracelloc.files.dwarf.abbrev import AbbreviationTable, attributes_of
from tracelloc.files.dwarf.forms import (
    DAMAGE,
    U16,
    U64,
    Budget,
    DwarfError,
    Encoding,
    Recent,
    Value,
    initial_length,
    offset_at,
    reason_of,
    string_of,
    uleb,
)
from tracelloc.files.elf import ElfFile

_SECTIONS: Final = (
    "info", "abbrev", "line", "str", "line_str", "str_offsets", "addr", "aranges", "ranges",
    "rnglists",
)  # fmt: skip
_UT_COMPILE: Final = 1
_UT_PARTIAL: Final = 3
_UT_SKELETON: Final = 4
_UT_SPLIT_COMPILE: Final = 5
_MOST_UNITS: Final = 1 << 18
_HEAD_BYTES: Final = 512  # Enough for the header and first entry of most units
_LARGEST_UNIT_BYTES: Final = 1 << 28
_KEPT_UNIT_BYTES: Final = 1 << 25  # Size of the cache of units
_KEPT_TABLES: Final = 64
_LEAST_WORK: Final = 1 << 22
_WORK_PER_BYTE: Final = 8


_encoding: Final = lru_cache(maxsize=16)(Encoding)


@dataclass(frozen=True, slots=True)
class UnitRoot:
    """The attributes of a unit's first entry."""

    has_children: bool
    comp_dir: str  # The compiler's working directory; file names may be relative to it
    line_offset: int | None  # Offset of the line program in .debug_line
    low_pc: int | None  # Base of the unit's address ranges
    high_pc: int | None
    ranges: tuple[int, Value] | None  # Form and value of DW_AT_ranges
    address_base: int
    string_base: int
    ranges_base: int
    split_name: str | None  # The .dwo file with the unit's functions; None: this one has them


class DebugUnit:
    """One compilation unit of .debug_info. Not thread-safe."""

    def __init__(self, info: DebugInfo, offset: int, head: bytes) -> None:
        """``head``: the unit's first bytes. Raises IndexError or struct.error if too few."""
        self.info = info
        self.offset = offset
        length, offset_size, at = initial_length(head, 0)
        self.size = at + length  # In bytes, including the length field
        (self.version,) = U16.unpack_from(head, at)
        at += 2
        self.kind = _UT_COMPILE
        if not 2 <= self.version <= 5:
            self.kind = self.abbrev_offset = self.first_entry = 0  # It is skipped by its length
            return
        if self.version == 5:
            self.kind, address_size = head[at], head[at + 1]
            self.abbrev_offset = offset_at(head, at + 2, offset_size)
            at += 2 + offset_size + (8 if self.kind in (_UT_SKELETON, _UT_SPLIT_COMPILE) else 0)
        else:
            self.abbrev_offset = offset_at(head, at, offset_size)
            address_size = head[at + offset_size]
            at += offset_size + 1
        self.first_entry = at
        if address_size != 8:
            self.kind = 0
        self.encoding = _encoding(self.version, offset_size, address_size)

    @property
    def may_hold_code(self) -> bool:
        return self.kind in (_UT_COMPILE, _UT_PARTIAL, _UT_SKELETON)

    def data(self) -> bytes:
        """Returns the unit's bytes. Raises DwarfError if the unit is too large or truncated."""
        return self.info.kept.get(self.offset, self._read)

    def _read(self) -> bytes:
        section = self.info.info
        if self.size > _LARGEST_UNIT_BYTES or section is None:
            raise DwarfError(f"a unit of {self.size} bytes is too large")
        data = section.read(self.offset, self.size)
        if len(data) < self.size:
            raise DwarfError("a unit is cut short")
        return data

    @property
    def abbreviations(self) -> AbbreviationTable:
        """The unit's abbreviation table. Raises DwarfError if there is none."""
        section, offset = self.info.abbrev, self.abbrev_offset
        if section is None or offset >= section.size:
            raise DwarfError("a unit has no abbreviations")
        return self.info.tables.get(
            (offset, self.encoding), lambda: AbbreviationTable(section, offset, self.info.budget)
        )

    @cached_property
    def root(self) -> UnitRoot:
        """Attributes of the unit's first entry. Raises DwarfError, IndexError or struct.error."""
        try:
            assert self.info.info is not None
            return self._read_root(self.info.info.read(self.offset, min(_HEAD_BYTES, self.size)))
        except IndexError:
            return self._read_root(self.data())

    def _read_root(self, data: bytes) -> UnitRoot:
        code, at = uleb(data, self.first_entry)
        if code == 0:
            return UnitRoot(False, "", None, None, None, None, 0, 0, 0, None)
        kind = self.abbreviations.get(code)
        found = attributes_of(data, at, kind, self.encoding)
        offset_size = self.encoding.offset_size

        def number(name: int) -> int | None:
            value = found.get(name, (0, None))[1]
            return value if isinstance(value, int) else None

        # The default base is the section's first contribution, after its header.
        header = 2 * offset_size if self.version >= 5 else 0
        string_base = number(abbrev.AT_STR_OFFSETS_BASE)
        address_base = number(abbrev.AT_ADDR_BASE) or number(abbrev.AT_GNU_ADDR_BASE) or 0
        if string_base is None:
            string_base = header

        def text(*names: int) -> str | None:
            values = (found[name] for name in names if name in found)
            return next((self.info.string(self, v, string_base) for v in values), None)

        low = found.get(abbrev.AT_LOW_PC)
        high = found.get(abbrev.AT_HIGH_PC)
        low_pc = self.info.address(low, address_base) if low else None
        return UnitRoot(
            has_children=kind.has_children,
            comp_dir=text(abbrev.AT_COMP_DIR) or "",
            line_offset=number(abbrev.AT_STMT_LIST),
            low_pc=low_pc,
            high_pc=self.info.end_address(high, low_pc, address_base),
            ranges=found.get(abbrev.AT_RANGES),
            address_base=address_base,
            string_base=string_base,
            ranges_base=number(abbrev.AT_RNGLISTS_BASE) or 0,
            split_name=text(abbrev.AT_DWO_NAME, abbrev.AT_GNU_DWO_NAME),
        )


class DebugInfo:
    """A file's debug sections, and the units in them. Not thread-safe."""

    def __init__(self, elf: ElfFile) -> None:
        """Opens the debug sections. Raises SectionError if one exists and can't be read."""
        found = {name: elf.open_section(f".debug_{name}") for name in _SECTIONS}
        self.info = found["info"]
        self.line = found["line"]
        self.aranges = found["aranges"]
        self.ranges = found["ranges"]
        self.rnglists = found["rnglists"]
        self.str = found["str"]
        self.line_str = found["line_str"]
        self.abbrev = found["abbrev"]
        self._str_offsets = found["str_offsets"]
        self._addr = found["addr"]
        total_bytes = sum(section.size for section in found.values() if section is not None)
        self.budget = Budget(_LEAST_WORK + _WORK_PER_BYTE * total_bytes)
        self.tables: Recent[tuple[int, Encoding], AbbreviationTable] = Recent(_KEPT_TABLES)
        self.kept: Recent[int, bytes] = Recent(_KEPT_UNIT_BYTES, len)  # Contents of units
        self.damaged: str | None = None  # The first problem found in the file, if any
        self.elsewhere: str | None = None  # What is in another file, and so missing

    def blame(self, reason: str) -> None:
        """Records a problem with the file, if it is the first one, as ``damaged``."""
        self.damaged = self.damaged or reason

    @cached_property
    def units(self) -> list[DebugUnit]:
        """All units of .debug_info, in order, up to the first unreadable one."""
        units: list[DebugUnit] = []
        section = self.info
        offset = 0
        while section is not None and offset < section.size:
            try:
                unit = DebugUnit(self, offset, section.read(offset, 64))
                if unit.size > section.size - offset:
                    raise DwarfError("a unit is longer than its section")
                if not 2 <= unit.version <= 5:
                    self.blame(f"a unit is of the unknown version {unit.version}")
            except DAMAGE as error:
                self.blame(reason_of(error))
                break
            units.append(unit)
            offset += unit.size
            if len(units) >= _MOST_UNITS:
                self.blame(f"only the first {_MOST_UNITS} units are used")
                break
        return units

    def unit_at(self, offset: int) -> DebugUnit | None:
        at = bisect_right(self.units, offset, key=lambda unit: unit.offset) - 1
        if at < 0 or offset >= self.units[at].offset + self.units[at].size:
            return None
        return self.units[at]

    def indexed_address(self, index: int, base: int) -> int | None:
        """Returns the address with an index in .debug_addr; None if none. DWARF 5, 7.27."""
        data = self._addr.read(base + 8 * index, 8) if self._addr is not None else b""
        return U64.unpack(data)[0] if len(data) == 8 else None

    def address(self, value: tuple[int, Value], base: int) -> int | None:
        """Returns the address that an attribute's value stands for; None if it is no address."""
        form, number = value
        if not isinstance(number, int):
            return None
        if form in forms.ADDRESS_INDEX:
            return self.indexed_address(number, base)
        return number if form == forms.ADDR else None

    def end_address(
        self, value: tuple[int, Value] | None, low_pc: int | None, base: int
    ) -> int | None:
        """Returns DW_AT_high_pc's address, perhaps relative to ``low_pc`` (DWARF 5, 2.17.2)."""
        if value is None or low_pc is None:
            return None
        form, number = value
        if form == forms.ADDR or form in forms.ADDRESS_INDEX:
            return self.address(value, base)
        return low_pc + number if isinstance(number, int) else None

    def string(self, unit: DebugUnit, value: tuple[int, Value], string_base: int) -> str | None:
        """Returns a string attribute's value; None if it can't be read, or is in another file."""
        form, content = value
        if isinstance(content, bytes):
            return content.decode(errors="replace") if form == forms.STRING else None
        if form == forms.STRP:
            return string_of(self.str, content)
        if form == forms.LINE_STRP:
            return string_of(self.line_str, content)
        if form in forms.STRING_INDEX and self._str_offsets is not None:
            size = unit.encoding.offset_size
            data = self._str_offsets.read(string_base + content * size, size)
            return string_of(self.str, offset_at(data, 0, size)) if len(data) == size else None
        return None
