"""Where a stripped file's symbols went: inside it, compressed, or into a file of their own.

* ``.gnu_debugdata``: an xz-compressed ELF file with the symbol table (MiniDebugInfo).
* By build ID: ``/usr/lib/debug/.build-id/xx/yyyy.debug`` (gdb manual, "Separate Debug
  Files"); it counts if the found file has the same build ID.
* By name: ``.gnu_debuglink`` holds a file name and the checksum that the file must have.

All are looked for in the target's own root first, where symbolic links can't lead out.
"""

from __future__ import annotations

import lzma
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from tracelloc import syscalls
from tracelloc.elf.file import ElfFile, NotElfError

DEBUG_DIRECTORY: Final = PurePosixPath("/usr/lib/debug")
_LARGEST_EMBEDDED: Final = 128 << 20
"""Bytes that ``.gnu_debugdata`` may inflate to;"""
_MOST_GROWTH: Final = 32
"""not more than so many times its size, either. Symbol tables shrink to a fifth; and"""
_SMALL_BYTES: Final = 1 << 20
"""what of this is always allowed."""
_LARGEST_DICTIONARY: Final = 128 << 20
"""Bytes of memory that inflating it may take: ``xz -9`` asks for 65 MiB."""
_LARGEST_CHECKED: Final = 8 << 30
"""Bytes of a file whose checksum we are willing to calculate."""
_PIECE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class DebugFile:
    """A file with the symbols, and perhaps the DWARF, of another one."""

    elf: ElfFile
    path: str
    """Inside the target's root."""
    found_by: str
    """For people."""


def embedded_symbols(elf: ElfFile) -> ElfFile | None:
    """The file within ``.gnu_debugdata``, if there is a sound one."""
    data = elf.section_bytes(".gnu_debugdata")
    if not data:
        return None
    try:
        decoder = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_LARGEST_DICTIONARY)
        most_bytes = min(_LARGEST_EMBEDDED, len(data) * _MOST_GROWTH + _SMALL_BYTES)
        inflated = decoder.decompress(data, max_length=most_bytes)
        return ElfFile.from_bytes(inflated) if decoder.eof else None
    except (lzma.LZMAError, EOFError, NotElfError):
        return None


def find_debug_file(
    elf: ElfFile, path: str, roots: Sequence[Path], troubles: list[str]
) -> DebugFile | None:
    """The separate debug file of ``elf``, which the target knows as ``path``.

    ``roots``: directories that stand for ``/``, tried in order. Files that were found but
    don't belong to this build are named in ``troubles``.
    """
    build_id = elf.build_id
    if build_id is not None and len(build_id) > 2:
        name = DEBUG_DIRECTORY / ".build-id" / build_id[:2] / f"{build_id[2:]}.debug"
        for candidate in _open_everywhere(roots, name):
            if candidate.build_id == build_id:
                return DebugFile(candidate, str(name), "build ID")
            troubles.append(f"{name} is of another build")
            candidate.close()
    link = debug_link(elf)
    if link is None:
        return None
    link_name, checksum = link
    directory = PurePosixPath(path).parent
    for name in (
        directory / link_name,
        directory / ".debug" / link_name,
        DEBUG_DIRECTORY / directory.relative_to("/") / link_name,
    ):
        if str(name) == path:
            continue
        for candidate in _open_everywhere(roots, name):
            if _checksum(candidate) == checksum:
                return DebugFile(candidate, str(name), "debug link")
            troubles.append(f"{name} is of another build")
            candidate.close()
    return None


def debug_link(elf: ElfFile) -> tuple[str, int] | None:
    """File name and CRC-32 from ``.gnu_debuglink``: the name, NUL, padding, the sum."""
    data = elf.section_bytes(".gnu_debuglink")
    if not data:
        return None
    name, _, _ = data.partition(b"\0")
    at = len(name) + 4 & ~3
    text = os.fsdecode(name)
    if not name or "/" in text or text in (".", "..") or len(data) < at + 4:
        return None
    return text, struct.unpack_from("<I", data, at)[0]


def _open_everywhere(roots: Sequence[Path], name: PurePosixPath) -> Iterator[ElfFile]:
    """The file under every root that has it, where it is ELF."""
    seen: set[tuple[int, int]] = set()
    for root in roots:
        try:
            descriptor = syscalls.open_inside(root, str(name))
        except OSError:
            continue
        status = os.fstat(descriptor)
        identity = status.st_dev, status.st_ino
        if identity in seen:
            os.close(descriptor)
            continue
        seen.add(identity)
        try:
            yield ElfFile(descriptor)
        except NotElfError:
            continue


def _checksum(elf: ElfFile) -> int | None:
    if elf.size_bytes > _LARGEST_CHECKED:
        return None
    checksum, at = 0, 0
    while piece := elf.read(at, _PIECE):
        checksum = zlib.crc32(piece, checksum)
        at += len(piece)
    return checksum
