"""USDT probes declared by a file: notes of SystemTap's <sys/sdt.h>, version 3.

A note "stapsdt" of type 3 has three addresses (of the probe, of section ``.stapsdt.base`` when it
was linked, of the semaphore, 0 if there is none), then the provider, the probe, and where its
arguments are, each ended by a 0 byte. The file may have been moved since (prelink): the section's
address now tells by how much. https://sourceware.org/systemtap/wiki/UserSpaceProbeImplementation
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
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
_MOST_ARGUMENTS: Final = 12
# Size of an argument in bytes, below 0 if it is signed; then what the machine has.
_WIDTH: Final = re.compile(r"(?:(?P<bytes>-?[1248])@)?(?P<place>.*)", re.DOTALL)
_NUMBER: Final = re.compile(r"[-+]?(?:0x[0-9a-f]{1,16}|\d{1,20})")
_TERM: Final = re.compile(r"[-+]?[^-+]+|.")
_NOTHING: Final = (0xFF, 0, 8)  # In the place of a register (`USDT_NO_REGISTER`)
_MOST_PROVIDERS: Final = 64


@dataclass(frozen=True, slots=True)
class UsdtArgument:
    """Where an argument is: ``struct usdt_argument`` in ``probes/event.h``."""

    constant: int
    base: int
    index: int
    shift: int
    in_memory: bool
    skip_bits: int
    bytes: int
    is_signed: bool


@dataclass(frozen=True, slots=True)
class UsdtProbe:
    """One place in the code where a USDT probe is; a probe may have many places."""

    name: str
    address: int  # Address of the place, in the file's own address space
    semaphore: int  # Address of the counter that is above 0 while somebody listens; 0: none
    # Where the arguments are; None: where probes can't read one.
    arguments: tuple[UsdtArgument | None, ...]


def usdt_providers(elf: ElfFile) -> list[str]:
    """Returns the names of the providers of a file's probes, each once, 64 at most."""
    return list(dict.fromkeys(words[0] for *_, words in _notes(elf)))[:_MOST_PROVIDERS]


def usdt_probes(elf: ElfFile, provider: str) -> list[UsdtProbe]:
    """Returns a provider's probes, in the file's order. Raises ValueError if there are too many."""
    base = elf.section_header(_BASE)
    machine = elf_architecture(elf.machine, elf.bits)
    found: list[UsdtProbe] = []
    for address, linked_base, semaphore, words in _notes(elf):
        moved = 0 if base is None or not linked_base else base.address - linked_base
        if words[0] != provider:
            continue
        if len(found) == _MOST_PROBES:
            raise ValueError(f"it has more than {_MOST_PROBES:,} probes of {provider}")
        place = address + moved & _MASK
        arguments: tuple[UsdtArgument | None, ...] = ()
        if machine is not None:
            texts = _BETWEEN.split(words[2].strip())[:_MOST_ARGUMENTS]
            arguments = tuple(_argument(text, machine, elf, place) for text in texts if text)
        counter = semaphore + moved & _MASK if semaphore else 0
        found.append(UsdtProbe(words[1], place, counter, arguments))
    return found


def _notes(elf: ElfFile) -> Iterator[tuple[int, int, int, list[str]]]:
    """Yields (address, base, semaphore, [provider, name, arguments, …]) of each probe."""
    for owner, kind, content, size_bytes in notes_in(elf.section_bytes(SECTION) or b""):
        if (kind, owner) != (_KIND, _OWNER) or not _ADDRESSES.size <= size_bytes == len(content):
            continue
        words = content[_ADDRESSES.size :].decode("ascii", errors="replace").split("\0", 3)
        if len(words) >= 3:
            yield *_ADDRESSES.unpack_from(content), words


def _argument(text: str, machine: Architecture, elf: ElfFile, at: int) -> UsdtArgument | None:
    """Parses where an argument of the probe at an address is; None if probes can't read it.

    The syntax is the assembler's: ``-4@%eax``, ``8@16(%rsp)``; ``8@x0``, ``-8@[sp, 16]`` on Arm.
    """
    width = _WIDTH.fullmatch(text)
    assert width is not None
    found = machine.usdt_argument.fullmatch(width["place"])
    if found is None or not width["place"]:
        return None
    names = found.groupdict()
    base, index = (
        _NOTHING if name is None else machine.usdt_registers.get(name)
        for name in (names["register"] or names["base"], names["index"])
    )
    offset = _sum(names["constant"] or names["displacement"] or "", elf)
    if base is None or index is None or offset is None:
        return None
    constant, is_relative = offset
    counter = machine.usdt_registers[machine.usdt_counter]
    if is_relative:
        # Where the file is mapped follows from where the probe is hit.
        constant -= at
        base = counter if base is _NOTHING else base
    in_memory = names["register"] is None and names["constant"] is None
    if is_relative != (base is counter) or (in_memory and base[1:] + index[1:] != (0, 8, 0, 8)):
        return None
    given = int(width["bytes"] or 8)
    size = min(base[2] if names["register"] else 8, abs(given))
    shift = int(names.get("shift") or 0) or int(names.get("scale") or 1).bit_length() - 1
    return UsdtArgument(
        constant & _MASK, base[0], index[0], shift, in_memory, base[1], size, given < 0
    )


def _sum(text: str, elf: ElfFile) -> tuple[int, bool] | None:
    """Returns (sum of numbers and maybe a variable's address, whether one is in it), or None."""
    total, is_relative = 0, False
    for term in _TERM.findall(text):
        if _NUMBER.fullmatch(term):
            total += int(term, 16 if "0x" in term else 10)
            continue
        address = None if is_relative else elf.find_object(term.removeprefix("+"))
        if address is None:
            return None
        total, is_relative = total + address, True
    return total, is_relative
