"""Processor architectures: everything that differs between them, behind one description.

``native`` describes the machine that tracelloc runs on, ``elf_architecture`` the one that a file is
for. No other package compares names or numbers of machines. Facts that need a library or compiled
code (how capstone names registers, how rows are encoded) stay in the package that knows that
library, in one module per architecture.
"""

import platform
from functools import cache
from typing import Final

from tracelloc.architecture.aarch64 import AARCH64
from tracelloc.architecture.description import Architecture
from tracelloc.architecture.x86_64 import X86_64
from tracelloc.errors import UnsupportedError

__all__ = [
    "ARCHITECTURES", "Architecture", "address_bits", "elf_architecture", "machine_architecture",
    "machine_name", "native",
]  # fmt: skip

ARCHITECTURES: Final = (X86_64, AARCH64)
_BY_ELF_NAME: Final = {each.elf_name: each for each in ARCHITECTURES}


def machine_name() -> str:
    """Returns the kernel's name for this machine, such as ``x86_64``, known or not."""
    return platform.machine()


@cache
def machine_architecture(machine: str) -> Architecture | None:
    """Returns a machine's architecture by the kernel's name for it; None if it is unknown."""
    return next((each for each in ARCHITECTURES if each.name == machine), None)


def native() -> Architecture:
    """Returns the architecture of this machine. Raises UnsupportedError if it is unknown."""
    found = machine_architecture(machine_name())
    if found is None:
        raise UnsupportedError(f"tracelloc does not run on {machine_name()}")
    return found


def address_bits() -> int:
    """Returns the bits of a user-space address here; on an unknown machine, the most known."""
    found = machine_architecture(machine_name())
    return max(each.address_bits for each in ARCHITECTURES) if found is None else found.address_bits


def elf_architecture(elf_name: str, bits: int = 64) -> Architecture | None:
    """Returns the architecture of ``ElfFile.machine``; None if unknown, or for files of 32 bits."""
    return _BY_ELF_NAME.get(elf_name) if bits == 64 else None
