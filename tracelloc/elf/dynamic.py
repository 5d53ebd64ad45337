"""What a file needs: the names in its dynamic section (System V gABI, chapter 5)."""

from __future__ import annotations

import struct
from typing import Final

from tracelloc.elf.file import ElfFile

_DT_NEEDED: Final = 1
_DT_SONAME: Final = 14
_MOST: Final = 4096
"""Entries that are looked at."""


def needed(elf: ElfFile) -> list[str]:
    """The libraries that are loaded with it, by the names that it has for them."""
    return _strings(elf, _DT_NEEDED)


def shared_name(elf: ElfFile) -> str | None:
    """What others that need it call it."""
    return next(iter(_strings(elf, _DT_SONAME)), None)


def _strings(elf: ElfFile, wanted: int) -> list[str]:
    entries, names = elf.section_bytes(".dynamic"), elf.section_bytes(".dynstr")
    if not entries or not names:
        return []
    found = []
    for at in range(0, min(len(entries) // 16, _MOST) * 16, 16):
        tag, value = struct.unpack_from("<QQ", entries, at)
        if tag == wanted and value < len(names):
            end = names.find(b"\0", value)
            found.append(names[value : end if end >= 0 else None].decode(errors="replace"))
    return found
