"""What a file needs: the names in its dynamic section (System V gABI, chapter 5)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

_DT_NEEDED: Final = 1
_DT_SONAME: Final = 14
_MOST: Final = 4096
"""Entries that are looked at."""


@dataclass(frozen=True, slots=True)
class DynamicNames:
    """The names of one file."""

    needed: tuple[str, ...] = ()
    """The libraries that are loaded with it, by the names that it has for them."""
    shared_name: str | None = None
    """What others that need it call it."""


def read_names(entries: bytes, names: bytes) -> DynamicNames:
    """From the bytes of ``.dynamic`` and ``.dynstr``."""
    found: dict[int, list[str]] = {_DT_NEEDED: [], _DT_SONAME: []}
    for at in range(0, min(len(entries) // 16, _MOST) * 16, 16):
        tag, value = struct.unpack_from("<QQ", entries, at)
        if tag in found and value < len(names):
            end = names.find(b"\0", value)
            found[tag].append(names[value : end if end >= 0 else None].decode(errors="replace"))
    return DynamicNames(tuple(found[_DT_NEEDED]), next(iter(found[_DT_SONAME]), None))
