"""A file's unwind tables: their locations, and the FDE that covers an address.

The bytes to read of the tables are bounded. ``.eh_frame`` has a binary search table in
``.eh_frame_hdr`` (Linux Standard Base Core 5.0, section 10.6.2). If that is missing or unusable,
the index is built by reading all entries once.
"""

from bisect import bisect_right
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.architecture import Architecture
from tracelloc.files.cfi.core import Entries, read_header
from tracelloc.files.elf import ElfFile
from tracelloc.files.elf.sections import SectionError

_MOST_FUNCTIONS: Final = 1 << 22
_LEAST_FDE_BYTES: Final = 8  # Length and CIE pointer; no FDE is shorter


class FdeIndex:
    """An index of one section's FDEs (functions' descriptions) by start address."""

    def __init__(
        self, starts: npt.NDArray[np.uint64], offsets: npt.NDArray[np.int64], *, is_scanned: bool
    ) -> None:
        """``starts`` is sorted; ``offsets`` are relative to the section's start."""
        self.starts, self.offsets = starts, offsets
        self.is_scanned = is_scanned  # Whether all entries were read, for want of a usable table
        self._starts = memoryview(starts.data)

    def __len__(self) -> int:
        return len(self.offsets)

    def find(self, address: int) -> int | None:
        """Returns the offset of the last FDE that starts at or before an address; None if none."""
        at = bisect_right(self._starts, address) - 1
        return int(self.offsets[at]) if at >= 0 else None


def make_index(entries: Entries, header: bytes, address: int) -> FdeIndex:
    """Returns the index of ``.eh_frame``, from the header if that has a sorted table."""
    found = read_header(header, address)
    if found is not None and found[1] and max(address, entries.address) < 1 << 63:
        _, count, at = found
        table = np.frombuffer(header, "<i4", 2 * count, at).astype(np.int64).reshape(count, 2)
        starts = table[:, 0] + address
        offsets = table[:, 1] + (address - entries.address)
        if starts[0] >= 0 and bool((starts[1:] >= starts[:-1]).all()):
            return FdeIndex(starts.astype(np.uint64), offsets, is_scanned=False)
    return scan(entries)


def scan(entries: Entries) -> FdeIndex:
    """Builds an index by reading all entries of a section."""
    room = min(_MOST_FUNCTIONS, len(entries.data) // _LEAST_FDE_BYTES)
    starts, offsets = np.empty(room, np.uint64), np.empty(room, np.int64)
    order = np.argsort(starts[: entries.scan(starts, offsets)], kind="stable")
    return FdeIndex(starts[order], offsets[order], is_scanned=True)


_MOST_BYTES: Final = 128 << 20  # Of a table; the rest is ignored. libLLVM-14's has 5 MB.

Table = tuple[Entries, FdeIndex]


def read_at(elf: ElfFile, address: int, size_bytes: int) -> bytes:
    """Returns the file's bytes at an address; fewer where it ends. Raises SectionError."""
    offset = elf.offset_of(address)
    if offset is None or offset >= 1 << 63:
        return b""
    try:
        return elf.read(offset, max(0, min(size_bytes, _MOST_BYTES)))
    except OSError as error:
        raise SectionError(str(error)) from error


def unwind_sections(elf: ElfFile) -> list[str]:
    """Returns the names of a file's unwind sections; none without a section table."""
    known = (".eh_frame", ".debug_frame", ".zdebug_frame")
    names = [name for name in known if elf.section_header(name) is not None]
    return names or ([".eh_frame_hdr"] if elf.unwind_header is not None else [])


def read_eh_frame(elf: ElfFile, architecture: Architecture) -> Table | None:
    """Reads ``.eh_frame`` and its index, found by the section table or else by the header."""
    address, size = elf.unwind_header or (0, 0)
    header = read_at(elf, address, size)
    section = elf.section_header(".eh_frame")
    start = length = 0
    if section is not None and not section.is_compressed and section.address:
        start, length = section.address, section.size_bytes
    elif (found := read_header(header, address)) is not None:
        start = found[0]
        ends = ((part.address, part.address + part.file_size) for part in elf.segments)
        length = next((end - start for first, end in ends if first <= start < end), 0)
    if not (data := read_at(elf, start, length)):
        return None
    entries = Entries(data, start, is_eh=True, architecture=architecture)
    return entries, make_index(entries, header, address)


def read_debug_frame(elf: ElfFile, architecture: Architecture) -> Table | None:
    """Reads ``.debug_frame`` and indexes it. Raises SectionError if it can't be read."""
    section = elf.open_section(".debug_frame")
    if section is None:
        return None
    if section.size > _MOST_BYTES:
        raise SectionError(f"a section of {section.size} bytes is too large")
    header = elf.section_header(".debug_frame")
    start = 0 if header is None else header.address
    entries = Entries(section.data(), start, is_eh=False, architecture=architecture)
    return entries, scan(entries)
