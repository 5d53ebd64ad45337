"""Numbers and pointers as call-frame information writes them.

LEB128: DWARF 5, section 7.6. Pointer encodings (``DW_EH_PE_*``): Linux Standard Base
Core 5.0, section 10.5.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

MASK: Final = (1 << 64) - 1
"""Addresses are calculated modulo 2**64."""

_LONGEST_LEB: Final = 16
"""Bytes. Ten hold 64 bits; assemblers pad a little, only damage goes on for longer."""

PE_OMIT: Final = 0xFF
_PE_INDIRECT: Final = 0x80
_PE_ABSOLUTE: Final = 0x00
_PE_PCREL: Final = 0x10
_PE_DATAREL: Final = 0x30
_PE_ALIGNED: Final = 0x50
_ULEB: Final = 0x01
_SLEB: Final = 0x09
_FIXED: Final = {
    0x00: struct.Struct("<Q"),
    0x02: struct.Struct("<H"),
    0x03: struct.Struct("<I"),
    0x04: struct.Struct("<Q"),
    0x08: struct.Struct("<q"),
    0x0A: struct.Struct("<h"),
    0x0B: struct.Struct("<i"),
    0x0C: struct.Struct("<q"),
}


class Reason(IntEnum):
    """Why a frame has no row. Mirrored in probes/row.h."""

    CFA_REGISTER = 1
    """The frame is found through another register than rsp or rbp."""
    CFA_EXPRESSION = 2
    """The frame is found by an expression of another shape than the known ones."""
    CFA_OFFSET = 3
    """The frame is larger than 2 GiB."""
    RETURN_ADDRESS = 4
    """The return address is not right below the caller's frame."""
    SAVED_BP = 5
    """rbp was not saved in the frame: in a register, or nowhere."""
    CALLER_SP = 6
    """The caller's stack pointer is not where the frame ends."""
    SIGNAL_FRAME = 7
    """A signal frame with another layout than the kernel's."""
    DAMAGED = 8
    """The unwind table does not make sense here."""
    TOO_LONG = 9
    """The programs of the unwind table are longer than any compiler's."""


class CfiError(Exception):
    """There is call-frame information, but it can't be used; ``reason`` says why."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def damaged(text: str) -> CfiError:
    """The error for bytes that make no sense."""
    return CfiError(Reason.DAMAGED, text)


def uleb(data: bytes, at: int, end: int) -> tuple[int, int]:
    """The unsigned LEB128 number at ``at``, and where it ends. Raises CfiError."""
    value = shift = 0
    for position in range(at, min(end, at + _LONGEST_LEB, len(data))):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
        shift += 7
    raise damaged("number without an end")


def sleb(data: bytes, at: int, end: int) -> tuple[int, int]:
    """The signed LEB128 number at ``at``, and where it ends. Raises CfiError."""
    value, after = uleb(data, at, end)
    bits = 7 * (after - at)
    return value - (1 << bits) if data[after - 1] & 0x40 else value, after


def read_value(data: bytes, at: int, end: int, encoding: int) -> tuple[int, int]:
    """The number at ``at`` in the format of a pointer encoding, and where it ends."""
    form = encoding & 0x0F
    if form == _ULEB:
        return uleb(data, at, end)
    if form == _SLEB:
        return sleb(data, at, end)
    fixed = _FIXED.get(form)
    if fixed is None or at + fixed.size > min(end, len(data)):
        raise damaged(f"pointer of unknown encoding {encoding:#x} or cut short")
    return int(fixed.unpack_from(data, at)[0]), at + fixed.size


def read_pointer(
    data: bytes, at: int, end: int, encoding: int, address: int, *, base: int | None = None
) -> tuple[int, int]:
    """The address at ``at``, and where its bytes end. Raises CfiError.

    ``address`` is where ``data`` starts in the file's address space, ``base`` what
    data-relative pointers are relative to. Pointers to pointers are read, not followed.
    """
    application = encoding & 0x70
    if application == _PE_ALIGNED:
        at += -(address + at) % 8
        application, encoding = _PE_ABSOLUTE, encoding & _PE_INDIRECT
    value, after = read_value(data, at, end, encoding)
    if application == _PE_PCREL:
        value += address + at
    elif application == _PE_DATAREL and base is not None:
        value += base
    elif application != _PE_ABSOLUTE:
        raise damaged(f"pointer relative to an unknown place, encoding {encoding:#x}")
    return value & MASK, after


def skip_pointer(data: bytes, at: int, end: int, encoding: int, address: int) -> int:
    """Where the bytes of a pointer end whose value nobody needs."""
    if encoding == PE_OMIT:
        return at
    if encoding & 0x70 == _PE_ALIGNED:
        return at + -(address + at) % 8 + 8
    return read_value(data, at, end, encoding)[1]


def is_indirect(encoding: int) -> bool:
    """Whether the pointer's target holds the value: only the running program knows it."""
    return bool(encoding & _PE_INDIRECT)
