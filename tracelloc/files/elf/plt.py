"""Names of the procedure linkage table's stubs, which no symbol table lists.

System V ABI, AMD64 supplement, chapter 5.2: a stub is an indirect jump through a word of
the global offset table, and a relocation names the function whose address is put there.
Linkers write stubs in several shapes (with ``endbr64`` or ``bnd`` in front, lazy ones that
push the relocation's number); all of them hold ``jmp *disp(%rip)`` or ``push $number``.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from tracelloc.files.elf.file import ElfFile

_SECTIONS: Final = {".plt": 16, ".plt.sec": 16, ".plt.got": 8}
"""Bytes per stub; ``.plt.got`` has 16 where stubs begin with ``endbr64``."""
_RELOCATION_DTYPE: Final = np.dtype([("offset", "<u8"), ("info", "<u8"), ("addend", "<i8")])
"""Elf64_Rela."""
_LARGEST_BYTES: Final = 2 << 20
"""Bytes of a section's stubs that are read: 131,072 stubs."""
_MOST_RELOCATIONS: Final = 1 << 22
_ENDBR64: Final = bytes.fromhex("f30f1efa")
_JUMP: Final = bytes.fromhex("ff25")
_PUSH: Final = 0x68


def plt_functions(elf: ElfFile) -> list[tuple[int, int, str]]:
    """(address, size, ``name@plt``) of every stub that a relocation names."""
    dynamic = elf.table(".dynsym")
    if dynamic is None:
        return []
    by_number = _relocations(elf.section_bytes(".rela.plt"))
    by_word = {offset: symbol for offset, symbol in by_number if symbol}
    by_word.update((o, s) for o, s in _relocations(elf.section_bytes(".rela.dyn")) if s)
    name_at = dynamic.symbols["name"]
    functions = []
    for section, stub_bytes in _SECTIONS.items():
        header = elf.section_header(section)
        if header is None:
            continue
        code = elf.read(header.offset, min(header.size_bytes, _LARGEST_BYTES))
        start = header.address
        step = 16 if code.startswith(_ENDBR64) else stub_bytes
        for at in range(0, len(code) - step + 1, step):
            symbol = _symbol_of(code[at : at + step], start + at, by_word, by_number)
            if 0 < symbol < len(name_at):
                name = dynamic.names.at(int(name_at[symbol]))
                functions.append((start + at, step, f"{name}@plt"))
    return functions


def _relocations(data: bytes | None) -> list[tuple[int, int]]:
    """(address of the patched word, index of the symbol; 0: none) in their order."""
    if not data:
        return []
    whole = min(len(data) // _RELOCATION_DTYPE.itemsize, _MOST_RELOCATIONS)
    entries = np.frombuffer(data, _RELOCATION_DTYPE, whole)
    symbols = entries["info"] >> np.uint64(32)
    pairs: list[tuple[int, int]] = list(
        zip(entries["offset"].tolist(), symbols.tolist(), strict=True)
    )
    return pairs


def _symbol_of(
    stub: bytes, address: int, by_word: dict[int, int], by_number: list[tuple[int, int]]
) -> int:
    """The index of the symbol that a stub leads to; 0 if it can't be told."""
    displacement: int
    number: int
    at = stub.find(_JUMP)
    if 0 <= at <= len(stub) - 6:
        (displacement,) = struct.unpack_from("<i", stub, at + 2)
        symbol = by_word.get(address + at + 6 + displacement)
        if symbol is not None:
            return symbol
    at = len(_ENDBR64) if stub.startswith(_ENDBR64) else 0
    if len(stub) >= at + 5 and stub[at] == _PUSH:
        (number,) = struct.unpack_from("<I", stub, at + 1)
        if number < len(by_number):
            return by_number[number][1]
    return 0
