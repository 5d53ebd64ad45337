"""Symbol tables as numpy arrays: functions by address, and by name.

System V gABI, chapter 4, "Symbol Table". Walking a table entry by entry takes a hundred
times as long as looking at it as columns. Names stay in the string table until asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracelloc.dataclass import dataclass

# Elf64_Sym, little endian.
SYMBOL_DTYPE: Final = np.dtype([
    ("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"),
    ("size", "<u8"),
])  # fmt: skip

STT_OBJECT: Final = 1
STT_FUNC: Final = 2
STT_COMMON: Final = 5
STT_TLS: Final = 6
STT_GNU_IFUNC: Final = 10
FUNCTIONS: Final = (STT_FUNC, STT_GNU_IFUNC)
VARIABLES: Final = (STT_OBJECT, STT_COMMON)
THREAD_LOCALS: Final = (STT_TLS,)
_STB_RANK: Final = np.ones(16, np.uint8)
_STB_RANK[1:3] = 0  # 0 for names that other files can use (GLOBAL, WEAK), 1 for local ones
_SHN_UNDEF: Final = 0
# How many symbols before an address are tried: an inner one may end before it.
_LOOK_BACK: Final = 16
# How far a function without a size reaches, unless another one begins before.
_UNSIZED_REACH: Final = np.uint64(4096)

LONGEST_NAME: Final = 64 << 10  # Bytes of a name that are read. Compilers stay far below.
_BEGINNING: Final = 4  # Bytes of names that are compared at once
_MOST_ENDING: Final = 1 << 14  # Different strings that end alike
_MOST_PLACES: Final = 8  # Functions of one name in one file. More than one is rare.
_MOST_ALIASES: Final = 64  # Names of one function that are compared

U64 = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Symbol:
    """A function's or variable's symbol. Addresses are the file's; offsets if thread-local."""

    name: str
    address: int
    size: int  # Size in bytes; 0: not known


@lru_cache(4)  # The same names are searched for in one file after the other
def _prepared(names: tuple[str, ...]) -> tuple[dict[bytes, str], int, list[tuple[int, Any]]]:
    """Returns (names by bytes, most bytes with the end, beginnings of names by their length)."""
    wanted = {name.encode(errors="surrogateescape"): name for name in names}
    beginnings: dict[int, set[int]] = {}
    for raw in wanted:
        beginning = (raw + b"\0")[:_BEGINNING]
        beginnings.setdefault(len(beginning), set()).add(int.from_bytes(beginning, "big"))
    ordered = [(n, np.array(sorted(known), np.uint32)) for n, known in beginnings.items()]
    return wanted, max(map(len, wanted), default=0) + 1, ordered


