"""Processor architectures: everything that differs between them, behind one description.

``native`` describes the machine that tracelloc runs on, ``of_elf`` the one that a file is for. No
other package compares names or numbers of machines. Facts that need a library or compiled code
(how capstone names registers, how rows are encoded) stay in the package that knows that library,
in one module per architecture.
"""

from __future__ import annotations

import platform
from functools import cache
from typing import Final

from tracelloc.architecture.aarch64 import AARCH64
from tracelloc.architecture.description import Architecture
from tracelloc.architecture.x86_64 import X86_64
from tracelloc.errors import UnsupportedError

__all__ = [
    "ARCHITECTURES", "Architecture", "address_bits", "machine_name", "native", "of_elf",
    "of_machine",
]  # fmt: skip

ARCHITECTURES: Final = (X86_64, AARCH64)
_BY_ELF_NAME: Final = {each.elf_name: each for each in ARCHITECTURES}


def machine_name() -> str:
    """The kernel's name for the machine, such as ``x86_64``, known to tracelloc or not."""
    return platform.machine()


@cache
def of_machine(machine: str) -> Architecture | None:
    """The architecture of a machine by the kernel's name; None for an unknown one."""
    return next((each for each in ARCHITECTURES if each.name == machine), None)


def native() -> Architecture:
    """The architecture of this machine. Raises UnsupportedError for an unknown one."""
    found = of_machine(machine_name())
    if found is None:
        raise UnsupportedError(f"tracelloc does not run on {machine_name()}")
    return found


def address_bits() -> int:
    """Bits of a user-space address on this machine; the most there are on an unknown one."""
    found = of_machine(machine_name())
    return max(each.address_bits for each in ARCHITECTURES) if found is None else found.address_bits


def of_elf(elf_name: str, bits: int = 64) -> Architecture | None:
    """The architecture of an ELF file by its machine's name; None for an unknown one.

    ``elf_name`` is such as ``EM_X86_64`` (``ElfFile.machine``). Files of 32 bits have none.
    """
    return _BY_ELF_NAME.get(elf_name) if bits == 64 else None
