"""The entries of ``.eh_frame`` and ``.debug_frame``: CIEs and FDEs.

A CIE (common information entry) holds what many functions share, an FDE (frame
description entry) one function's program. Linux Standard Base Core 5.0, section 10.6;
DWARF 5, section 6.4.1.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from tracelloc.cfi import encoding
from tracelloc.cfi.encoding import CfiError, Reason, damaged, uleb

_WIDE: Final = 0xFFFFFFFF
"""Instead of a length: a length of 8 bytes follows."""
_FIRST_RESERVED: Final = 0xFFFFFFF0
_PCREL_SDATA4: Final = 0x1B
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_USUAL_FDE: Final = struct.Struct("<IIiIB")
"""Length, CIE pointer, start, size, length of the augmentation data."""
_MOST_CIES: Final = 4096
"""Kept decoded. Files have a handful."""
_LONGEST_AUGMENTATION: Final = 64
_LONGEST_PROGRAM: Final = 1 << 18
"""Bytes. The longest one in libLLVM-14 has 2,376."""


@dataclass(frozen=True, slots=True)
class Cie:
    """What the functions of one compiler's output share."""

    offset: int
    code_align: int
    data_align: int
    return_register: int
    pointer_encoding: int
    """DW_EH_PE encoding of addresses in its FDEs."""
    has_length: bool
    """Whether its FDEs' augmentation data starts with its length."""
    is_signal: bool
    start: int
    """Where its program begins, in bytes from the section's start."""
    end: int


class Fde(NamedTuple):
    """One function, or a part of one."""

    cie: Cie
    address: int
    size_bytes: int
    """Bytes of code that it covers."""
    start: int
    """Where its program begins, in bytes from the section's start."""
    end: int


class _Entry(NamedTuple):
    number: int
    """0 or -1 for a CIE, else it says where the CIE is."""
    number_at: int
    body: int
    end: int
    is_wide: bool


