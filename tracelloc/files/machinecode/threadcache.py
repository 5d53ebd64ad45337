"""The glibc function that frees an ended thread's cache (malloc.c: tcache_thread_shutdown).

It frees each cached block once more, by a call of free within the library. The function is
internal, and distributions' files have no symbol for it. tracelloc identifies it by its code: it
sets a byte of the thread's variables to 1 (``tcache_shutting_down``), then calls free.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Collection
from typing import Final

from tracelloc.architecture import of_elf
from tracelloc.architecture.x86_64 import X86_64
from tracelloc.files.elf import ElfFile

_SETS_BYTE: Final = re.compile(rb"\x64\xc6(?:[\x00-\x03\x06\x07]\x01|\x04\x25....\x01)", re.DOTALL)
"""``movb $1, %fs:(register)``, or of a fixed offset."""
_NEAR_BYTES: Final = 256
_CALL: Final = 0xE8
_CALL_BYTES: Final = 5


def thread_cache_drain(
    elf: ElfFile, frees: Collection[int], start_of: Callable[[int], int | None]
) -> int | None:
    """The function's address; None if no function, or more than one, matches.

    ``frees``: addresses of free; ``start_of``: returns the start of the function that contains an
    address. Raises OSError.
    """
    found = set()
    if of_elf(elf.machine, elf.bits) is not X86_64:
        return None  # not known there
    for segment in elf.segments:
        if not segment.executable:
            continue
        code = elf.read(segment.offset, segment.file_size)
        for match in _SETS_BYTE.finditer(code):
            if _calls(code, match.end(), segment.address, frees):
                found.add(start_of(segment.address + match.start()))
    return found.pop() if len(found) == 1 else None


def _calls(code: bytes, start: int, base: int, targets: Collection[int]) -> bool:
    """Whether one of the next instructions calls one of these functions."""
    end = min(start + _NEAR_BYTES, len(code) - _CALL_BYTES)
    at = code.find(_CALL, start, end)
    while at >= 0:
        (distance,) = struct.unpack_from("<i", code, at + 1)
        if base + at + _CALL_BYTES + distance in targets:
            return True
        at = code.find(_CALL, at + 1, end)
    return False
