"""The glibc function that frees an ended thread's cache (malloc.c: tcache_thread_shutdown).

This function frees each cached block once more, by a call of free within the library. It is
internal, and distributions' files have no symbol for it. tracelloc identifies it by its code: it
sets a byte of the thread's variables to 1 (``tcache_shutting_down``), then calls free.
"""

import re
from collections.abc import Callable, Collection, Iterator
from typing import Final

import numpy as np

from tracelloc.architecture import Architecture, elf_architecture
from tracelloc.architecture.aarch64 import AARCH64
from tracelloc.architecture.x86_64 import X86_64
from tracelloc.files.elf import ElfFile

# `movb $1, %fs:(register)`, or of a fixed offset.
_SETS_BYTE: Final = re.compile(rb"\x64\xc6(?:[\x00-\x03\x06\x07]\x01|\x04\x25....\x01)", re.DOTALL)
_NEAR_BYTES: Final = 256
_CALL: Final = 0xE8
_CALL_BYTES: Final = 5
# 64-bit Arm: bl; `strb wN, [xM, #…]`; `mov wN, #1`; `mrs xN, tpidr_el0`.
_BL, _STRB, _MOV_1, _READ_BASE = 0x25, 0x39000000, 0x52800020, 0xD53BD040
_SET_UP: Final = 16  # Instructions before the store that are searched for the other two


def thread_cache_drain(
    elf: ElfFile, frees: Collection[int], start_of: Callable[[int], int | None]
) -> int | None:
    """Finds the one function that frees thread caches; None if not exactly one matches.

    ``frees``: addresses of free; ``start_of``: returns where an address's function starts. Raises
    OSError.
    """
    places = _PLACES.get(elf_architecture(elf.machine))
    found = set()
    for segment in elf.segments:
        if places is None or not segment.executable:
            continue
        code = elf.read(segment.offset, segment.file_size)
        found |= {start_of(place) for place in places(code, segment.address, frees)}
    return found.pop() if len(found) == 1 else None


def _x86_64_places(code: bytes, base: int, frees: Collection[int]) -> Iterator[int]:
    for match in _SETS_BYTE.finditer(code):
        if _calls(code, match.end(), base, frees):
            yield base + match.start()


def _aarch64_places(code: bytes, base: int, frees: Collection[int]) -> Iterator[int]:
    """Yields where a thread's byte is set to 1: ``strb``, after the thread's base was read."""
    words = np.frombuffer(code[: len(code) & ~3], "<u4").astype(np.int64)
    calls = np.flatnonzero(words >> 26 == _BL)
    targets = base + 4 * calls + 4 * (((words[calls] & 0x3FFFFFF) ^ 1 << 25) - (1 << 25))
    for call in calls[np.isin(targets, list(frees))].tolist():
        first = max(0, call - _NEAR_BYTES // 4)
        stores = np.flatnonzero(words[first:call] & 0xFFC00000 == _STRB)
        for store in (first + stores).tolist():
            before = words[max(0, store - _SET_UP) : store]
            is_one = np.any(before == _MOV_1 | int(words[store]) & 31)
            if is_one and np.any(before & ~0x1F == _READ_BASE):
                yield base + 4 * store


_PLACES: Final[dict[Architecture | None, Callable[..., Iterator[int]]]] = {
    X86_64: _x86_64_places,
    AARCH64: _aarch64_places,
}


def _calls(code: bytes, start: int, base: int, targets: Collection[int]) -> bool:
    end = min(start + _NEAR_BYTES, len(code) - _CALL_BYTES)
    at = code.find(_CALL, start, end)
    while at >= 0:
        distance = int.from_bytes(code[at + 1 : at + 5], "little", signed=True)
        if base + at + _CALL_BYTES + distance in targets:
            return True
        at = code.find(_CALL, at + 1, end)
    return False


_CLOSE_BYTES: Final = 64
_AT_ONCE: Final = 4 << 20


def makes_filters(elf: ElfFile) -> bool:
    """Whether code of a file seems to call prctl(2) or seccomp(2) by an instruction of its own.

    Measured on the 1,231 executables and libraries of a Debian 12 machine: 250 hold the two bytes
    of a ``syscall`` instruction somewhere, 89 of these also a move of one of the numbers into a
    register; 7 have both within 64 bytes, the C library, the sanitizers and Chromium, all of which
    do it. Go's compiler has both in different functions: there the number alone counts. Raises
    OSError.
    """
    machine = elf_architecture(elf.machine)
    return machine is not None and any(
        _is_in(
            elf.read(segment.offset + at, _AT_ONCE + _CLOSE_BYTES), machine, everywhere=elf.is_go
        )
        for segment in elf.segments
        if segment.executable
        for at in range(0, segment.file_size, _AT_ONCE)
    )


def _is_in(code: bytes, machine: Architecture, *, everywhere: bool) -> bool:
    if everywhere:
        return machine.filter_call_code.search(code) is not None
    at = code.find(machine.system_call_code)
    while at >= 0:
        if machine.filter_call_code.search(code, max(0, at - _CLOSE_BYTES), at):
            return True
        at = code.find(machine.system_call_code, at + 1)
    return False
