"""Where the parts of a file of code lie: in the file, and in its own address space."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Segment:
    """A PT_LOAD program header, in bytes of the file and of the virtual address space."""

    offset: int
    file_size: int
    address: int
    executable: bool


class SegmentedFile:
    """A file of which segments are known."""

    segments: list[Segment]

    def address_of(self, offset: int) -> int | None:
        """Virtual address (the file's own) of a file offset."""
        for segment in self.segments:
            if segment.offset <= offset < segment.offset + segment.file_size:
                return segment.address + offset - segment.offset
        return None

    def offset_of(self, address: int) -> int | None:
        """File offset of a virtual address (the file's own)."""
        for segment in self.segments:
            if segment.address <= address < segment.address + segment.file_size:
                return segment.offset + address - segment.address
        return None
