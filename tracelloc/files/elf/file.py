"""ELF files: segments, sections and symbols. System V gABI, chapters 4 and 5."""

import errno
import os
import struct
import threading
from collections.abc import Callable, Collection, Hashable
from contextlib import suppress
from functools import cached_property
from itertools import islice
from typing import Any, Final, TypeVar

from tracelloc.dataclass import dataclass
from tracelloc.files.elf import headers
from tracelloc.files.elf.headers import HeaderError, ProgramHeader, RawSection, SegmentedFile
from tracelloc.files.elf.sections import ElfSection, Packing, SectionError
from tracelloc.files.elf.symtab import RawTable, SymbolTable

_DYNAMIC_SYMBOLS: Final = ".dynsym"
_DT_NEEDED: Final = 1
_DT_SONAME: Final = 14
_MOST: Final = 4096  # Entries that are looked at
_LONGEST_PATH: Final = 4096


@dataclass(frozen=True, slots=True)
class DynamicNames:
    """The names of libraries in a file's dynamic section."""

    needed: tuple[str, ...] = ()  # Names of the libraries that the file needs (DT_NEEDED)
    shared_name: str | None = None  # The name by which other files need this one (DT_SONAME)


def read_names(entries: bytes, names: bytes) -> DynamicNames:
    """Parses ``entries``, the bytes of ``.dynamic``, and ``names``, those of ``.dynstr``."""
    found: dict[int, list[str]] = {_DT_NEEDED: [], _DT_SONAME: []}
    for at in range(0, min(len(entries) // 16, _MOST) * 16, 16):
        tag, value = struct.unpack_from("<QQ", entries, at)
        if tag in found and value < len(names):
            end = names.find(b"\0", value, value + _LONGEST_PATH)
            stop = end if end >= 0 else value + _LONGEST_PATH
            found[tag].append(names[value:stop].decode(errors="replace"))
    return DynamicNames(tuple(found[_DT_NEEDED]), next(iter(found[_DT_SONAME]), None))


_BUILD_ID: Final = 3, b"GNU\0"  # NT_GNU_BUILD_ID, and whose number that is
# Go's tables of functions, in plain and in position-independent programs.
_GO_SECTIONS: Final = (".gopclntab", ".data.rel.ro.gopclntab")
_LONGEST_NOTES: Final = 1 << 16
_MOST_NOTES: Final = 16  # PT_NOTE segments that are read
_LARGEST_SYMBOLS: Final = 256 << 20  # Bytes of a symbol table: eleven million names
_LARGEST_NAMES: Final = 1 << 30  # Bytes of a table of names
LARGEST_SECTION: Final = 256 << 20  # Bytes of a section that is read as a whole
_SPARSE_BYTES: Final = 32 << 20
# Parts larger than the first, and than this multiple of the file's space on disk, are not read: no
# file system compresses that well, but a hole in a file costs its author nothing.
_SPARSE_TIMES: Final = 16

T = TypeVar("T")


class NotElfError(Exception):
    """Raised for a file that is not a readable ELF file."""


@dataclass(frozen=True, slots=True)
class DataLayout:
    """Where a file's variables lie when it is loaded; addresses are the file's own."""

    # Start and end address of each writable segment, including .bss, which is not in the file.
    segments: tuple[tuple[int, int], ...] = ()
    thread_bytes: int = 0  # Size of the thread-local variables
    thread_alignment: int = 1


class ElfFile(SegmentedFile):
    """An open ELF file. Owns the descriptor; reads with pread, never by mapping.

    A file that shrinks under a mapping kills the reader; a short read does not. Symbols
    may be asked for from several threads.
    """

    def __init__(self, source: int | bytes) -> None:
        """``source``: a descriptor, which this object then owns, or the bytes of a whole file.

        Raises NotElfError, after closing the descriptor, if the file cannot be read.
        """
        self._content = source if isinstance(source, bytes) else b""
        self._file = None if isinstance(source, bytes) else os.fdopen(source, "rb")
        try:
            self._headers = headers.Headers(self.read)
        except (HeaderError, OSError, OverflowError) as error:
            self.close()
            raise NotElfError(str(error)) from error
        self.bits = self._headers.bits
        self.machine = self._headers.machine  # Such as `EM_X86_64`
        programs = self._headers.programs
        self.segments = [
            headers.Segment(p.offset, p.file_size, p.address, bool(p.flags & headers.PF_X))
            for p in programs
            if p.kind == headers.PT_LOAD
        ]
        self.data_layout = _data_layout(programs)
        unwind = (each for each in programs if each.kind == headers.PT_GNU_EH_FRAME)
        # Address and size in bytes of `.eh_frame_hdr`, if there is one
        self.unwind_header = next(((each.address, each.file_size) for each in unwind), None)
        notes = (each for each in programs if each.kind == headers.PT_NOTE)
        self._note_places = [
            (n.offset, min(n.file_size, _LONGEST_NOTES)) for n in islice(notes, _MOST_NOTES)
        ]
        self.troubles: list[str] = []  # Messages about parts that were too large to read
        self._lock = threading.RLock()
        self._symbols: SymbolTable | None = None
        self._tables: dict[str, RawTable] | None = None
        self._functions: dict[str, dict[int, int]] = {}
        self._results: dict[Hashable, Any] = {}

    @property
    def size_bytes(self) -> int:
        return len(self._content) if self._file is None else os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Reads bytes of the file; fewer than asked for at its end."""
        if self._file is None:
            return self._content[offset : offset + size_bytes] if size_bytes > 0 else b""
        # Headers may name any size: never ask for memory that the file can't fill.
        status = os.fstat(self._file.fileno())
        size_bytes = min(size_bytes, max(0, status.st_size - offset))
        if size_bytes > max(_SPARSE_BYTES, _SPARSE_TIMES * 512 * status.st_blocks):
            raise OSError(errno.EFBIG, f"{size_bytes} bytes of it are holes")
        return os.pread(self._file.fileno(), size_bytes, offset) if size_bytes > 0 else b""

    def section_bytes(self, name: str) -> bytes | None:
        """Reads a section as it is. None without one, or one above ``LARGEST_SECTION``."""
        found = self.section_header(name)
        return None if found is None else self._whole(name, found, LARGEST_SECTION)

    def _whole(self, name: str, found: RawSection, most_bytes: int) -> bytes | None:
        trouble = f"it has {found.size_bytes} bytes"
        try:
            if min(found.size_bytes, self.size_bytes) <= most_bytes:
                return self.read(found.offset, found.size_bytes)
        except (OSError, OverflowError) as error:
            trouble = str(error)
        self.troubles.append(f"{name} is not read: {trouble}")
        return None

    def descriptor(self) -> int:
        """The file's open descriptor, for direct reads. This object still owns it."""
        assert self._file is not None
        return self._file.fileno()

    def open_section(self, name: str) -> ElfSection | None:
        """Opens a section, unpacked; ``.zdebug_line`` for ``.debug_line``. Raises SectionError."""
        packed = name.replace(".debug_", ".zdebug_")
        try:
            found = self._headers.section(name)
            header = found or self._headers.section(packed)
        except (HeaderError, OSError, OverflowError) as error:
            raise SectionError(f"the section table can't be read ({error})") from error
        if header is None or header.kind == headers.SHT_NOBITS:
            return None
        packing = Packing.PLAIN if found else Packing.GNU
        if header.is_compressed:
            packing = Packing.ELF
        return ElfSection(self._read_section, header.offset, header.size_bytes, packing)

    def _read_section(self, offset: int, size_bytes: int) -> bytes:
        try:
            return self.read(offset, min(size_bytes, self.size_bytes))
        except (OSError, OverflowError, ValueError, MemoryError) as error:
            raise SectionError(f"the file can't be read ({error})") from error

    def section_header(self, name: str) -> RawSection | None:
        """Returns the header of a section; None if there is none with content."""
        try:
            found = self._headers.section(name)
        except (HeaderError, OSError, OverflowError):
            return None
        return None if found is None or found.kind == headers.SHT_NOBITS else found

    @property
    def is_go(self) -> bool:
        """Whether the file has code from the Go compiler."""
        return any(self.section_header(name) is not None for name in _GO_SECTIONS)

    @cached_property
    def build_id(self) -> str | None:
        """The linker's build ID, in hexadecimal (note NT_GNU_BUILD_ID); None without one."""
        note = self.section_header(".note.gnu.build-id")
        places = self._note_places
        if note is not None and note.size_bytes:
            places = [(note.offset, min(note.size_bytes, _LONGEST_NOTES))]
        with suppress(OSError, OverflowError):
            for found in (note for place in places for note in headers.notes_in(self.read(*place))):
                if (found.kind, found.name) == _BUILD_ID and found.content:
                    return found.content.hex()
        return None

    @cached_property
    def dynamic_names(self) -> DynamicNames:
        """The libraries that the file needs, and the name by which others need it."""
        entries, names = self.section_bytes(".dynamic"), self.section_bytes(".dynstr")
        return read_names(entries, names) if entries and names else DynamicNames()

    def table(self, name: str) -> RawTable | None:
        """Returns a symbol table section with its names; None if it is missing or unreadable."""
        if self.bits != 64:
            return None
        section = self.section_header(name)
        if section is None or section.link >= len(self._headers.sections):
            return None
        strings = self._headers.sections[section.link]
        data = self._whole(name, section, _LARGEST_SYMBOLS)
        names = self._whole(f"the names of {name}", strings, _LARGEST_NAMES)
        return None if data is None or names is None else RawTable.decode(data, names)

    def tables(self) -> list[RawTable]:
        """Returns the symbol tables that the file itself has; read once."""
        with self._lock:
            if self._tables is None:
                found = {name: self.table(name) for name in (".symtab", _DYNAMIC_SYMBOLS)}
                self._tables = {name: table for name, table in found.items() if table is not None}
            return list(self._tables.values())

    def linkage(self, names: Collection[str]) -> dict[str, bool]:
        """Returns which names the loader finds in the file. True: defined, False: needed."""
        self.tables()
        table = (self._tables or {}).get(_DYNAMIC_SYMBOLS)
        return {} if table is None else table.linkage(names)

    @property
    def symbols(self) -> SymbolTable:
        """Returns all functions of the file's symbol tables; decoded at first use."""
        with self._lock:
            if self._symbols is None:
                self._symbols = SymbolTable(self.tables())
            return self._symbols

    def once(self, key: Hashable, work_out: Callable[[], T]) -> T:
        """Returns the value of ``work_out``, computed once for the file and cached under a key."""
        if key not in self._results:
            self._results[key] = work_out()
        result: T = self._results[key]
        return result

    def find_object(self, name: str) -> int | None:
        """Returns the address of a variable that the file defines; None if it has none."""

        def find() -> int | None:
            found = (table.find_object(name) for table in self.tables())
            return next((address for address in found if address is not None), None)

        return self.once(("object", name), find)

    def names_ending(self, tail: str) -> set[str]:
        """Returns the names in the symbol tables that end with ``tail``."""

        def find() -> set[str]:
            return {name for table in self.tables() for name in table.names.ending(tail)}

        return self.once(("names ending", tail), find)

    def names_like(self, pattern: str) -> set[str]:
        """Returns the names in the symbol tables that equal ``pattern``, or match it as a glob."""
        if not any(letter in pattern for letter in "*?["):
            return {pattern} if self.find_functions([pattern]) else set()
        return {name for table in self.tables() for name in table.names.like(pattern)}

    def find_functions(self, names: Collection[str]) -> dict[str, dict[int, int]]:
        """Returns defined functions by name: {address: bytes}. Callers must not change it."""
        unknown = [name for name in names if name not in self._functions]
        if unknown:
            found: dict[str, dict[int, int]] = {name: {} for name in unknown}
            for table in self.tables():
                for name, places in table.find_functions(unknown).items():
                    found[name].update(places)
            self._functions.update(found)
        return {name: self._functions[name] for name in names if self._functions[name]}


def _data_layout(programs: list[ProgramHeader]) -> DataLayout:
    own = next((each for each in programs if each.kind == headers.PT_TLS), None)
    loaded = (p for p in programs if p.kind == headers.PT_LOAD and p.flags & headers.PF_W)
    segments = tuple((each.address, each.address + each.memory_size) for each in loaded)
    return (
        DataLayout(segments, own.memory_size, max(own.alignment, 1))
        if own
        else DataLayout(segments)
    )
