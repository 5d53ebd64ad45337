"""C++ classes of blocks, by the pointer to a virtual table with which such an object begins.

Kinds of blocks are groups by class and size.

Before the table is a pointer to the class's ``type_info``, whose second word points to the class's
name (Itanium C++ ABI, 2.5.2 and 2.9.5): no symbols are needed, and stripped programs have it, too.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.dataclass import dataclass
from tracelloc.errors import TargetError
from tracelloc.files.demangle.cxxnames import LONGEST_MANGLED
from tracelloc.files.demangle.cxxnames import read as read_cxx_name
from tracelloc.model.blocks import BlockSum
from tracelloc.model.figures import Rows
from tracelloc.model.heapusage import ClassUsage, StackClass
from tracelloc.record.heapwalk.arenas import ADDRESS_BITS, STATE_BITS, BlockState
from tracelloc.record.heapwalk.chunks import words_within
from tracelloc.record.heapwalk.pieces import PieceReader
from tracelloc.record.heapwalk.ranges import BlockRanges
from tracelloc.record.process.memory import U64, Mask, RemoteMemory
from tracelloc.record.process.regions import Region
from tracelloc.system.syscalls import closed_after

StacksAt = Callable[[U64], npt.NDArray[np.int64]]  # The stack of each block; -1 where there is none

_NONE: Final = np.empty(0, np.uint64)
_MOST_OFFSET: Final = 1 << 24  # Bytes from an object to one of its base classes (offset to top)
_PREFIX: Final = "typeinfo name for "


class ClassTally:
    """Counts blocks by their first word, if that may point to a C++ class's virtual table."""

    def __init__(self, regions: list[Region], *, keeps_blocks: bool = False) -> None:
        files = [(r.start, r.end) for r in regions if r.inode and "x" not in r.rights]
        self._ranges = np.array(sorted(files), np.uint64).reshape(-1, 2)
        self._sums: dict[int, BlockSum] = defaultdict(BlockSum)
        self.blocks: list[tuple[U64, U64]] | None = [] if keeps_blocks else None
        """Addresses of the blocks, and of their tables; None if they are not kept."""

    def add_rows(self, entries: U64, rows: Rows, firsts: U64) -> None:
        """Adds blocks: rows of a heap's entries, with the first words of their contents."""
        found = entries[rows]
        states, addresses = found & STATE_BITS, found & ADDRESS_BITS
        used = (states == BlockState.IN_USE) | (states == BlockState.MAPPED)
        used &= self.are_tables(firsts)
        sizes = (entries[rows[used] + 1] & ADDRESS_BITS) - addresses[used]
        self.add(firsts[used], sizes, addresses[used] + np.uint64(16))

    def add_entries(self, memory: RemoteMemory, entries: U64) -> None:
        """Adds the blocks in use of a heap whose blocks have no headers."""
        used = np.flatnonzero(entries & STATE_BITS == BlockState.IN_USE)
        addresses = entries & ADDRESS_BITS
        for some in np.array_split(used, max(1, len(used) >> 16)):
            firsts, was_read = memory.read(addresses[some], 8)
            good = was_read & self.are_tables(firsts[:, 0])
            sizes = addresses[some + 1] - addresses[some]
            self.add(firsts[good, 0], sizes[good], addresses[some][good])

    def are_tables(self, words: U64) -> Mask:
        """Returns a mask of words that may be addresses of virtual tables."""
        found = np.zeros(len(words), np.bool_)
        found[self.table_rows(words)] = True
        return found

    def table_rows(self, words: U64) -> Rows:
        """Returns the indexes of words that may be addresses of virtual tables."""
        if not len(self._ranges):
            return np.empty(0, np.intp)
        rows = np.empty(len(words) + 1, np.intp)
        return rows[: words_within(np.ascontiguousarray(words), self._ranges, rows)]

    def add(self, tables: U64, sizes: U64, starts: U64) -> None:
        """Adds blocks: virtual tables they point to, sizes in bytes, and addresses of blocks."""
        if self.blocks is not None:
            self.blocks.append((starts, tables))
        unique, which = np.unique(tables, return_inverse=True)
        counts = np.bincount(which, minlength=len(unique))
        sums = np.bincount(which, sizes.astype(np.float64), len(unique))
        for table, count, size in zip(unique.tolist(), counts.tolist(), sums.tolist(), strict=True):
            self._sums[table] += BlockSum(count, int(size))

    def blocks_by_address(self) -> tuple[U64, U64]:
        """Returns all (kept) blocks' addresses, ascending, and their virtual tables' addresses."""
        parts = self.blocks or [(_NONE, _NONE)]
        starts, tables = (np.concatenate(column) for column in zip(*parts, strict=True))
        if np.any(starts[1:] < starts[:-1]):
            order = np.argsort(starts, kind="stable")
            starts, tables = starts[order], tables[order]
        return starts, tables

    def largest(self, most: int) -> list[int]:
        return sorted(self._sums, key=lambda table: -self._sums[table].size_bytes)[:most]

    def usage(self, names: ClassNames) -> tuple[ClassUsage, ...]:
        """Returns sums by class, most bytes first; blocks of no class are left out."""
        found: dict[str, BlockSum] = defaultdict(BlockSum)
        for table, blocks in self._sums.items():
            if name := names.name(table):
                found[name] += blocks
        rows = [ClassUsage(name, blocks) for name, blocks in found.items()]
        return tuple(sorted(rows, key=lambda row: (-row.blocks.size_bytes, row.name)))

    def by_stack(self, names: ClassNames, stacks_at: StacksAt) -> Iterator[StackClass]:
        """Yields the most frequent class of each call stack that has any; blocks must be kept."""
        starts, tables = self.blocks_by_address()
        if not len(starts):
            return
        stacks = stacks_at(starts)
        known = stacks >= 0
        pairs, counts = np.unique(
            np.stack([stacks[known].astype(np.uint64), tables[known]]), axis=1, return_counts=True
        )
        best: dict[int, StackClass] = {}
        for stack, table, count in zip(*pairs.tolist(), counts.tolist(), strict=True):
            if (stack not in best or count > best[stack].count) and (name := names.name(table)):
                best[stack] = StackClass(stack, name, count)
        yield from best.values()


