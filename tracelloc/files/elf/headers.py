"""The headers of an ELF file. System V gABI, chapters 4 and 5: "ELF Header", "Sections",
"Program Header".

Headers of traceable machines, 64-bit and little-endian, are read by struct: a process may have
mapped a hundred files. pyelftools, a hundred times slower, reads those of other machines, only
to identify them.

Any malformed header raises ``HeaderError``: files are untrusted.
"""

import io
import struct
from collections.abc import Callable, Iterator
from typing import BinaryIO, Final, NamedTuple, cast

from tracelloc.architecture import ARCHITECTURES
from tracelloc.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Segment:
    """A PT_LOAD program header, in bytes of the file and of the virtual address space."""

    offset: int
    file_size: int
    address: int
    executable: bool


class SegmentedFile:
    """A file with known segments, which translate offsets to addresses and back."""

    segments: list[Segment]

    def address_of(self, offset: int) -> int | None:
        """Returns the virtual address (the file's own) of a file offset; None if not loaded."""
        for segment in self.segments:
            if segment.offset <= offset < segment.offset + segment.file_size:
                return segment.address + offset - segment.offset
        return None

    def offset_of(self, address: int) -> int | None:
        """Returns the file offset of a virtual address of the file; None if not in the file."""
        for segment in self.segments:
            if segment.address <= address < segment.address + segment.file_size:
                return segment.offset + address - segment.address
        return None


Read = Callable[[int, int], bytes]  # `read(offset, size)` gives bytes of the file, fewer at its end

PT_LOAD: Final = 1
PT_NOTE: Final = 4
PT_TLS: Final = 7
PT_GNU_EH_FRAME: Final = 0x6474E550
PF_X: Final = 1
PF_W: Final = 2
SHT_NOBITS: Final = 8
SHF_COMPRESSED: Final = 0x800

_OURS: Final = b"\x02\x01"  # ELFCLASS64, ELFDATA2LSB
# Elf64_Ehdr without e_ident; the other two are Elf64_Phdr and Elf64_Shdr.
_FILE_HEADER: Final = struct.Struct("<HHIQQQI6H")
_PROGRAM_HEADER: Final = struct.Struct("<II6Q")
_SECTION_HEADER: Final = struct.Struct("<IIQQQQIIQQ")
# Machine numbers by pyelftools' names, as far as they are used.
_FOREIGN_KINDS: Final = {
    "PT_LOAD": PT_LOAD, "PT_NOTE": PT_NOTE, "PT_GNU_EH_FRAME": PT_GNU_EH_FRAME,
    "SHT_NOBITS": SHT_NOBITS,
}  # fmt: skip
# pyelftools' names of the fields of ``ProgramHeader`` and ``RawSection`` after the kind.
_SEGMENT: Final = "flags", "offset", "vaddr", "filesz"
_SECTION: Final = "flags", "addr", "offset", "size", "link", "info"
_MOST_FOREIGN: Final = 1 << 12  # Headers of a kind that pyelftools is given to read
_MACHINES: Final = {each.elf_machine: each.elf_name for each in ARCHITECTURES}
_MANY: Final = 0xFFFF  # The number does not fit into its field and is in the first section header
_MOST: Final = 1 << 16  # Headers of a kind that are read. Linked files have dozens.
_MOST_SEGMENTS: Final = 256  # PT_LOAD headers; each address is looked for in all of them
_LONGEST_NAMES: Final = 1 << 24
_LONGEST_NAME: Final = 256  # Bytes of a section's name that are read


class HeaderError(Exception):
    """Raised if headers can't be read. The message is a reason for users."""


@dataclass(frozen=True, slots=True)
class ProgramHeader:
    """The used fields of Elf64_Phdr."""

    kind: int
    flags: int
    offset: int
    address: int
    file_size: int
    memory_size: int = 0
    alignment: int = 0


@dataclass(frozen=True, slots=True)
class RawSection:
    """The used fields of Elf64_Shdr."""

    name_offset: int
    kind: int
    flags: int
    address: int
    offset: int
    size_bytes: int
    link: int
    info: int

    @property
    def is_compressed(self) -> bool:
        """Whether the content is packed in the section's own way (SHF_COMPRESSED)."""
        return bool(self.flags & SHF_COMPRESSED)


class _Stream(io.RawIOBase):
    def __init__(self, read: Read) -> None:
        self._read_at = read
        self._position = 0

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves the position. The end of the file is unknown, and assumed to be far away."""
        self._position = offset + {io.SEEK_CUR: self._position, io.SEEK_END: 1 << 62}.get(whence, 0)
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Reads at most ``size`` bytes; none without a size."""
        data = self._read_at(self._position, max(0, size))
        self._position += len(data)
        return data


