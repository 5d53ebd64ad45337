"""The headers of an ELF file. System V gABI, chapters 4 and 5: "ELF Header", "Sections",
"Program Header".

Whatever is not as it should be raises ``HeaderError``: files are what others have made of them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

Read = Callable[[int, int], bytes]
"""``read(offset, size)`` gives bytes of the file, fewer at its end."""

PT_LOAD: Final = 1
PT_NOTE: Final = 4
PT_GNU_EH_FRAME: Final = 0x6474E550
PF_X: Final = 1
SHT_NOBITS: Final = 8
SHF_COMPRESSED: Final = 0x800

_MACHINES: Final = {3: "EM_386", 62: "EM_X86_64", 183: "EM_AARCH64"}
_MANY: Final = 0xFFFF
"""More than fits: the number is in the first section header."""
_MOST: Final = 1 << 20
"""Headers of a kind that are read."""
_LONGEST_NAMES: Final = 1 << 24


class HeaderError(Exception):
    """The headers can't be read. Its text is a reason for people."""


@dataclass(frozen=True, slots=True)
class ProgramHeader:
    """Elf64_Phdr, as far as it is of use."""

    kind: int
    flags: int
    offset: int
    address: int
    file_size: int


@dataclass(frozen=True, slots=True)
class RawSection:
    """Elf64_Shdr, as far as it is of use."""

    name_offset: int
    kind: int
    flags: int
    address: int
    offset: int
    size_bytes: int
    link: int
    info: int


class Headers:
    """Program headers at once, sections when they are asked for. Safe to use from several threads:
    two that read the sections get equal ones.
    """

    def __init__(self, read: Read) -> None:
        """Raises HeaderError, and what ``read`` does."""
        self._read = read
        ident = read(0, 16)
        if len(ident) < 16 or ident[:4] != b"\x7fELF":
            raise HeaderError("no ELF header")
        if ident[4] not in (1, 2) or ident[5] not in (1, 2):
            raise HeaderError("an ELF header of an unknown kind")
        self.bits = 32 * ident[4]
        self._order = "<>"[ident[5] - 1]
        word = "I" if self.bits == 32 else "Q"
        head = struct.Struct(f"{self._order}HHI{word}{word}{word}I6H")
        fields = self._unpack(head, 16, 1)[0]
        self.machine = _MACHINES.get(fields[1], str(fields[1]))
        self._section_offset: int = fields[5]
        self._entry_bytes: int = fields[10]
        self._section_count: int = fields[11]
        self._names_index: int = fields[12]
        self._sections: list[RawSection] | None = None
        self._by_name: dict[bytes, RawSection] | None = None
        self.programs = self._read_programs(fields[4], fields[8], fields[9])

    def _unpack(self, layout: struct.Struct, offset: int, count: int) -> list[tuple[int, ...]]:
        if count > _MOST:
            raise HeaderError(f"{count} headers")
        data = self._read(offset, count * layout.size)
        if len(data) < count * layout.size:
            raise HeaderError("the file is cut short")
        return list(layout.iter_unpack(data))

    def _read_programs(self, offset: int, entry_bytes: int, count: int) -> list[ProgramHeader]:
        if count == _MANY:
            count = self._first_section().info
        if not offset or not count:
            return []
        layout = struct.Struct(self._order + ("8I" if self.bits == 32 else "II6Q"))
        if entry_bytes != layout.size:
            raise HeaderError(f"program headers of {entry_bytes} bytes")
        rows = self._unpack(layout, offset, count)
        if self.bits == 32:
            return [ProgramHeader(r[0], r[6], r[1], r[2], r[4]) for r in rows]
        return [ProgramHeader(r[0], r[1], r[2], r[3], r[5]) for r in rows]

    def _read_sections(self, count: int) -> list[RawSection]:
        layout = struct.Struct(self._order + ("10I" if self.bits == 32 else "IIQQQQIIQQ"))
        if self._entry_bytes != layout.size:
            raise HeaderError(f"section headers of {self._entry_bytes} bytes")
        return [RawSection(*row[:8]) for row in self._unpack(layout, self._section_offset, count)]

    def _first_section(self) -> RawSection:
        if not self._section_offset:
            raise HeaderError("no section headers")
        return self._read_sections(1)[0]

    @property
    def sections(self) -> list[RawSection]:
        """All of them, by index. Raises HeaderError."""
        if self._sections is None:
            count = self._section_count
            if self._section_offset and not count:
                count = self._first_section().size_bytes
            self._sections = self._read_sections(count) if self._section_offset and count else []
        return self._sections

    def section(self, name: str) -> RawSection | None:
        """The first section with this name. Raises HeaderError."""
        if self._by_name is None:
            self._by_name = self._names()
        return self._by_name.get(name.encode())

    def _names(self) -> dict[bytes, RawSection]:
        sections = self.sections
        if not sections:
            return {}
        index = sections[0].link if self._names_index == _MANY else self._names_index
        if index >= len(sections):
            raise HeaderError("the sections have no names")
        text = self._read(sections[index].offset, min(sections[index].size_bytes, _LONGEST_NAMES))
        by_name: dict[bytes, RawSection] = {}
        for section in sections:
            end = text.find(b"\0", section.name_offset)
            name = text[section.name_offset : end if end >= 0 else None]
            by_name.setdefault(name, section)
        return by_name