class ClassNames:
    """Names of C++ classes by the addresses of their virtual tables."""

    def __init__(self, reader: PieceReader) -> None:
        self._reader = reader
        self._maps = reader.memory.process.maps()
        self._known: dict[int, str] = {}

    def name(self, table: int) -> str:
        """Returns the class's name, which the target controls; empty if it is no virtual table."""
        if table not in self._known:
            try:
                self._known[table] = self._read(table)
            except (OSError, TargetError):
                self._known[table] = ""
        return self._known[table]

    def _read(self, table: int) -> str:
        to_top, type_info = self._words(table - 16, 2)
        if to_top and (1 << 64) - to_top > _MOST_OFFSET:
            return ""
        if not type_info or type_info & 7:
            return ""
        info_table, name = self._words(type_info, 2)
        if self._maps.find(info_table) is None or not name:
            return ""
        raw = self._bytes(name, LONGEST_MANGLED).partition(b"\0")[0].lstrip(b"*")
        text = raw.decode("ascii", errors="replace")
        bare = text.replace("_", "").replace(".", "").replace("$", "")
        if not bare.isalnum() or not (text.isalnum() or "_" in text):
            return ""
        readable = read_cxx_name(f"_ZTS{text}")
        return readable.removeprefix(_PREFIX) if readable else ""

    def _words(self, address: int, count: int) -> list[int]:
        if address < 0 or address >= self._reader.address_end:
            return [0] * count
        raw = self._bytes(address, 8 * count).ljust(8 * count, b"\0")
        words: list[int] = np.frombuffer(raw, np.uint64).tolist()
        return words

    def _bytes(self, address: int, size_bytes: int) -> bytes:
        """Reads memory; from the mapped file if the page is not resident."""
        low, high = address & ~7, -(-(address + size_bytes) // 8) * 8
        mapping = self._maps.find(address)
        if mapping is None:
            return b""
        high = min(high, mapping.end)
        found = self._reader.words(low, high - low).tobytes()[address - low :][:size_bytes]
        if any(found) or not mapping.is_file:
            return found
        with closed_after(self._reader.memory.process.open_mapping(mapping)) as file:
            return os.pread(file, high - address, mapping.offset + address - mapping.start)


_LARGEST_EXACT: Final = 1032  # Usable bytes: each size up to that of glibc's caches is a group
_FIRST_EXPONENT: Final = 10  # Of the largest power of two below the sizes that are not exact
_GROUPS: Final = _LARGEST_EXACT + 1 + 4 * (48 - _FIRST_EXPONENT)
_ENDS: Final = np.array([0, 1], np.uint64)  # From the first block to behind the last one
_MOST_CLASSES: Final = 1000  # Classes that are told apart: those with the most bytes


@dataclass(frozen=True, slots=True)
class BlockKind:
    """A group of blocks with one C++ class and similar sizes, in usable bytes."""

    class_name: str  # Empty if unknown
    least_bytes: int  # Usable bytes of the group's smallest size
    most_bytes: int  # Usable bytes of the group's largest size


class BlockKinds:
    """Assigns a kind's number to each block of a heap; new kinds get new numbers."""

    def __init__(self, tally: ClassTally, names: ClassNames) -> None:
        self.kinds: list[BlockKind] = []
        self._starts, tables = tally.blocks_by_address()
        unique, which = np.unique(tables, return_inverse=True)
        numbers = {"": 0}  # A class may have several tables: one in each library
        number_of = {
            table: numbers.setdefault(names.name(table), len(numbers))
            for table in tally.largest(_MOST_CLASSES)
        }
        self._classes = list(numbers)
        known = [number_of.get(table, 0) for table in unique.tolist()]
        self._class_of = np.array(known, np.uint32)[which]
        self._number_of = np.full(_GROUPS * len(numbers), -1, np.int32)

    def numbers(self, blocks: BlockRanges) -> npt.NDArray[np.int32]:
        """Returns each block's kind, as an index of ``kinds``. Blocks must come by address."""
        groups = size_groups(blocks.usable_bytes())
        if len(self._classes) > 1 and len(groups):
            some = slice(*np.searchsorted(self._starts, blocks.starts[[0, -1]] + _ENDS))
            rows = np.searchsorted(blocks.starts, self._starts[some])
            is_there = blocks.starts[np.minimum(rows, len(groups) - 1)] == self._starts[some]
            groups[rows[is_there]] += self._class_of[some][is_there] * np.uint32(_GROUPS)
        for group in np.unique(groups[self._number_of[groups] < 0]).tolist():
            self._number_of[group] = len(self.kinds)
            number, size = divmod(group, _GROUPS)
            self.kinds.append(BlockKind(self._classes[number], *bounds_of(size)))
        return self._number_of[groups]


def size_groups(usable_bytes: U64) -> npt.NDArray[np.uint32]:
    """Returns each size's group number: one per small size, then four for each doubling."""
    groups = usable_bytes.astype(np.uint32)
    large = np.flatnonzero(usable_bytes > np.uint64(_LARGEST_EXACT))
    below = usable_bytes[large] - np.uint64(1)
    exponent = np.frexp(below.astype(np.float64))[1].astype(np.uint32) - np.uint32(1)
    quarter = (below >> (exponent - np.uint32(2)).astype(np.uint64)).astype(np.uint32) & 3
    groups[large] = _LARGEST_EXACT + 1 + 4 * (exponent - _FIRST_EXPONENT) + quarter
    return groups


def bounds_of(group: int) -> tuple[int, int]:
    """Returns the smallest and the largest size of a group, in bytes."""
    if group <= _LARGEST_EXACT:
        return group, group
    exponent, quarter = divmod(group - _LARGEST_EXACT - 1, 4)
    step = 1 << exponent + _FIRST_EXPONENT - 2
    return max((4 + quarter) * step, _LARGEST_EXACT) + 1, (5 + quarter) * step