class StringTable:
    """NUL-terminated names one after the other (ELF string table): names by offset, and back."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def at(self, offset: int) -> str:
        """Returns the name at an offset; if it is too long, only its beginning."""
        return self._raw(offset, LONGEST_NAME).decode(errors="replace")

    def _raw(self, offset: int, most_bytes: int) -> bytes:
        end = self.data.find(b"\0", offset, offset + most_bytes)
        return self.data[offset : end if end >= 0 else offset + most_bytes]

    def find(
        self, offsets: npt.NDArray[np.uint32], names: Iterable[str]
    ) -> Iterator[tuple[int, str]]:
        """Yields (index of an offset, name) for the offsets at which one of some names stands.

        Makes one pass, however many names there are: only strings that begin like one are compared.
        Linkers let a name be another one's tail.
        """
        wanted, longest, beginnings = _prepared(tuple(names))
        stands = self._beginnings(offsets)
        likely = np.zeros(len(offsets), np.bool_)
        for length, ordered in beginnings:
            shifted = stands >> np.uint32(8 * (_BEGINNING - length))
            at = np.searchsorted(ordered[:-1], shifted)
            likely |= ordered[at] == shifted
        for index in np.flatnonzero(likely).tolist():
            name = wanted.get(self._raw(int(offsets[index]), longest))
            if name is not None:
                yield index, name

    def _beginnings(self, offsets: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        """Returns the four bytes at each offset as a big-endian number; zeros after the end."""
        text = np.frombuffer(self.data, np.uint8)
        number = np.zeros(len(offsets), np.uint32)
        for place in range(_BEGINNING):
            number <<= np.uint32(8)
            at = offsets.astype(np.int64) + place
            inside = at < len(text)
            number[inside] |= text[at[inside]]
        return number

    def is_named(self, offsets: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
        """Returns a mask of the offsets at which a string is not empty."""
        text = np.frombuffer(self.data, np.uint8)
        named = offsets < len(text)
        named[named] = text[offsets[named]] != 0
        return named

    def ending(self, tail: str) -> set[str]:
        """Returns strings that end with ``tail``; if there are many thousands, some of them."""
        wanted = tail.encode() + b"\0"
        found: set[str] = set()
        at = self.data.find(wanted)
        while at >= 0 and len(found) < _MOST_ENDING:
            start = self.data.rfind(b"\0", max(0, at - LONGEST_NAME), at) + 1
            found.add(self.data[start : at + len(tail)].decode(errors="replace"))
            at = self.data.find(wanted, at + 1)
        return found

    def like(self, pattern: str) -> set[str]:
        """Returns all strings that a glob (fnmatch) matches. Slow: compares every string."""
        names = self.data.decode(errors="replace").split("\0")
        return {text for text in names if fnmatchcase(text, pattern)}


@dataclass(frozen=True, slots=True)
class RawTable:
    """An undecoded symbol table section, and the string table it refers to."""

    symbols: npt.NDArray[Any]  # Records of SYMBOL_DTYPE
    names: StringTable

    @classmethod
    def decode(cls, symbols: bytes, names: bytes) -> RawTable:
        """Makes a table of two sections' bytes; leaves out an incomplete last entry."""
        whole = len(symbols) // SYMBOL_DTYPE.itemsize
        return cls(np.frombuffer(symbols, SYMBOL_DTYPE, whole), StringTable(names))

    @classmethod
    def made_up(cls, functions: Sequence[tuple[int, int, str]]) -> RawTable:
        """Makes a table of local functions that no section lists: (address, size, name)."""
        symbols = np.zeros(len(functions), SYMBOL_DTYPE)
        names = bytearray(b"\0")
        for n, (address, size, name) in enumerate(functions):
            symbols[n] = (len(names), STT_FUNC, 0, 1, address, size)
            names += name.encode(errors="replace") + b"\0"
        return cls(symbols, StringTable(bytes(names)))

    def find_functions(self, names: Collection[str]) -> dict[str, dict[int, int]]:
        """Returns (address: bytes) of defined functions by name, without IFUNCs (resolvers)."""
        found: dict[str, dict[int, int]] = {}
        functions = self._defined(STT_FUNC)
        for index, name in self.names.find(functions["name"], names):
            places = found.setdefault(name, {})
            if len(places) < _MOST_PLACES:
                places[int(functions["value"][index])] = int(functions["size"][index])
        return found

    def _defined(self, kind: int) -> npt.NDArray[Any]:
        is_kind = self.symbols["info"] & 0xF == kind
        found: npt.NDArray[Any] = self.symbols[is_kind & (self.symbols["section"] != _SHN_UNDEF)]
        return found

    def linkage(self, names: Collection[str]) -> dict[str, bool]:
        """Returns which names are in the table, and for each whether the file defines it."""
        found: dict[str, bool] = {}
        for index, name in self.names.find(self.symbols["name"], names):
            is_defined = bool(self.symbols["section"][index] != _SHN_UNDEF)
            found[name] = found.get(name, False) or is_defined
        return found

    def find_object(self, name: str) -> int | None:
        """Returns the address of a defined variable; None if there is none of this name."""
        objects = self._defined(STT_OBJECT)
        found = next(self.names.find(objects["name"], [name]), None)
        return None if found is None else int(objects["value"][found[0]])


