"""ELF files: segments, functions and where they lie. System V gABI, chapters 4 and 5.

pyelftools reads the containers (headers, section tables); symbol tables are looked at
as numpy arrays, because walking them entry by entry takes a hundred times as long.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

_SYMBOL_DTYPE: Final = np.dtype(
    [
        ("name", "<u4"),
        ("info", "u1"),
        ("other", "u1"),
        ("section", "<u2"),
        ("value", "<u8"),
        ("size", "<u8"),
    ]
)
"""Elf64_Sym, little endian."""

STT_FUNC: Final = 2
STT_GNU_IFUNC: Final = 10
_STB_RANK: Final = np.ones(16, np.uint8)
_STB_RANK[1:3] = 0
"""0 for names that other files can use (GLOBAL, WEAK), 1 for local ones."""
_SHN_UNDEF: Final = 0
_LOOK_BACK: Final = 16
"""How many symbols before an address are tried: an inner one may end before it."""


class NotElfError(Exception):
    """The file is not an ELF file that we can read."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A PT_LOAD program header, in bytes of the file and of the virtual address space."""

    offset: int
    file_size: int
    address: int
    executable: bool


@dataclass(frozen=True, slots=True)
class Symbol:
    """A function: ``address`` is relative to the file's own address space."""

    name: str
    address: int
    size: int
    """0: not known."""


class _Names:
    """A string table with lookups both ways."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def at(self, offset: int) -> str:
        end = self.data.find(b"\0", offset)
        return self.data[offset : end if end >= 0 else None].decode(errors="replace")

    def offsets_of(self, name: str) -> list[int]:
        """Everywhere this name can be read: linkers let a name be another one's tail."""
        wanted = name.encode() + b"\0"
        found = []
        at = self.data.find(wanted)
        while at >= 0:
            found.append(at)
            at = self.data.find(wanted, at + 1)
        return found


class SymbolTable:
    """The functions of one file, sorted by address. Names are read when asked for."""

    def __init__(self, tables: list[tuple[npt.NDArray[Any], _Names]]) -> None:
        self._tables = tables
        parts = []
        for number, (symbols, _) in enumerate(tables):
            kind = symbols["info"] & 0xF
            is_function = (kind == STT_FUNC) | (kind == STT_GNU_IFUNC)
            kept = np.flatnonzero(is_function & (symbols["section"] != _SHN_UNDEF))
            parts.append((kept, np.full(len(kept), number, np.uint8)))
        self._entry = np.concatenate([p[0] for p in parts]) if parts else np.empty(0, np.int64)
        self._table = np.concatenate([p[1] for p in parts]) if parts else np.empty(0, np.uint8)
        value = self._column("value")
        size = self._column("size")
        rank = _STB_RANK[self._column("info").astype(np.uint8) >> 4]
        # At one address: the best-bound name last, so that a search from the right finds it.
        order = np.lexsort((255 - rank, size, value))
        self._entry, self._table = self._entry[order], self._table[order]
        self._address = value[order]
        self._size = size[order]
        self._rank = rank[order]

    def __len__(self) -> int:
        return len(self._address)

    def _column(self, name: str) -> npt.NDArray[np.uint64]:
        column = np.zeros(len(self._entry), np.uint64)
        for number, (symbols, _) in enumerate(self._tables):
            mine = self._table == number
            column[mine] = symbols[name][self._entry[mine]]
        return column

    def _name(self, at: int) -> str:
        symbols, names = self._tables[int(self._table[at])]
        return names.at(int(symbols["name"][self._entry[at]]))

    def find(self, address: int) -> Symbol | None:
        """The function that contains an address, or None: never just the nearest one."""
        end = int(np.searchsorted(self._address, np.uint64(address), side="right"))
        for at in range(end - 1, max(-1, end - 1 - _LOOK_BACK), -1):
            start, size = int(self._address[at]), int(self._size[at])
            if size == 0:
                # Hand-written assembly: reaches to the next function.
                limit = int(self._address[end]) if end < len(self) else start + 4096
                contains = address < limit
            else:
                contains = address < start + size
            if contains:
                return Symbol(self._best_name(at), start, size)
        return None

    def _best_name(self, at: int) -> str:
        """Of the names for one address and size: exported, fewest underscores in front."""
        start, size, rank = self._address[at], self._size[at], self._rank[at]
        names = []
        while at >= 0 and (self._address[at], self._size[at], self._rank[at]) == (
            start,
            size,
            rank,
        ):
            names.append(self._name(at))
            at -= 1
        return min(names, key=lambda name: (len(name) - len(name.lstrip("_")), len(name), name))


