"""Names of the procedure linkage table's stubs, which no symbol table lists.

A stub is an indirect jump through a word of the global offset table, and a relocation names the
function whose address is put there. x86-64 (System V ABI, AMD64 supplement, chapter 5.2): linkers
write stubs in several shapes (with ``endbr64`` or ``bnd`` in front, lazy ones that push the
relocation's number); all of them hold ``jmp *disp(%rip)`` or ``push $number``. 64-bit Arm: all of
them hold ``adrp x16``, ``ldr x17, [x16, #…]``; ``bti c`` may precede these, and ``autia1716`` may
precede the jump. The table's first entry has them, too, with a word that no relocation names.
"""

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from tracelloc.architecture import Architecture, elf_architecture
from tracelloc.architecture.aarch64 import AARCH64
from tracelloc.architecture.aarch64.instructions import BTI_C
from tracelloc.architecture.x86_64 import X86_64
from tracelloc.files.elf.file import ElfFile

_SECTIONS: Final = (".plt", ".plt.sec", ".plt.got")
# Bytes per stub on x86-64; `.plt.got` has 16 where stubs begin with `endbr64`.
_STUB_BYTES: Final = {".plt": 16, ".plt.sec": 16, ".plt.got": 8}
# Elf64_Rela.
_RELOCATION_DTYPE: Final = np.dtype([("offset", "<u8"), ("info", "<u8"), ("addend", "<i8")])
_LARGEST_BYTES: Final = 2 << 20  # Bytes of a section's stubs that are read: 131,072 stubs
_MOST_RELOCATIONS: Final = 1 << 22
_ENDBR64: Final = bytes.fromhex("f30f1efa")
_JUMP: Final = bytes.fromhex("ff25")
_PUSH: Final = 0x68
_BR_X17: Final = 0xD61F0220
_LONGEST_STUB: Final = 6  # Instructions of a stub of 64-bit Arm


def plt_functions(elf: ElfFile) -> list[tuple[int, int, str]]:
    """Returns (address, size, ``name@plt``) of every PLT stub that a relocation names."""
    dynamic = elf.table(".dynsym")
    if dynamic is None:
        return []
    by_number = _relocations(elf.section_bytes(".rela.plt"))
    by_word = {offset: symbol for offset, symbol in by_number if symbol}
    by_word.update((o, s) for o, s in _relocations(elf.section_bytes(".rela.dyn")) if s)
    name_at = dynamic.symbols["name"]
    functions = []
    stubs = _STUBS.get(elf_architecture(elf.machine, elf.bits))
    for section in _SECTIONS:
        header = elf.section_header(section)
        if header is None or stubs is None:
            continue
        code = elf.read(header.offset, min(header.size_bytes, _LARGEST_BYTES))
        for address, size, symbol in stubs(section, code, header.address, by_word, by_number):
            if 0 < symbol < len(name_at):
                name = dynamic.names.at(int(name_at[symbol]))
                functions.append((address, size, f"{name}@plt"))
    return functions


_Relocated = dict[int, int]  # Index of the symbol by the address of the patched word


def _x86_64_stubs(
    section: str, code: bytes, start: int, by_word: _Relocated, by_number: list[tuple[int, int]]
) -> Iterator[tuple[int, int, int]]:
    step = 16 if code.startswith(_ENDBR64) else _STUB_BYTES[section]
    for at in range(0, len(code) - step + 1, step):
        yield start + at, step, _symbol_of(code[at : at + step], start + at, by_word, by_number)


def _aarch64_stubs(
    _section: str, code: bytes, start: int, by_word: _Relocated, _by_number: object
) -> Iterator[tuple[int, int, int]]:
    words = np.frombuffer(code[: len(code) & ~3], "<u4").astype(np.int64)
    is_pair = (words[:-1] & 0x9F00001F == 0x90000010) & (words[1:] & 0xFFC003FF == 0xF9400211)
    pairs = np.flatnonzero(is_pair)
    begins = pairs - ((pairs > 0) & (words[pairs - 1] == BTI_C))
    for pair, begin in zip(pairs.tolist(), begins.tolist(), strict=True):
        high, low = int(words[pair]), int(words[pair + 1])
        pages = high >> 29 & 3 | (high >> 5 & 0x7FFFF) << 2
        page = (start + 4 * pair & ~0xFFF) + ((pages ^ 1 << 20) - (1 << 20) << 12)
        symbol = by_word.get(page + (low >> 10 & 0xFFF) * 8, 0)
        jumps = np.flatnonzero(words[begin : begin + _LONGEST_STUB] == _BR_X17)
        if len(jumps):
            yield start + 4 * begin, 4 * int(jumps[0]) + 4, symbol


def _relocations(data: bytes | None) -> list[tuple[int, int]]:
    """Parses relocations: (address of the patched word, index of the symbol; 0: none)."""
    if not data:
        return []
    whole = min(len(data) // _RELOCATION_DTYPE.itemsize, _MOST_RELOCATIONS)
    entries = np.frombuffer(data, _RELOCATION_DTYPE, whole)
    symbols = (entries["info"] >> np.uint64(32)).tolist()
    return list(zip(entries["offset"].tolist(), symbols, strict=True))


def _symbol_of(
    stub: bytes, address: int, by_word: dict[int, int], by_number: list[tuple[int, int]]
) -> int:
    """Returns the index of the symbol that a stub leads to; 0 if it can't be told."""
    at = stub.find(_JUMP)
    if 0 <= at <= len(stub) - 6:
        displacement = int.from_bytes(stub[at + 2 : at + 6], "little", signed=True)
        symbol = by_word.get(address + at + 6 + displacement)
        if symbol is not None:
            return symbol
    at = len(_ENDBR64) if stub.startswith(_ENDBR64) else 0
    number = int.from_bytes(stub[at + 1 : at + 5], "little")
    is_push = len(stub) >= at + 5 and stub[at] == _PUSH
    return by_number[number][1] if is_push and number < len(by_number) else 0


_STUBS: Final[dict[Architecture | None, Callable[..., Iterator[tuple[int, int, int]]]]] = {
    X86_64: _x86_64_stubs,
    AARCH64: _aarch64_stubs,
}
