"""The blocks in use of a walked heap, as address ranges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.dataclass import dataclass
from tracelloc.model.figures import Rows
from tracelloc.record.heapwalk.arenas import (
    ADDRESS_BITS,
    NO_ENTRIES,
    STATE_BITS,
    Arena,
    BlockState,
    Entries,
    WalkedHeap,
    user_offset,
)
from tracelloc.record.heapwalk.chunks import PackedEntries, in_use_blocks
from tracelloc.record.process.memory import U64, Mask

_MAPPED_HEADER_BYTES: Final = 16
_AT_ONCE: Final = 1 << 18


@dataclass(slots=True)
class BlockRanges:
    """Blocks in use by address: where the contents begin, and how far pointers into them lead.

    A pointer to the end of an array leads to the next block's header, so a block of glibc reaches
    to where the next block's contents begin.
    """

    starts: U64  # Where the program's part of each block begins
    reaches: U64  # Where pointers into each block end
    overhead_bytes: npt.NDArray[np.uint8]  # Bytes of the malloc library in each block

    @classmethod
    def in_use(cls, heap: WalkedHeap) -> BlockRanges:
        most = heap.entry_count
        found = cls(np.empty(most, np.uint64), np.empty(most, np.uint64), np.empty(most, np.uint8))
        count = 0
        for some in cls.some_in_use(heap):
            rows = slice(count, count := count + len(some.starts))
            found.starts[rows], found.reaches[rows] = some.starts, some.reaches
            found.overhead_bytes[rows] = some.overhead_bytes
        found = found.select(slice(count))
        if np.any(found.starts[1:] < found.starts[:-1]):
            found = found.select(np.argsort(found.starts, kind="stable"))
        # Only in a heap that changed or lies, blocks overlap.
        np.minimum(found.reaches[:-1], found.starts[1:], out=found.reaches[:-1])
        kept = found.reaches > found.starts
        return found if kept.all() else found.select(np.flatnonzero(kept))

    @classmethod
    def some_in_use(cls, heap: WalkedHeap, *, forget: bool = False) -> Iterator[BlockRanges]:
        """Yields all blocks in use by address, some at a time.

        ``forget``: the heap keeps only where it had blocks.
        """
        for arena, part in sorted(heap.parts(), key=lambda row: row[1].span):
            for entries in part.some():
                yield cls._of(entries, user_offset(arena))
            if forget:
                part.forget()

    @classmethod
    def _of(cls, entries: U64, offset: int) -> BlockRanges:
        starts, reaches = np.empty((2, len(entries)), np.uint64)
        overhead_bytes = np.empty(len(entries), np.uint8)
        count = in_use_blocks(entries, offset, starts, reaches, overhead_bytes)
        return cls(starts[:count], reaches[:count], overhead_bytes[:count])

    @classmethod
    def in_use_between(cls, heap: WalkedHeap, low: int, high: int) -> BlockRanges:
        """Returns the blocks in use that start in a range of addresses, both ends included."""
        found: list[BlockRanges] = []
        for arena, part in heap.parts():
            offset = user_offset(arena)
            if part.span[1] + offset < low or part.span[0] > high:
                continue
            limits = np.array([max(low - offset, 0), max(high - offset + 8, 0)], np.uint64)
            first, last = part.place(limits).tolist()
            if first < last:
                found.append(cls._of(part.at(slice(first, last + 1)), offset))
        found.sort(key=lambda some: int(some.starts[0]) if len(some.starts) else 0)
        return cls.concatenate(found)

    @classmethod
    def concatenate(cls, parts: list[BlockRanges]) -> BlockRanges:
        if len(parts) == 1:
            return parts[0]
        return cls(
            np.concatenate([NO_ENTRIES, *(some.starts for some in parts)]),
            np.concatenate([NO_ENTRIES, *(some.reaches for some in parts)]),
            np.concatenate([np.empty(0, np.uint8), *(some.overhead_bytes for some in parts)]),
        )

    def still_in_use(self, heap: WalkedHeap) -> BlockRanges:
        """Returns the blocks that are in use in a later walk as well, with equal sizes."""
        kept = np.zeros(len(self.starts), np.bool_)
        for first in range(0, len(kept), _AT_ONCE):
            some = self.select(slice(first, first + _AT_ONCE))
            size_bytes = some.size_bytes()
            for arena, rows, begins, ends in _places(heap, some.starts):
                same = begins + np.uint64(user_offset(arena)) == some.starts[rows]
                kept[first + rows[same & (ends - begins == size_bytes[rows])]] = True
        return self if kept.all() else self.select(kept)

    def select(self, rows: Rows | Mask | slice) -> BlockRanges:
        return BlockRanges(self.starts[rows], self.reaches[rows], self.overhead_bytes[rows])

    def pairs(self) -> list[tuple[int, int]]:
        """Returns where each block's contents begin, and where pointers into it end."""
        return list(zip(self.starts.tolist(), self.reaches.tolist(), strict=True))

    def size_bytes(self) -> U64:
        """Returns each block's bytes with headers; a mapped block's own header is before it."""
        found: U64 = self.reaches - self.starts
        found[self.overhead_bytes == _MAPPED_HEADER_BYTES] += np.uint64(_MAPPED_HEADER_BYTES)
        return found

    def usable_bytes(self) -> U64:
        return self.size_bytes() - self.overhead_bytes


