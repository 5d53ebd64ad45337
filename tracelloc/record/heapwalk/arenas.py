"""The result of walking a heap: every block and every free stretch, by address.

A heap consists of sorted *entries*, each an address with its state in the three lowest bits. An
entry reaches to the next one, and one with the state ``END`` stands where nothing follows. Entries
are stored as steps to the next one: a byte a block, two where larger ones are frequent.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tracelloc.dataclass import dataclass, field
from tracelloc.errors import UnsupportedError
from tracelloc.model.heapusage import part_seen
from tracelloc.model.process import MallocLibrary
from tracelloc.record.heapwalk.chunks import MARK_ROWS, PackedEntries
from tracelloc.record.process.memory import U64

STATE_BITS: Final = np.uint64(7)
ADDRESS_BITS: Final = ~STATE_BITS
NO_ENTRIES: Final = np.empty(0, np.uint64)
_SLICE: Final = 1 << 16


class BlockState(IntEnum):
    """State of the memory from an entry to the next one; ``chunks.pyx`` has the numbers, too."""

    FREE = 0
    IN_USE = 1
    CACHED = 2  # Free, but kept by a thread's cache: the malloc library counts it as in use
    FAST = 3  # Free, but in a fastbin: not merged with its neighbours yet
    TOP = 4  # The rest of a heap, from which new blocks are cut
    MAPPED = 5  # In use, in a mapping of its own
    OWN = 6  # The malloc library's own data between the blocks
    END = 7  # Nothing, or nothing known, up to the next entry


class NotWalkableError(UnsupportedError):
    """Raised for a heap whose structures are not understood; the message says why."""


class EntrySlice(NamedTuple):
    """Some consecutive entries of a heap, decoded."""

    addresses: U64
    sizes: U64  # Bytes from each entry to the next one; 0 for ends
    states: npt.NDArray[np.uint8]


@dataclass(slots=True)
class Entries:
    """Consecutive entries of a heap, up to an ``END``: one or two bytes each."""

    codes: PackedEntries

    def at(self, rows: npt.NDArray[np.intp] | slice) -> U64:
        if not isinstance(rows, slice):
            found = np.empty(len(rows), np.uint64)
            self.codes.at(rows, found)
            return found
        start, stop, _ = rows.indices(len(self.codes))
        before = start % MARK_ROWS
        found = np.empty(max(0, stop - start) + before, np.uint64)
        self.codes.unpack(start - before, found)
        return found[before:]

    def some(self) -> Iterator[U64]:
        """Yields all entries, some at a time; each array begins with the last one's last entry."""
        for at in range(0, len(self.codes) - 1, _SLICE):
            yield self.at(slice(at, at + _SLICE + 1))

    def place(self, entries: U64) -> npt.NDArray[np.intp]:
        """Returns, for each of some entries, the row of the first one that is not below it."""
        rows = np.empty(len(entries), np.intp)
        self.codes.place(entries, rows)
        return rows

    def edges(self) -> U64:
        """Returns the addresses of the start and the end of each stretch, one after the other."""
        ends = np.concatenate([
            number * _SLICE + np.flatnonzero(some[:-1] & STATE_BITS == BlockState.END)
            for number, some in enumerate(self.some())
        ] + [[len(self.codes) - 1]])  # fmt: skip
        starts = np.concatenate([[0], ends[:-1] + 1])
        return self.at(np.stack([starts, ends], axis=1).reshape(-1)) & ADDRESS_BITS

    def forget(self) -> None:
        """Keeps of each stretch only where it is."""
        edges = self.edges()
        edges[::2] |= np.uint64(BlockState.OWN)
        edges[1::2] |= np.uint64(BlockState.END)
        self.codes = PackedEntries(edges)

    @property
    def span(self) -> tuple[int, int]:
        return self.codes.first, self.codes.last & ~7


@dataclass(slots=True)
class Arena:
    """A part of a walked heap with its own free lists, and its blocks."""

    name: str
    library: MallocLibrary
    system_bytes: int  # Bytes requested from the kernel, by the library's own count
    header_bytes: int = 0  # Bytes before the first block of each stretch, which have no entry
    foreign_bytes: int = 0  # Bytes between the blocks that other code has requested (sbrk)
    unseen: list[str] = field(default_factory=list)  # Where a walk had to stop, and why
    parts: list[Entries] = field(default_factory=list)  # Runs of entries, by address

    def add(self, entries: U64) -> Arena:
        """Adds entries that follow all others, and end with an ``END``. Returns this arena."""
        if len(entries) > 1:
            self.parts.append(Entries(PackedEntries(entries)))
        return self

    @property
    def seen_bytes(self) -> int:
        held = sum(int(some.sizes.sum()) for some in self.slices())
        return held + self.header_bytes + self.foreign_bytes

    def entries(self) -> Iterator[U64]:
        """Yields all entries, some at a time; see ``Entries.some``."""
        for part in self.parts:
            yield from part.some()

    def slices(self) -> Iterator[EntrySlice]:
        """Yields all entries, decoded, some at a time: decoding takes four times the memory."""
        for entries in self.entries():
            addresses, states = entries & ADDRESS_BITS, (entries & STATE_BITS).astype(np.uint8)
            sizes = np.diff(addresses)
            sizes[states[:-1] == BlockState.END] = 0
            yield EntrySlice(addresses[:-1], sizes, states[:-1])

    def stretches(self) -> Iterator[tuple[int, int]]:
        """Yields (start, end) of contiguous entries, by address."""
        for part in self.parts:
            pairs = part.edges().reshape(-1, 2).tolist()
            yield from ((start, end) for start, end in pairs if start < end)


@dataclass(slots=True)
class WalkedHeap:
    """The heap of one process at one time, of one or several malloc libraries."""

    arenas: list[Arena]
    metadata: list[tuple[int, int]]  # Ranges of the libraries' own data: its pointers mean nothing
    notes: list[str] = field(default_factory=list)  # Why parts are missing; may be from the target
    retries: int = 0  # How often a piece was read again, as the process had changed it

    def parts(self) -> Iterator[tuple[Arena, Entries]]:
        return ((arena, part) for arena in self.arenas for part in arena.parts)

    def drop_below(self, address: int) -> None:
        for arena in self.arenas:
            arena.parts = [part for part in arena.parts if part.span[1] >= address]

    @property
    def entry_count(self) -> int:
        return sum(len(part.codes) for _, part in self.parts())

    @property
    def coverage(self) -> float:
        return part_seen(self.arenas)


def joined(entries: U64) -> U64:
    """Sorts entries; where a run ends and the next one begins at once, the end is no entry."""
    entries = np.sort(entries)
    same = np.zeros(len(entries), np.bool_)
    same[1:] = entries[1:] & ADDRESS_BITS == entries[:-1] & ADDRESS_BITS
    kept: U64 = entries[~(same & (entries & STATE_BITS == BlockState.END))]
    return kept


def user_offset(arena: Arena) -> int:
    """Returns the bytes from an entry's address to the address that the program got."""
    return 16 if arena.library is MallocLibrary.GLIBC else 0


def overhead_bytes(arena: Arena, state: BlockState = BlockState.IN_USE) -> int:
    """Returns the bytes of a block of this state that the program can't use."""
    return max(0, user_offset(arena) - (8 if state is BlockState.IN_USE else 0))
