"""Finds pages of the heap that few blocks keep from being returned to the kernel."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.dataclass import dataclass
from tracelloc.model.blocks import BlockSum
from tracelloc.model.heapusage import PinnedPages, PinningStack
from tracelloc.record.heapwalk.arenas import Arena, overhead_bytes, user_offset
from tracelloc.record.heapwalk.chunks import MOST_PAGE_BLOCKS, ArenaTally
from tracelloc.record.heapwalk.classes import StacksAt
from tracelloc.record.process.memory import U64

_MOST_SIZES: Final = 8
_NO_BLOCKS: Final = BlockSum()


@dataclass(slots=True)
class _PinSum:
    kept_bytes: float = 0.0
    blocks: BlockSum = _NO_BLOCKS

    def add(self, kept_bytes: float, count: int, size_bytes: int) -> None:
        self.kept_bytes += kept_bytes
        self.blocks += BlockSum(count, size_bytes)


class PinnedPageSums:
    """Sums up pinned pages of a heap: resident, and at most a quarter of each in use."""

    def __init__(self, stacks_at: StacksAt | None = None) -> None:
        self._stacks_at = stacks_at
        self._all = _PinSum()
        self._by_size: dict[int, _PinSum] = defaultdict(_PinSum)
        self._by_stack: dict[int, _PinSum] = defaultdict(_PinSum)

    def sum_up(self, arena: Arena, tally: ArenaTally) -> None:
        """Adds an arena's entries to ``tally``, and the blocks that pin its pages to this sum."""
        for entries in arena.entries():
            room = _room(len(entries))
            self._add(arena, tally.add(entries, *room), *room)
        room = _room(0)
        self._add(arena, tally.finish(*room), *room)

    def _add(
        self, arena: Arena, count: int, starts: U64, sizes: U64, kept: npt.NDArray[np.float64]
    ) -> None:
        if not count:
            return
        starts, sizes, kept = starts[:count], sizes[:count], kept[:count]
        self._all.add(float(kept.sum()), count, int(sizes.sum()))
        usable = sizes - np.uint64(overhead_bytes(arena))
        _add_by(self._by_size, usable.astype(np.int64), sizes, kept)
        if self._stacks_at is not None:
            stacks = self._stacks_at(starts + np.uint64(user_offset(arena)))
            known = stacks >= 0
            _add_by(self._by_stack, stacks[known], sizes[known], kept[known])

    def pages(self) -> PinnedPages:
        """Returns the pinned pages of all arenas that were summed up."""

        def most(sums: dict[int, _PinSum]) -> list[tuple[int, _PinSum]]:
            rows = sorted(sums.items(), key=lambda row: (-row[1].kept_bytes, row[0]))
            return rows[:_MOST_SIZES]

        return PinnedPages(
            round(self._all.kept_bytes),
            self._all.blocks,
            tuple((size, found.blocks) for size, found in most(self._by_size)),
            tuple(
                PinningStack(stack, round(found.kept_bytes), found.blocks)
                for stack, found in most(self._by_stack)
            ),
        )


def _room(entries: int) -> tuple[U64, U64, npt.NDArray[np.float64]]:
    """Returns arrays for ``ArenaTally`` to fill: addresses, sizes and kept bytes of blocks."""
    most = entries + MOST_PAGE_BLOCKS
    return np.empty(most, np.uint64), np.empty(most, np.uint64), np.empty(most)


def _add_by(
    sums: dict[int, _PinSum],
    keys: npt.NDArray[np.int64],
    sizes: U64,
    kept: npt.NDArray[np.float64],
) -> None:
    unique, rows, counts = np.unique(keys, return_inverse=True, return_counts=True)
    held = np.bincount(rows, kept, len(unique)).tolist()
    size_bytes = np.bincount(rows, sizes.astype(np.float64), len(unique)).tolist()
    for key, each, count, size in zip(
        unique.tolist(), held, counts.tolist(), size_bytes, strict=True
    ):
        sums[key].add(each, count, int(size))