class PackedBlocks:
    """Blocks by address, each in six bytes."""

    def __init__(self, blocks: BlockRanges) -> None:
        self._starts = Entries(PackedEntries(blocks.starts))
        self.size_bytes: npt.NDArray[np.uint32 | np.uint64] = np.empty(
            len(blocks.starts), np.uint32
        )
        """Each block's bytes, with headers."""
        for at in range(0, len(blocks.starts), _AT_ONCE):
            some = slice(at, at + _AT_ONCE)
            sizes = blocks.select(some).size_bytes()
            if sizes.max() > np.iinfo(np.uint32).max:
                self.size_bytes = self.size_bytes.astype(np.uint64)
            self.size_bytes[some] = sizes
        self.overhead_bytes = blocks.overhead_bytes

    def __len__(self) -> int:
        return len(self.size_bytes)

    def starts(self, rows: Rows | npt.NDArray[np.uint32]) -> U64:
        return self._starts.at(rows.astype(np.intp))

    def containing(self, addresses: U64) -> Rows:
        """Returns the rows of the blocks in which some addresses lie, each once."""
        rows = self._starts.place(addresses + np.uint64(1)) - 1
        is_after = rows >= 0
        rows, addresses = rows[is_after], addresses[is_after]
        reach_bytes = self.size_bytes[rows].astype(np.uint64)
        reach_bytes[self.overhead_bytes[rows] == _MAPPED_HEADER_BYTES] -= np.uint64(
            _MAPPED_HEADER_BYTES
        )
        return np.unique(rows[addresses - self.starts(rows) < reach_bytes])

    def usable_bytes(self) -> npt.NDArray[np.uint32 | np.uint64]:
        return self.size_bytes - self.overhead_bytes


def are_in_use(heap: WalkedHeap, addresses: U64) -> Mask:
    """Returns a mask of the addresses that lie in blocks in use."""
    found = np.zeros(len(addresses), np.bool_)
    for _, rows, _, _ in _places(heap, addresses):
        found[rows] = True
    return found


def _places(heap: WalkedHeap, addresses: U64) -> Iterator[tuple[Arena, Rows, U64, U64]]:
    """Yields (arena, rows of addresses in blocks in use, these blocks' starts, and ends)."""
    if not len(addresses):
        return
    least, most = int(addresses.min()), int(addresses.max())
    for arena, part in heap.parts():
        offset = user_offset(arena)
        first, last = (at + offset for at in part.span)
        if least >= last or most < first:
            continue
        rows = np.flatnonzero((addresses >= np.uint64(first)) & (addresses < np.uint64(last)))
        entries, following = np.empty((2, len(rows)), np.uint64)
        part.codes.around(addresses[rows] - np.uint64(offset), entries, following)
        states = entries & STATE_BITS
        used = np.flatnonzero((states == BlockState.IN_USE) | (states == BlockState.MAPPED))
        yield arena, rows[used], entries[used] & ADDRESS_BITS, following[used] & ADDRESS_BITS
