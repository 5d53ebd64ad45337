"""Values in debug information: encodings of numbers and strings, and the forms of attributes.

Forms: DWARF 5, 7.5.6, and their codes from table 7.6. A value stays undecoded, with its form,
until its meaning is needed; for most values it never is. The module also defines the package's
exception, its cache, and the limit on the work that a file may cause.
"""

import struct
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from tracelloc.files.elf.sections import ElfSection, SectionError

K = TypeVar("K")
V = TypeVar("V")

U16: Final = struct.Struct("<H")
U32: Final = struct.Struct("<I")
U64: Final = struct.Struct("<Q")

_LONGEST_LEB_BYTES: Final = 10  # Enough for 64 bits. Longer ones are padding or an attack.
_LONGEST_STRING_BYTES: Final = 1 << 14
TOMBSTONES: Final = (0, 1, (1 << 64) - 1, (1 << 64) - 2)  # Addresses given to discarded code


class DwarfError(Exception):
    """Debug information that can't be used. Damage raises other exceptions, too: ``DAMAGE``."""


# Exceptions that damaged debug information may raise in this package.
DAMAGE: Final = (DwarfError, SectionError, struct.error, IndexError, ValueError, OverflowError)


def reason_of(error: BaseException) -> str:
    """Returns the message for users of an exception of ``DAMAGE``."""
    if isinstance(error, DwarfError | SectionError):
        return str(error)
    return "debug information is damaged or cut short"


class Budget:
    """A limit on the total work that a file may cause, in entries and bytes read.

    The output of compilers requires reading each byte a few times; malicious lists that refer to
    each other could require it millions of times.
    """

    def __init__(self, steps: int) -> None:
        self._left = steps

    def grant(self, steps: int) -> None:
        self._left += steps

    def spend(self, steps: int) -> None:
        """Uses up steps of the limit. Raises DwarfError when none are left."""
        self._left -= steps
        if self._left < 0:
            raise DwarfError("debug information needs more work than its size explains")


class Recent(Generic[K, V]):
    """A cache of the values that were used last, up to a total weight, at least one value."""

    def __init__(self, most: int, weight: Callable[[V], int] = lambda _: 1) -> None:
        self._most, self._weight = most, weight
        self._kept: OrderedDict[K, V] = OrderedDict()
        self._total = 0

    def get(self, key: K, make: Callable[[], V]) -> V:
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        value = self._kept[key] = make()
        self._total += self._weight(value)
        while self._total > self._most and len(self._kept) > 1:
            self._total -= self._weight(self._kept.popitem(last=False)[1])
        return value


def uleb(data: bytes, at: int) -> tuple[int, int]:
    """Decodes an unsigned LEB128 number; returns it and the offset of its end. DWARF 5, 7.6."""
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
    """Decodes a signed LEB128 number; returns it and the offset of its end."""
    value, end = uleb(data, at)
    bits = 7 * (end - at)
    return value - (1 << bits) if value >> (bits - 1) & 1 else value, end


def initial_length(data: bytes, at: int) -> tuple[int, int, int]:
    """Returns a unit's length, size of offsets (4 or 8 bytes), offset after both (DWARF 5, 7.4)."""
    (length,) = U32.unpack_from(data, at)
    if length < 0xFFFFFFF0:
        return length, 4, at + 4
    if length != 0xFFFFFFFF:
        raise DwarfError("a unit has a reserved length")
    return U64.unpack_from(data, at + 4)[0], 8, at + 12


def offset_at(data: bytes, at: int, offset_size: int) -> int:
    """Decodes a section offset of 4 or 8 bytes."""
    return int((U32 if offset_size == 4 else U64).unpack_from(data, at)[0])


def string_in(data: bytes, at: int) -> tuple[bytes, int]:
    """Decodes a NUL-terminated string; returns it and the offset after the NUL."""
    end = data.find(b"\0", at)
    if end < 0:
        raise DwarfError("a string has no end")
    return data[at:end], end + 1


def string_of(section: ElfSection | None, offset: int) -> str | None:
    """Returns a string from a string section; None if the offset is outside it."""
    if section is None or not 0 <= offset < section.size:
        return None
    size = 256
    while True:
        data = section.read(offset, size)
        end = data.find(b"\0")
        if end >= 0 or len(data) < size or size >= _LONGEST_STRING_BYTES:
            return data[: end if end >= 0 else None].decode(errors="replace")
        size *= 8