class Entries:
    """The bytes of one section, decoded entry by entry where somebody asks."""

    def __init__(self, data: bytes, address: int, *, is_eh: bool) -> None:
        """``address`` is the section's own; ``is_eh`` tells the two formats apart."""
        self.data = data
        self.address = address
        self.is_eh = is_eh
        self._cies: dict[int, Cie] = {}

    def _entry(self, at: int) -> _Entry:
        data = self.data
        if at < 0 or at + 8 > len(data):
            raise damaged("entry outside of the section")
        (length,) = _U32.unpack_from(data, at)
        number_at = at + 4
        is_wide = length == _WIDE
        if is_wide:
            if at + 20 > len(data):
                raise damaged("entry cut short")
            (length,) = _U64.unpack_from(data, number_at)
            number_at = at + 12
        elif length >= _FIRST_RESERVED:
            raise damaged("entry of reserved length")
        end = number_at + length
        if length < 4 or end > len(data):
            raise damaged("entry longer than the section")
        if is_wide and not self.is_eh:
            if length < 8:
                raise damaged("entry cut short")
            (number,) = _U64.unpack_from(data, number_at)
            return _Entry(number, number_at, number_at + 8, end, is_wide)
        (number,) = _U32.unpack_from(data, number_at)
        return _Entry(number, number_at, number_at + 4, end, is_wide)

    def _is_cie(self, entry: _Entry) -> bool:
        if self.is_eh:
            return entry.number == 0
        return entry.number == ((1 << 64) - 1 if entry.is_wide else _WIDE)

    def cie(self, offset: int) -> Cie:
        """The CIE at an offset of the section. Raises CfiError."""
        found = self._cies.get(offset)
        if found is None:
            if len(self._cies) >= _MOST_CIES:
                self._cies.clear()
            found = self._cies[offset] = self._read_cie(offset)
        return found

    def _read_cie(self, offset: int) -> Cie:
        entry = self._entry(offset)
        data, at, end = self.data, entry.body, entry.end
        if not self._is_cie(entry) or at >= end:
            raise damaged("no CIE where there should be one")
        version = data[at]
        if version not in (1, 3, 4):
            raise damaged(f"CIE version {version}")
        zero = data.find(b"\0", at + 1, min(end, at + _LONGEST_AUGMENTATION))
        if zero < 0:
            raise damaged("augmentation without an end")
        augmentation = data[at + 1 : zero]
        at = zero + 1
        if augmentation.startswith(b"eh"):
            augmentation = augmentation[2:]
            at += 8
        if version == 4:
            if data[at : at + 2] != b"\x08\x00":
                raise damaged("addresses that are not of 64 bits")
            at += 2
        code_align, at = uleb(data, at, end)
        data_align, at = encoding.sleb(data, at, end)
        if version == 1:
            return_register, at = data[at] if at < end else 0, at + 1
        else:
            return_register, at = uleb(data, at, end)
        pointers, is_signal, at = self._read_augmentation(augmentation, at, end)
        if at > end:
            raise damaged("CIE cut short")
        if end - at > _LONGEST_PROGRAM:
            raise CfiError(Reason.TOO_LONG, "CIE longer than any compiler's")
        has_length = augmentation.startswith(b"z")
        return Cie(
            offset,
            code_align,
            data_align,
            return_register,
            pointers,
            has_length,
            is_signal,
            at,
            end,
        )

    def _read_augmentation(self, letters: bytes, at: int, end: int) -> tuple[int, bool, int]:
        """Encoding of pointers, whether of signal frames, and where the program begins."""
        data, pointers, is_signal = self.data, 0, False
        after = None
        if letters.startswith(b"z"):
            length, at = uleb(data, at, end)
            after = at + length
            if after > end:
                raise damaged("augmentation longer than its CIE")
        limit = end if after is None else after
        for letter in letters[0 if after is None else 1 :].decode("latin-1"):
            if letter == "S":
                is_signal = True
            elif letter in "RLP":
                if at >= limit:
                    raise damaged("augmentation cut short")
                kind, at = data[at], at + 1
                if letter == "R":
                    pointers = kind
                elif letter == "P":
                    at = encoding.skip_pointer(data, at, limit, kind, self.address)
            elif after is None:
                # Its size is unknown, and so is where the program begins.
                raise damaged(f"unknown augmentation {letter!r}")
            elif letter != "B":
                break
        return pointers, is_signal, at if after is None else after

    def fde(self, offset: int) -> Fde:
        """The FDE at an offset of the section. Raises CfiError."""
        data = self.data
        if self.is_eh and 0 <= offset <= len(data) - _USUAL_FDE.size:
            # Nearly all there are, read at once.
            length, number, start, size, more = _USUAL_FDE.unpack_from(data, offset)
            cie = self._cies.get(offset + 4 - number)
            if (
                cie is not None
                and 13 + more <= length < _FIRST_RESERVED
                and offset + 4 + length <= len(data)
                and cie.pointer_encoding == _PCREL_SDATA4
                and cie.has_length
                and more < 0x80
                and length <= _LONGEST_PROGRAM
            ):
                address = (self.address + offset + 8 + start) & encoding.MASK
                return Fde(cie, address, size, offset + 17 + more, offset + 4 + length)
        return self._read_fde(offset)

    def _read_fde(self, offset: int) -> Fde:
        entry = self._entry(offset)
        if self._is_cie(entry):
            raise damaged("a CIE where an FDE should be")
        cie = self.cie(entry.number_at - entry.number if self.is_eh else entry.number)
        data, end, kind = self.data, entry.end, cie.pointer_encoding
        if encoding.is_indirect(kind):
            raise damaged("code addresses that only the program knows")
        address, at = encoding.read_pointer(data, entry.body, end, kind, self.address)
        size, at = encoding.read_value(data, at, end, kind)
        if cie.has_length:
            length, at = uleb(data, at, end)
            at += length
        if at > end:
            raise damaged("FDE cut short")
        if end - at > _LONGEST_PROGRAM:
            raise CfiError(Reason.TOO_LONG, "FDE longer than any compiler's")
        return Fde(cie, address, size & encoding.MASK, at, end)

    def scan(self) -> Iterator[tuple[int, Fde]]:
        """All FDEs that can be decoded and cover code, with their offsets.

        Ends where the next entry can't be found any more.
        """
        at = 0
        while at + 8 <= len(self.data):
            if self.data[at : at + 4] == b"\0\0\0\0":
                # Ends the table, but linkers may have joined several.
                at = self._next_non_zero(at)
                continue
            try:
                entry = self._entry(at)
            except CfiError:
                return
            if not self._is_cie(entry):
                try:
                    fde = self._read_fde(at)
                    if fde.size_bytes:
                        yield at, fde
                except CfiError:
                    pass
            at = entry.end

    def _next_non_zero(self, at: int) -> int:
        while at < len(self.data):
            piece = self.data[at : at + 65536]
            zeros = len(piece) - len(piece.lstrip(b"\0"))
            if zeros < len(piece):
                return at + zeros // 4 * 4
            at += len(piece)
        return at
