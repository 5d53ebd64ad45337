"""Numbers and strings out of bytes; the one error; the bound on work."""

from __future__ import annotations

import struct
from typing import Final

from tracelloc.elf.sections import Section, SectionError

U16: Final = struct.Struct("<H")
U32: Final = struct.Struct("<I")
U64: Final = struct.Struct("<Q")

_LONGEST_LEB_BYTES: Final = 10
"""For 64 bits. Longer ones are padding or an attack on big-number arithmetic."""
_LONGEST_STRING_BYTES: Final = 1 << 14
TOMBSTONES: Final = (0, 1, (1 << 64) - 1, (1 << 64) - 2)
"""What linkers write for the address of code that they left out."""


class DwarfError(Exception):
    """Debug information that can't be used. Its text is a reason for people.

    Reading beyond the end raises IndexError and others; whoever catches this one catches
    all of ``DAMAGE``.
    """


DAMAGE: Final = (DwarfError, SectionError, struct.error, IndexError, ValueError, OverflowError)
"""What damaged debug information raises within this package."""


def reason_of(error: BaseException) -> str:
    """The reason for people in one of ``DAMAGE``."""
    if isinstance(error, DwarfError | SectionError):
        return str(error)
    return "debug information is damaged or cut short"


class Budget:
    """How much work a file may cause in all, in entries and bytes looked at.

    Compilers write nothing that needs each byte more than a few times; lists that
    refer to each other can be made to need it millions of times.
    """

    def __init__(self, steps: int) -> None:
        self._left = steps

    def grant(self, steps: int) -> None:
        """Allows more, for a question that was asked."""
        self._left += steps

    def spend(self, steps: int) -> None:
        """Raises DwarfError when there was too much of it."""
        self._left -= steps
        if self._left < 0:
            raise DwarfError("debug information needs more work than its size explains")


def uleb(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned LEB128 number and where it ends. DWARF 5, 7.6."""
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift, start = byte & 0x7F, 7, at
    while True:
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at + 1
        if at - start >= _LONGEST_LEB_BYTES:
            raise DwarfError("a number is too long")


def sleb(data: bytes, at: int) -> tuple[int, int]:
    """A signed LEB128 number and where it ends."""
    value, end = uleb(data, at)
    bits = 7 * (end - at)
    return value - (1 << bits) if value >> (bits - 1) & 1 else value, end


def initial_length(data: bytes, at: int) -> tuple[int, int, int]:
    """A unit's length, the size of offsets in it (4 or 8), where the rest begins. DWARF 5, 7.4."""
    (length,) = U32.unpack_from(data, at)
    if length < 0xFFFFFFF0:
        return length, 4, at + 4
    if length != 0xFFFFFFFF:
        raise DwarfError("a unit has a reserved length")
    return U64.unpack_from(data, at + 4)[0], 8, at + 12


def offset_at(data: bytes, at: int, offset_size: int) -> int:
    """A section offset of 4 or 8 bytes."""
    return int((U32 if offset_size == 4 else U64).unpack_from(data, at)[0])


def string_in(data: bytes, at: int) -> tuple[bytes, int]:
    """A NUL-terminated string and where what follows it begins."""
    end = data.find(b"\0", at)
    if end < 0:
        raise DwarfError("a string has no end")
    return data[at:end], end + 1


def string_of(section: Section | None, offset: int) -> str | None:
    """A string of a string section; None if there is none at that offset."""
    if section is None or not 0 <= offset < section.size:
        return None
    size = 256
    while True:
        data = section.read(offset, size)
        end = data.find(b"\0")
        if end >= 0 or len(data) < size or size >= _LONGEST_STRING_BYTES:
            return data[: end if end >= 0 else None].decode(errors="replace")
        size *= 8