class Headers:
    """The headers of one ELF file: program headers at once, others on demand. Thread safe."""

    def __init__(self, read: Read) -> None:
        """Reads the program headers. Raises HeaderError, and what ``read`` raises."""
        self._read = read
        ident = read(0, 16)
        if len(ident) < 16 or ident[:4] != b"\x7fELF":
            raise HeaderError("no ELF header")
        self._sections: list[RawSection] | None = None
        self._by_name: dict[bytes, RawSection] | None = None
        if ident[4:6] != _OURS:
            self._read_foreign()
            return
        self.bits = 64
        fields = self._unpack(_FILE_HEADER, len(ident), 1)[0]
        self.machine = _MACHINES.get(fields[1], str(fields[1]))
        self._section_offset: int = fields[5]
        self._entry_bytes: int = fields[10]
        self._section_count: int = fields[11]
        self._names_index: int = fields[12]
        self.programs = self._read_programs(fields[4], fields[8], fields[9])

    def _read_foreign(self) -> None:
        """Reads the headers by pyelftools, which raises many kinds of errors."""
        try:
            # Slow to import, rarely used.
            from elftools.common.exceptions import ELFError  # noqa: PLC0415
            from elftools.elf.elffile import ELFFile  # noqa: PLC0415
        except (ImportError, PermissionError):  # where no file may be opened any more
            raise HeaderError("it is of another kind of machine") from None
        try:
            elf = ELFFile(cast(BinaryIO, _Stream(self._read)))
            self.bits, self.machine = int(elf.elfclass), str(elf["e_machine"])
            if max(elf.num_sections(), elf.num_segments()) > _MOST_FOREIGN:
                raise HeaderError(f"{elf.num_sections()} sections, {elf.num_segments()} segments")
            kinds, sections = _FOREIGN_KINDS, list(elf.iter_sections())
            self.programs = [
                ProgramHeader(kinds.get(p["p_type"], 0), *(p[f"p_{name}"] for name in _SEGMENT))
                for p in elf.iter_segments()
            ]
            self._sections = [
                RawSection(
                    s["sh_name"], kinds.get(s["sh_type"], 0), *(s[f"sh_{n}"] for n in _SECTION)
                )
                for s in sections
            ]
        except (ELFError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise HeaderError(str(error) or type(error).__name__) from error
        names = [each.name.encode() for each in sections]
        self._by_name = dict(zip(reversed(names), reversed(self._sections), strict=True))

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
        if entry_bytes != _PROGRAM_HEADER.size:
            raise HeaderError(f"program headers of {entry_bytes} bytes")
        rows = self._unpack(_PROGRAM_HEADER, offset, count)
        if sum(row[0] == PT_LOAD for row in rows) > _MOST_SEGMENTS:
            raise HeaderError(f"more than {_MOST_SEGMENTS} segments")
        return [ProgramHeader(r[0], r[1], r[2], r[3], *r[5:8]) for r in rows]

    def _read_sections(self, count: int) -> list[RawSection]:
        if self._entry_bytes != _SECTION_HEADER.size:
            raise HeaderError(f"section headers of {self._entry_bytes} bytes")
        rows = self._unpack(_SECTION_HEADER, self._section_offset, count)
        return [RawSection(*row[:8]) for row in rows]

    def _first_section(self) -> RawSection:
        if not self._section_offset:
            raise HeaderError("no section headers")
        return self._read_sections(1)[0]

    @property
    def sections(self) -> list[RawSection]:
        """Returns all section headers, by index. Raises HeaderError."""
        if self._sections is None:
            count = self._section_count
            if self._section_offset and not count:
                count = self._first_section().size_bytes
            self._sections = self._read_sections(count) if self._section_offset and count else []
        return self._sections

    def section(self, name: str) -> RawSection | None:
        """Returns the first section with a name; None if there is none. Raises HeaderError."""
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
            stop = section.name_offset + _LONGEST_NAME
            end = text.find(b"\0", section.name_offset, stop)
            name = text[section.name_offset : end if end >= 0 else stop]
            by_name.setdefault(name, section)
        return by_name


_HEAD: Final = struct.Struct("<III")


class Note(NamedTuple):
    """One note of an ELF file, such as the build ID."""

    name: bytes
    kind: int
    content: bytes  # Shorter than `size_bytes` if the note is truncated
    size_bytes: int  # Size of the content by its header


def notes_in(data: bytes) -> Iterator[Note]:
    """Yields the notes in the bytes of a segment or section, up to a truncated one."""
    at = 0
    while at + _HEAD.size <= len(data):
        name_size, content_size, kind = _HEAD.unpack_from(data, at)
        name_at = at + _HEAD.size
        content_at = name_at + (name_size + 3 & ~3)
        content = data[content_at : content_at + content_size]
        yield Note(data[name_at : name_at + name_size], kind, content, content_size)
        at = content_at + (content_size + 3 & ~3)
