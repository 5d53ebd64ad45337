"""The blocks in use of a walked heap, as address ranges."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.record.heapwalk.chunks import in_use_blocks
from tracelloc.record.heapwalk.classes import Rows
from tracelloc.record.heapwalk.walked import (
    ADDRESS_BITS,
    STATE_BITS,
    Arena,
    BlockState,
    WalkedHeap,
    user_offset,
)
from tracelloc.record.process.memory import U64, Mask

_MAPPED_HEADER_BYTES: Final = 16


@dataclass(slots=True)
class BlockRanges:
    """Blocks by address: where the program's part of each begins, and how far pointers may lead.

    A pointer to the end of an array leads to the next block's header, so a block of glibc reaches
    to where the next block's contents begin.
    """

    starts: U64
    reaches: U64
    overhead_bytes: npt.NDArray[np.uint8]  # Bytes of the malloc library in each

    @classmethod
    def in_use(cls, heap: WalkedHeap) -> BlockRanges:
        """All blocks in use of a heap."""
        most = sum(len(arena.entries) for arena in heap.arenas)
        found = cls(np.empty(most, np.uint64), np.empty(most, np.uint64), np.empty(most, np.uint8))
        count = 0
        for arena in heap.arenas:
            rest = found.select(slice(count, None))
            count += in_use_blocks(
                arena.entries, user_offset(arena), rest.starts, rest.reaches, rest.overhead_bytes
            )
        found = found.select(slice(count))
        if np.any(found.starts[1:] < found.starts[:-1]):
            found = found.select(np.argsort(found.starts, kind="stable"))
        # Only in a heap that changed or lies, blocks overlap.
        found.reaches[:-1] = np.minimum(found.reaches[:-1], found.starts[1:])
        kept = found.reaches > found.starts
        return found if kept.all() else found.select(np.flatnonzero(kept))

    def still_in_use(self, heap: WalkedHeap) -> BlockRanges:
        """Returns the blocks that a later walk has in use, with the same size."""
        kept = np.zeros(len(self.starts), np.bool_)
        size_bytes = self.size_bytes()
        for arena, rows, at in _places(heap, self.starts):
            begins, ends = arena.entries[at] & ADDRESS_BITS, arena.entries[at + 1] & ADDRESS_BITS
            same = begins + np.uint64(user_offset(arena)) == self.starts[rows]
            kept[rows[same & (ends - begins == size_bytes[rows])]] = True
        return self.select(kept)

    def select(self, rows: Rows | Mask | slice) -> BlockRanges:
        """Returns some blocks."""
        return BlockRanges(self.starts[rows], self.reaches[rows], self.overhead_bytes[rows])

    def size_bytes(self) -> U64:
        """The size of each, with headers: of a mapped block, its own header is before it."""
        found: U64 = self.reaches - self.starts
        found[self.overhead_bytes == _MAPPED_HEADER_BYTES] += np.uint64(_MAPPED_HEADER_BYTES)
        return found

    def usable_bytes(self) -> U64:
        """What the program may use of each."""
        return self.size_bytes() - self.overhead_bytes


def are_in_use(heap: WalkedHeap, addresses: U64) -> Mask:
    """Which addresses are in blocks in use."""
    found = np.zeros(len(addresses), np.bool_)
    for _, rows, _ in _places(heap, addresses):
        found[rows] = True
    return found


def _places(heap: WalkedHeap, addresses: U64) -> Iterator[tuple[Arena, Rows, Rows]]:
    """Yields for each arena which addresses are in its blocks in use, and rows of its entries."""
    for arena in heap.arenas:
        if not len(arena.entries):
            continue
        inside = addresses - np.uint64(user_offset(arena)) | STATE_BITS
        at = np.searchsorted(arena.entries, inside, side="right") - 1
        states = arena.entries[at] & STATE_BITS
        used = (states == BlockState.IN_USE) | (states == BlockState.MAPPED)
        rows = np.flatnonzero(used & (at >= 0) & (at + 1 < len(arena.entries)))
        yield arena, rows, at[rows]