class SymbolTable:
    """A file's functions (or variables), sorted by address. ``kinds``: types to take (``STT_``)."""

    def __init__(self, tables: Sequence[RawTable], kinds: tuple[int, ...] = FUNCTIONS) -> None:
        self._tables = tables
        entries, numbers = [np.empty(0, np.int64)], [np.empty(0, np.uint8)]
        for number, table in enumerate(tables):
            is_wanted = np.isin(table.symbols["info"] & 0xF, kinds)
            kept = np.flatnonzero(is_wanted & (table.symbols["section"] != _SHN_UNDEF))
            # In damaged files; they would hide those that have names.
            kept = kept[table.names.is_named(table.symbols["name"][kept])]
            entries.append(kept)
            numbers.append(np.full(len(kept), number, np.uint8))
        self._entry, self._table = np.concatenate(entries), np.concatenate(numbers)
        value, size = self._column("value"), self._column("size")
        rank = _STB_RANK[self._column("info").astype(np.uint8) >> 4]
        # At one address: the best-bound name last, so that a search from the right finds it.
        order = np.lexsort((255 - rank, size, value))
        self._entry, self._table = self._entry[order], self._table[order]
        self._address, self._size, self._rank = value[order], size[order], rank[order]
        self._end = self._ends()
        self._symbols: dict[int, Symbol] = {}

    def __len__(self) -> int:
        return len(self._address)

    def _column(self, name: str) -> U64:
        column = np.zeros(len(self._entry), np.uint64)
        for number, table in enumerate(self._tables):
            mine = self._table == number
            column[mine] = table.symbols[name][self._entry[mine]]
        return column

    def _ends(self) -> U64:
        """The end address of each function; one without a size (assembly) ends at the next one."""
        ends = self._address + self._size
        unsized = np.flatnonzero(self._size == 0)
        starts = self._address[unsized]
        following = np.searchsorted(self._address, starts, side="right")
        next_start = np.append(self._address, np.uint64((1 << 64) - 1))[following]
        ends[unsized] = np.minimum(starts + _UNSIZED_REACH, next_start)
        return ends

    def find(self, address: int) -> Symbol | None:
        """Returns the function that contains an address; None rather than just the nearest one."""
        return self.find_all(np.array([address], np.uint64))[0]

    def find_all(self, addresses: U64) -> list[Symbol | None]:
        """Returns the symbol that contains each address, or None, for many addresses at once."""
        behind = np.searchsorted(self._address, addresses, side="right").astype(np.int64)
        found = np.full(len(addresses), -1, np.int64)
        open_rows = np.arange(len(addresses))
        for back in range(1, _LOOK_BACK + 1):
            at = behind[open_rows] - back
            open_rows, at = open_rows[at >= 0], at[at >= 0]
            inside = addresses[open_rows] < self._end[at]
            found[open_rows[inside]] = at[inside]
            open_rows = open_rows[~inside]
            if not len(open_rows):
                break
        return [None if at < 0 else self._symbol(at) for at in found.tolist()]

    def _symbol(self, at: int) -> Symbol:
        if at not in self._symbols:
            start, size = int(self._address[at]), int(self._size[at])
            self._symbols[at] = Symbol(self._best_name(at), start, size)
        return self._symbols[at]

    def _best_name(self, at: int) -> str:
        """Returns a symbol's best name: exported, fewest underscores."""
        columns, names = (self._address, self._size, self._rank), list[str]()
        for one in range(at, max(at - _MOST_ALIASES, -1), -1):
            if any(column[one] != column[at] for column in columns):
                break
            table = self._tables[int(self._table[one])]
            names.append(table.names.at(int(table.symbols["name"][self._entry[one]])))
        return min(names, key=lambda name: (len(name) - len(name.lstrip("_")), len(name), name))