class ElfFile:
    """An open ELF file. Owns the descriptor; reads with pread, never by mapping.

    A file that shrinks under a mapping kills the reader; a short read does not. Symbols
    may be asked for from several threads.
    """

    def __init__(self, descriptor: int) -> None:
        """Takes over ``descriptor``. Raises NotElfError, after closing it, if it can't be read."""
        self._file = os.fdopen(descriptor, "rb")
        try:
            self._elf = ELFFile(self._file)
            self.bits = self._elf.elfclass
            self.machine = str(self._elf["e_machine"])
            self.segments = [
                Segment(
                    offset=segment["p_offset"],
                    file_size=segment["p_filesz"],
                    address=segment["p_vaddr"],
                    executable=bool(segment["p_flags"] & 1),
                )
                for segment in self._elf.iter_segments("PT_LOAD")
            ]
        except (ELFError, OSError, ValueError, KeyError, TypeError) as error:
            self._file.close()
            raise NotElfError(str(error) or type(error).__name__) from error
        # pyelftools moves the one position that the file has.
        self._lock = threading.RLock()
        self._symbols: SymbolTable | None = None
        self._tables: list[tuple[npt.NDArray[Any], _Names]] | None = None

    def close(self) -> None:
        """Gives the descriptor back."""
        self._file.close()

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Bytes of the file; fewer than asked for at its end."""
        return os.pread(self._file.fileno(), size_bytes, offset)

    def address_of(self, offset: int) -> int | None:
        """Virtual address (the file's own) of a file offset."""
        for segment in self.segments:
            if segment.offset <= offset < segment.offset + segment.file_size:
                return segment.address + offset - segment.offset
        return None

    def offset_of(self, address: int) -> int | None:
        """File offset of a virtual address (the file's own)."""
        for segment in self.segments:
            if segment.address <= address < segment.address + segment.file_size:
                return segment.offset + address - segment.address
        return None

    def _symbol_tables(self) -> list[tuple[npt.NDArray[Any], _Names]]:
        with self._lock:
            if self._tables is None:
                tables = (self._read_symbols(name) for name in (".symtab", ".dynsym"))
                self._tables = [table for table in tables if table is not None]
            return self._tables

    def _read_symbols(self, section_name: str) -> tuple[npt.NDArray[Any], _Names] | None:
        try:
            section = self._elf.get_section_by_name(section_name)
            if section is None or section["sh_type"] == "SHT_NOBITS":
                return None
            strings = self._elf.get_section(section["sh_link"])
            data = self.read(section["sh_offset"], section["sh_size"])
            names = self.read(strings["sh_offset"], strings["sh_size"])
        except (ELFError, OSError, ValueError, KeyError, TypeError):
            return None
        whole = len(data) // _SYMBOL_DTYPE.itemsize
        symbols = np.frombuffer(data, _SYMBOL_DTYPE, whole)
        return symbols, _Names(names)

    @property
    def symbols(self) -> SymbolTable:
        """All functions of both symbol tables; decoded at first use."""
        with self._lock:
            if self._symbols is None:
                self._symbols = SymbolTable(self._symbol_tables() if self.bits == 64 else [])
            return self._symbols

    def find_functions(self, names: Collection[str]) -> dict[str, dict[int, int]]:
        """The defined functions with these names: address to size (usually one each).

        Looks the names up in the string tables, so that no other name is ever decoded.
        IFUNCs are left out: their address is that of a resolver.
        """
        found: dict[str, dict[int, int]] = {}
        if self.bits != 64:
            return found
        for symbols, strings in self._symbol_tables():
            functions = ((symbols["info"] & 0xF) == STT_FUNC) & (symbols["section"] != _SHN_UNDEF)
            for name in names:
                offsets = strings.offsets_of(name)
                if not offsets:
                    continue
                mine = functions & np.isin(symbols["name"], np.array(offsets, np.uint32))
                for value, size in symbols[["value", "size"]][mine].tolist():
                    found.setdefault(name, {})[value] = size
        return found
