"""Symbols of stripped files: compressed inside the file, or in a separate debug file.

* ``.gnu_debugdata``: an xz-compressed ELF file with the symbol table (MiniDebugInfo).
* By build ID: ``/usr/lib/debug/.build-id/xx/yyyy.debug`` (gdb manual, "Separate Debug
  Files"); it counts if the found file has the same build ID.
* By name: ``.gnu_debuglink`` holds a file name and the checksum that the file must have.

Debug files are searched for in the target's own root first, which symbolic links cannot leave.
"""

import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

from tracelloc.dataclass import dataclass
from tracelloc.files.elf.file import ElfFile, NotElfError
from tracelloc.system import syscalls

DEBUG_DIRECTORY: Final = PurePosixPath("/usr/lib/debug")
_LARGEST_EMBEDDED: Final = 128 << 20  # Bytes that `.gnu_debugdata` may inflate to
_MOST_GROWTH: Final = 32  # Largest factor by which it may inflate. Symbol tables shrink to a fifth.
_SMALL_BYTES: Final = 1 << 20  # Bytes that it may inflate to by any factor
# Bytes of memory that inflating may take: `xz -9` asks for 65 MiB.
_LARGEST_DICTIONARY: Final = 128 << 20
_LARGEST_CHECKED: Final = 8 << 30  # Bytes of a file whose checksum we are willing to calculate
_PIECE: Final = 1 << 20
_BUILD_ID: Final = re.compile(r"[0-9a-f]{4,256}")
_MAGIC: Final = b"\x7fELF"


@dataclass(frozen=True, slots=True)
class DebugReferences:
    """A file's references to its debug file."""

    build_id: str | None  # Build ID shared by the file and its debug file
    name: str | None  # File name of the debug file
    checksum: int | None  # CRC-32 of the debug file's contents


@dataclass(frozen=True, slots=True)
class DebugFile:
    """An open file with the symbols, and possibly the DWARF, of another file."""

    number: int  # Open descriptor of the debug file
    path: str  # Path inside the target's root, or the URL of a downloaded file
    by_name: bool  # Whether the file was found by name; else by build ID
    is_downloaded: bool = False

    def descriptor(self) -> int:
        """The open file's descriptor, still owned by this object."""
        return self.number

    @property
    def found_by(self) -> str:
        if self.is_downloaded:
            return "debuginfod"
        return "debug link" if self.by_name else "build ID"

    def close(self) -> None:
        os.close(self.number)


def embedded_symbols(elf: ElfFile) -> ElfFile | None:
    """Returns the ELF file within ``.gnu_debugdata``; None if there is no sound one."""
    data = elf.section_bytes(".gnu_debugdata")
    if not data:
        return None
    try:
        decoder = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_LARGEST_DICTIONARY)
        most_bytes = min(_LARGEST_EMBEDDED, len(data) * _MOST_GROWTH + _SMALL_BYTES)
        inflated = decoder.decompress(data, max_length=most_bytes)
        return ElfFile(inflated) if decoder.eof else None
    except (lzma.LZMAError, EOFError, NotElfError):
        return None


def references_of(elf: ElfFile) -> DebugReferences:
    """Returns a file's references to its debug file."""
    return DebugReferences(elf.build_id, *(debug_link(elf) or (None, None)))


def belongs_to(debug: ElfFile, references: DebugReferences, *, by_name: bool) -> bool:
    """Whether a file, found by name or by build ID, is the debug file of the references."""
    if by_name:
        return references.checksum is not None and _checksum(debug) == references.checksum
    return references.build_id is not None and debug.build_id == references.build_id


def find_debug_file(
    references: DebugReferences,
    path: str,
    roots: Sequence[Path],
    fits: Callable[[DebugFile], bool],
    troubles: list[str],
) -> DebugFile | None:
    """Finds the separate debug file of the target's file ``path``. The caller closes it.

    ``roots``: directories used as ``/``, tried in order. Of ``references``, only a build ID and a
    plain file name decide which files are opened. ``fits`` returns whether an open file belongs to
    this build; messages about files that do not are added to ``troubles``.
    """
    for by_name, name in _places(references, path):
        for descriptor in _open_everywhere(roots, name):
            found = DebugFile(descriptor, str(name), by_name)
            if keep_if(found, fits, troubles):
                return found
    return None


def keep_if(found: DebugFile, fits: Callable[[DebugFile], bool], troubles: list[str]) -> bool:
    """Whether an open file belongs to this build; if not, closes it and adds a message."""
    try:
        is_right = fits(found)
    except BaseException:
        found.close()
        raise
    if not is_right:
        troubles.append(f"{found.path} is of another build")
        found.close()
    return is_right


def _places(references: DebugReferences, path: str) -> Iterator[tuple[bool, PurePosixPath]]:
    """Yields (whether it is by name, possible path). The references are untrusted."""
    build_id, link_name = references.build_id, references.name
    if build_id is not None and _BUILD_ID.fullmatch(build_id):
        yield False, DEBUG_DIRECTORY / ".build-id" / build_id[:2] / f"{build_id[2:]}.debug"
    directory = PurePosixPath(path).parent
    if link_name is None or not _is_plain(link_name) or not directory.is_absolute():
        return
    for name in (
        directory / link_name,
        directory / ".debug" / link_name,
        DEBUG_DIRECTORY / directory.relative_to("/") / link_name,
    ):
        if str(name) != path:
            yield True, name


def _is_plain(name: str) -> bool:
    return bool(name) and "/" not in name and "\0" not in name and name not in (".", "..")


def debug_link(elf: ElfFile) -> tuple[str, int] | None:
    """Reads file name and CRC-32 from ``.gnu_debuglink``: the name, NUL, padding, the sum."""
    data = elf.section_bytes(".gnu_debuglink") or b""
    name, _, _ = data.partition(b"\0")
    at, text = len(name) + 4 & ~3, os.fsdecode(name)
    if not _is_plain(text) or len(data) < at + 4:
        return None
    return text, int.from_bytes(data[at : at + 4], "little")


def _open_everywhere(roots: Sequence[Path], name: PurePosixPath) -> Iterator[int]:
    """Yields descriptors of the file under every root that has it, if it looks like ELF."""
    seen: set[tuple[int, int]] = set()
    for root in roots:
        try:
            descriptor = syscalls.open_inside(root, str(name))
        except OSError:
            continue
        status = os.fstat(descriptor)
        identity = status.st_dev, status.st_ino
        if identity in seen or not _is_elf(descriptor):
            os.close(descriptor)
            continue
        seen.add(identity)
        yield descriptor


def _is_elf(descriptor: int) -> bool:
    """Whether a file begins like an ELF file. Workers get no other files."""
    with suppress(OSError):
        return os.pread(descriptor, len(_MAGIC), 0) == _MAGIC
    return False


def _checksum(elf: ElfFile) -> int | None:
    if elf.size_bytes > _LARGEST_CHECKED:
        return None
    checksum, at = 0, 0
    while piece := elf.read(at, _PIECE):
        checksum = zlib.crc32(piece, checksum)
        at += len(piece)
    return checksum
