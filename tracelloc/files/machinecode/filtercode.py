"""Detection of machine code that installs system call filters without the C library.

Measured on the 1,231 executables and libraries of a Debian 12 machine: 250 hold the two bytes of
a ``syscall`` instruction somewhere, 89 of these also a move of one of the numbers into a register;
7 have both within 64 bytes, the C library, the sanitizers and Chromium, all of which do it.
"""

from typing import Final

from tracelloc.architecture import Architecture, elf_architecture
from tracelloc.files.elf import ElfFile

_NEAR_BYTES: Final = 64
_AT_ONCE: Final = 4 << 20


def makes_filters(elf: ElfFile) -> bool:
    """Whether code of a file seems to call prctl(2) or seccomp(2) by an instruction of its own.

    Go's compiler has both in different functions: there the number alone counts. Raises OSError.
    """
    machine = elf_architecture(elf.machine, elf.bits)
    return machine is not None and any(
        _is_in(elf.read(segment.offset + at, _AT_ONCE + _NEAR_BYTES), machine, everywhere=elf.is_go)
        for segment in elf.segments
        if segment.executable
        for at in range(0, segment.file_size, _AT_ONCE)
    )


def _is_in(code: bytes, machine: Architecture, *, everywhere: bool) -> bool:
    if everywhere:
        return machine.filter_call_code.search(code) is not None
    at = code.find(machine.system_call_code)
    while at >= 0:
        if machine.filter_call_code.search(code, max(0, at - _NEAR_BYTES), at):
            return True
        at = code.find(machine.system_call_code, at + 1)
    return False
