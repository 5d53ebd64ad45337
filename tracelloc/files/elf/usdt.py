"""USDT probes declared by a file: notes of SystemTap's <sys/sdt.h>, version 3.

A note "stapsdt" of type 3 has three addresses (of the probe, of section ``.stapsdt.base`` when it
was linked, of the semaphore, 0 if there is none), then the provider, the probe, and where its
arguments are, each ended by a 0 byte. The file may have been moved since (prelink): the section's
address now tells by how much. https://sourceware.org/systemtap/wiki/UserSpaceProbeImplementation
"""

from __future__ import annotations

import re
import struct
from typing import Final

from tracelloc.architecture import Architecture, elf_architecture
from tracelloc.dataclass import dataclass
from tracelloc.files.elf.file import ElfFile
from tracelloc.files.elf.headers import notes_in

SECTION: Final = ".note.stapsdt"
_BASE: Final = ".stapsdt.base"
_OWNER: Final = b"stapsdt\0"
_KIND: Final = 3
_ADDRESSES: Final = struct.Struct("<QQQ")
# In one file, of one provider: as many as a compiler may make of a function that it inlines.
_MOST_PROBES: Final = 1 << 12
_MASK: Final = (1 << 64) - 1
# Spaces between arguments: not those in brackets.
_BETWEEN: Final = re.compile(r"\s+(?![^\[\]]{0,32}\])")
_FARTHEST: Final = 1 << 15


@dataclass(frozen=True, slots=True)
class UsdtProbe:
    """One place in the code where a USDT probe is; a probe may have many places."""

    name: str
    address: int  # Address of the place, in the file's own address space
    semaphore: int  # Address of the counter that is above 0 while somebody listens; 0: none
    arguments: tuple[Argument, ...] | None  # Where arguments are; None: where probes can't read


# (number of a register, whether the argument is in memory, how far from where that points)
Argument = tuple[int, bool, int]


def usdt_probes(elf: ElfFile, provider: str) -> list[UsdtProbe]:
    """Returns a provider's probes, in the file's order. Raises ValueError if there are too many."""
    notes = elf.section_bytes(SECTION)
    if not notes:
        return []
    base = elf.section_header(_BASE)
    machine = elf_architecture(elf.machine, elf.bits)
    found: list[UsdtProbe] = []
    for owner, kind, content, size_bytes in notes_in(notes):
        if (kind, owner) != (_KIND, _OWNER) or not _ADDRESSES.size <= size_bytes == len(content):
            continue
        address, linked_base, semaphore = _ADDRESSES.unpack_from(content)
        moved = 0 if base is None or not linked_base else base.address - linked_base
        words = content[_ADDRESSES.size :].split(b"\0")
        if len(words) < 3 or words[0] != provider.encode():
            continue
        if len(found) == _MOST_PROBES:
            raise ValueError(f"it has more than {_MOST_PROBES:,} probes of {provider}")
        name, arguments = (word.decode("ascii", errors="replace") for word in words[1:3])
        found.append(
            UsdtProbe(
                name,
                address + moved & _MASK,
                semaphore + moved & _MASK if semaphore else 0,
                None if machine is None else _arguments(arguments, machine),
            )
        )
    return found


def _arguments(text: str, machine: Architecture) -> tuple[Argument, ...] | None:
    """Parses places of arguments such as ``8@%rdi -8@16(%rsp)``; None if probes can't read one.

    Arguments have 64 bits. The syntax depends on the machine: ``8@x0 -8@[sp, 16]`` on Arm.
    """
    found: list[Argument] = []
    for word in _BETWEEN.split(text.strip()) if text.strip() else ():
        match = machine.usdt_argument.fullmatch(word)
        register = None if match is None else match["register"] or match["base"]
        if match is None or register not in machine.usdt_registers:
            return None
        displacement = int(match["displacement"] or "0", 0)
        if not -_FARTHEST <= displacement < _FARTHEST:
            return None
        found.append(
            (machine.usdt_registers.index(register), match["base"] is not None, displacement)
        )
    return tuple(found)
