"""ELF files as an attacker writes them: any section, any size, any number of anything."""

import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tracelloc.files.elf import ElfFile

_HEADER_BYTES = 64
_EXEC, _X86_64 = 2, 62


class MadeSection(NamedTuple):
    """A section to be written."""

    name: str
    data: bytes = b""
    kind: int = 1
    link: int = 0
    claims: int | None = None  # Its size, whatever `data` has
    offset: int | None = None
    flags: int = 0
    name_at: int | None = None


def elf_bytes(
    sections: Iterable[MadeSection] = (),
    *,
    programs: bytes = b"",
    program_count: int | None = None,
    first: tuple[int, int, int] = (0, 0, 0),
    section_count: int | None = None,
) -> bytes:
    """A file of these sections. ``first``: sh_size, sh_link and sh_info of the first header."""
    every = [*sections]
    named = [s.name for s in every if s.name_at is None]
    names = b"\0" + b"".join(name.encode() + b"\0" for name in named) + b".shstrtab\0"
    every.append(MadeSection(".shstrtab", names, kind=3))
    body, at = b"", _HEADER_BYTES + len(programs)
    headers = [struct.pack("<IIQQQQIIQQ", 0, 0, 0, 0, 0, first[0], first[1], first[2], 0, 0)]
    for section in every:
        size = len(section.data) if section.claims is None else section.claims
        offset = at + len(body) if section.offset is None else section.offset
        name = section.name_at
        if name is None:
            name = names.index(b"\0" + section.name.encode() + b"\0") + 1
        headers.append(
            struct.pack(
                "<IIQQQQIIQQ", name, section.kind, section.flags, 0, offset, size,
                section.link, 0, 1, 24 if section.kind in (2, 11) else 0,
            )
        )  # fmt: skip
        body += section.data
    body += bytes(-len(body) % 8)
    count = len(headers) if section_count is None else section_count
    programs_count = len(programs) // 56 if program_count is None else program_count
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack(
        "<HHIQQQIHHHHHH", _EXEC, _X86_64, 1, 0, _HEADER_BYTES if programs_count else 0,
        at + len(body), 0, _HEADER_BYTES, 56, programs_count, 64, count, len(every),
    )  # fmt: skip
    return head + programs + body + b"".join(headers)


def symbol(name: int, value: int = 0x1000, size: int = 16, kind: int = 2) -> bytes:
    """A defined global function (kind 2), named by its place in the table of names."""
    return struct.pack("<IBBHQQ", name, 0x10 | kind, 0, 1, value, size)


def symbol_sections(
    names: Iterable[str], table: str = ".dynsym", strings: str = ".dynstr"
) -> list[MadeSection]:
    """A symbol table of functions with these names; to stand first in the file."""
    text, symbols = bytearray(b"\0"), bytearray()
    for number, name in enumerate(names):
        symbols += symbol(len(text), 0x1000 + 16 * number)
        text += name.encode() + b"\0"
    return [
        MadeSection(table, bytes(symbols), kind=11, link=2),
        MadeSection(strings, bytes(text), kind=3),
    ]


def in_memory(data: bytes) -> int:
    descriptor = os.memfd_create("damaged")
    os.write(descriptor, data)
    return descriptor


def open_bytes(data: bytes) -> ElfFile:
    """The file, in memory only."""
    return ElfFile(in_memory(data))


def open_sparse(path: Path, data: bytes, size_bytes: int) -> ElfFile:
    """The file on disk, with a hole at its end."""
    path.write_bytes(data)
    os.truncate(path, size_bytes)
    return ElfFile(os.open(path, os.O_RDONLY))