ADDR: Final = 0x01
BLOCK2, BLOCK4, DATA2, DATA4, DATA8, STRING, BLOCK, BLOCK1, DATA1, FLAG = range(0x03, 0x0D)
SDATA, STRP, UDATA, REF_ADDR, REF1, REF2, REF4, REF8, REF_UDATA, INDIRECT = range(0x0D, 0x17)
SEC_OFFSET, EXPRLOC, FLAG_PRESENT, STRX, ADDRX = range(0x17, 0x1C)
STRP_SUP, DATA16, LINE_STRP = range(0x1D, 0x20)
IMPLICIT_CONST, LOCLISTX, RNGLISTX = range(0x21, 0x24)
STRX1, STRX2, STRX3, STRX4, ADDRX1, ADDRX2, ADDRX3, ADDRX4 = range(0x25, 0x2D)
GNU_ADDR_INDEX, GNU_STR_INDEX = range(0x1F01, 0x1F03)
GNU_REF_ALT, GNU_STRP_ALT = range(0x1F20, 0x1F22)

STRING_INDEX: Final = frozenset((STRX, STRX1, STRX2, STRX3, STRX4, GNU_STR_INDEX))
ADDRESS_INDEX: Final = frozenset((ADDRX, ADDRX1, ADDRX2, ADDRX3, ADDRX4, GNU_ADDR_INDEX))
UNIT_REFERENCE: Final = frozenset((REF1, REF2, REF4, REF8, REF_UDATA))

LEB: Final = -1  # Marker in place of a size: a LEB128 number
BLOCK_LEB: Final = -2  # Marker: a LEB128 number, and as many bytes
TEXT: Final = -3  # Marker: a NUL-terminated string
VARIES: Final = -4  # Marker: the value contains its form (DW_FORM_indirect)
COUNTED: Final = {BLOCK1: 1, BLOCK2: 2, BLOCK4: 4}  # Bytes of the lengths of such blocks

_SIZES: Final = {
    DATA1: 1, DATA2: 2, DATA4: 4, DATA8: 8, DATA16: 16, FLAG: 1, FLAG_PRESENT: 0,
    IMPLICIT_CONST: 0, REF1: 1, REF2: 2, REF4: 4, REF8: 8, 0x20: 8, 0x1C: 4, 0x24: 8,
    STRX1: 1, STRX2: 2, STRX3: 3, STRX4: 4, ADDRX1: 1, ADDRX2: 2, ADDRX3: 3, ADDRX4: 4,
    SDATA: LEB, UDATA: LEB, REF_UDATA: LEB, STRX: LEB, ADDRX: LEB, LOCLISTX: LEB, RNGLISTX: LEB,
    GNU_ADDR_INDEX: LEB, GNU_STR_INDEX: LEB, BLOCK: BLOCK_LEB, EXPRLOC: BLOCK_LEB,
    STRING: TEXT, INDIRECT: VARIES,
}  # fmt: skip
_OFFSETS: Final = frozenset((STRP, SEC_OFFSET, LINE_STRP, STRP_SUP, GNU_REF_ALT, GNU_STRP_ALT))

Value = int | bytes  # A number, an offset, an index, or bytes, depending on the form


class Encoding:
    """Sizes of attribute forms, for one DWARF version, size of offsets and size of addresses."""

    def __init__(self, version: int, offset_size: int, address_size: int) -> None:
        self.version = version
        self.offset_size = offset_size
        self.address_size = address_size
        self.sizes = dict(_SIZES)  # Size of each form in bytes, or a marker
        self.sizes.update(dict.fromkeys(_OFFSETS, offset_size))
        self.sizes[ADDR] = address_size
        self.sizes[REF_ADDR] = address_size if version <= 2 else offset_size

    def read(self, data: bytes, at: int, form: int) -> tuple[int, Value, int]:
        """Returns (form, decoded value, offset after it). Raises DwarfError, or IndexError."""
        size = self.sizes.get(form)
        if size is not None and size >= 0:
            end = at + size
            if end > len(data):
                raise IndexError
            return form, int.from_bytes(data[at:end], "little"), end
        if size == LEB:
            value, end = (sleb if form == SDATA else uleb)(data, at)
            return form, value, end
        if size == TEXT:
            text, end = string_in(data, at)
            return form, text, end
        if size == VARIES:
            real, at = uleb(data, at)
            if real in (INDIRECT, IMPLICIT_CONST):
                raise DwarfError("a value of indirect form makes no sense")
            return self.read(data, at, real)
        if size == BLOCK_LEB:
            length, at = uleb(data, at)
        elif form in COUNTED:
            width = COUNTED[form]
            length = int.from_bytes(data[at : at + width], "little")
            at += width
        else:
            raise DwarfError(f"unknown attribute form {form:#x}")
        if at + length > len(data):
            raise IndexError
        return form, data[at : at + length], at + length
