"""Protocol buffers as bytes: just what a profile needs, no library.

The wire format is described in https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_VARINT: Final = 0
_LENGTH: Final = 2
_MASK: Final = (1 << 64) - 1

_SMALL: Final = tuple(bytes([n]) for n in range(0x80)) + tuple(
    bytes([n & 0x7F | 0x80, n >> 7]) for n in range(0x80, 0x4000)
)
"""Most numbers are small: those below 2^14, ready made."""


def varint(number: int) -> bytes:
    """A number, seven bits per byte, the lowest first; negative ones as 64 bits."""
    if 0 <= number < 0x4000:
        return _SMALL[number]
    number &= _MASK
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """A field with a number; nothing for 0, which is what a missing field means."""
    return varint(field << 3 | _VARINT) + varint(value) if value else b""


def data(field: int, content: bytes) -> bytes:
    """A field with bytes, a string or a message."""
    return varint(field << 3 | _LENGTH) + varint(len(content)) + content


def packed(field: int, values: Iterable[int]) -> bytes:
    """A repeated field of numbers, zeros included."""
    return data(field, b"".join(map(varint, values)))
