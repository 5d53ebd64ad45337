"""The bytes of a file's unwind tables: where they are, and no more of them than is sane."""

from __future__ import annotations

import struct
import zlib
from typing import Final

from tracelloc.cfi.entries import Entries
from tracelloc.cfi.index import Index, make_index, read_header, scan
from tracelloc.elf import ElfFile

_MOST_BYTES: Final = 128 << 20
"""Of one table. libLLVM-14's has 5 MB. What lies beyond is not there: damaged."""
_COMPRESSION: Final = struct.Struct("<IIQQ")
"""Elf64_Chdr: kind, reserved, size, alignment. System V gABI, chapter 4."""
_ZLIB: Final = 1

Table = tuple[Entries, Index]


def read_at(elf: ElfFile, address: int, size_bytes: int) -> bytes:
    """Bytes by their address in the file's own space; fewer where the file has no more."""
    offset = elf.offset_of(address)
    if offset is None or offset >= 1 << 63:
        return b""
    return elf.read(offset, max(0, min(size_bytes, _MOST_BYTES)))


def unwind_sections(elf: ElfFile) -> list[str]:
    """The names of the tables that a file has; one without a section table may have none."""
    names = [n for n in (".eh_frame", ".debug_frame") if elf.section_header(n) is not None]
    return names or ([".eh_frame_hdr"] if elf.unwind_header is not None else [])


def _bytes_to_segment_end(elf: ElfFile, address: int) -> int:
    for segment in elf.segments:
        if segment.address <= address < segment.address + segment.file_size:
            return segment.address + segment.file_size - address
    return 0


def read_eh_frame(elf: ElfFile) -> Table | None:
    """``.eh_frame`` and its index, by the section table or, without one, by the header."""
    address, size = elf.unwind_header or (0, 0)
    header = read_at(elf, address, size)
    section = elf.section_header(".eh_frame")
    if section is not None and not section.is_compressed and section.address:
        start, length = section.address, section.size_bytes
    else:
        found = read_header(header, address)
        if found is None:
            return None
        start, length = found[0], _bytes_to_segment_end(elf, found[0])
    data = read_at(elf, start, length)
    if not data:
        return None
    entries = Entries(data, start, is_eh=True)
    return entries, make_index(entries, header, address)


def read_debug_frame(elf: ElfFile) -> Table | None:
    """``.debug_frame`` and the index made from it."""
    section = elf.section_header(".debug_frame")
    if section is None or section.offset >= 1 << 63:
        return None
    data = elf.read(section.offset, min(section.size_bytes, _MOST_BYTES))
    if section.is_compressed:
        data = _inflate(data)
    if not data:
        return None
    entries = Entries(data, section.address, is_eh=False)
    return entries, scan(entries)


def _inflate(data: bytes) -> bytes:
    if len(data) < _COMPRESSION.size:
        return b""
    kind, _, size, _ = _COMPRESSION.unpack_from(data)
    if kind != _ZLIB or not 0 < size <= _MOST_BYTES:
        return b""
    try:
        return zlib.decompressobj().decompress(data[_COMPRESSION.size :], size)
    except zlib.error:
        return b""
