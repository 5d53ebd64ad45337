"""Blocks without any pointer to them, found by searches of the process's memory.

A search may miss a pointer that moves meanwhile, and stale contents of freed memory may look
like one. A block counts as lost when at least two of the last four searches have found no pointer
to it: then nothing can free it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tracelloc.model.blocks import Blocks
from tracelloc.model.figures import F64, I64, U64, Mask

_LAST: Final = 0b1111
"""Mask of the searches that count."""
_UNREACHABLE_IN: Final = np.array([bits.bit_count() >= 2 for bits in range(_LAST + 1)])
"""By the searches that found no pointer; the last search is the lowest bit."""
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class UnreachableTable:
    """Lost blocks by stack and time of birth, at one time."""

    asked: I64
    """Blocks that the last search covered: a row per stack."""
    stacks: I64
    """Stacks that have lost blocks, ascending."""
    count: I64
    """Lost blocks: a row per such stack, a column per slice of time."""
    size_bytes: I64

    def lost_blocks_of(self, stacks: npt.NDArray[np.intp], slices: int) -> tuple[F64, F64, F64]:
        """(lost blocks, their bytes: a row per stack; blocks searched for) of some stacks."""
        rows = np.zeros((2, len(stacks), slices))
        if len(self.stacks):
            at = np.minimum(np.searchsorted(self.stacks, stacks), len(self.stacks) - 1)
            found = self.stacks[at] == stacks
            rows[:, found] = np.stack([self.count, self.size_bytes])[:, at[found]]
        return rows[0], rows[1], self._asked_of(stacks)

    def _asked_of(self, stacks: npt.NDArray[np.intp]) -> F64:
        asked: F64 = np.append(self.asked, 0.0)[np.minimum(stacks, len(self.asked))]
        return asked

    def sums(
        self,
        order: npt.NDArray[np.intp],
        starts: npt.NDArray[np.intp],
        ends: npt.NDArray[np.intp],
        slices: int,
    ) -> tuple[F64, F64, F64]:
        """Sums over stretches of stacks; the n-th is ``order[starts[n]:ends[n]]``. See ``of``."""
        some = np.flatnonzero(np.isin(order, self.stacks))
        summed = np.zeros((2, len(some) + 1, slices))
        np.cumsum(np.stack(self.lost_blocks_of(order[some], slices)[:2]), axis=1, out=summed[:, 1:])
        first, last = np.searchsorted(some, starts), np.searchsorted(some, ends)
        until = np.append(0.0, np.cumsum(self._asked_of(order)))
        lost = summed[:, last] - summed[:, first]
        return lost[0], lost[1], until[ends] - until[starts]


NONE_UNREACHABLE: Final = UnreachableTable(
    np.empty(0, np.int64), np.empty(0, np.int64), np.empty((0, 0), np.int64),
    np.empty((0, 0), np.int64),
)  # fmt: skip


class SearchResult(NamedTuple):
    """One search, compared with those before; see ``UnreachableBlocks``."""

    asked: I64
    blocks: Blocks
    said: npt.NDArray[np.uint8]


@dataclass(slots=True)
class UnreachableBlocks:
    """Results of the last searches, block by block. Not thread safe."""

    searches: int = 0
    """Number of searches so far."""
    is_refused: bool = False
    """True if there will be no search: the process's memory can't be read, or must not be."""
    _blocks: Blocks = field(default_factory=Blocks.empty)
    """Blocks to which one of the last searches found no pointer, sorted by key."""
    _said: npt.NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))
    _asked: I64 = field(default_factory=lambda: np.empty(0, np.int64))

    def note(self, blocks: Blocks, reachable: Mask) -> None:
        """Adds a search: its blocks, and which of them can be reached."""
        self.accept(self.compare(blocks, reachable))

    def compare(self, blocks: Blocks, reachable: Mask) -> SearchResult:
        """Compares a search with earlier ones: its blocks, and which of them can be reached.

        Changes nothing, so that only ``accept`` needs the lock if one thread calls both.
        """
        keys = keys_of(blocks.address, blocks.birth_ns)
        known = keys_of(self._blocks.address, self._blocks.birth_ns)
        before = np.zeros(len(keys), np.uint8)
        if len(known):
            at = np.minimum(np.searchsorted(known, keys), len(known) - 1)
            before = np.where(known[at] == keys, self._said[at], 0).astype(np.uint8)
        said = (((before << 1) | ~reachable) & _LAST).astype(np.uint8)
        kept = np.flatnonzero(said)
        kept = kept[np.argsort(keys[kept])]
        return SearchResult(np.bincount(blocks.stack), blocks.select(kept), said[kept])

    def accept(self, result: SearchResult) -> None:
        """Adds a search that was compared."""
        self.searches += 1
        self._asked, self._blocks, self._said = result

    @property
    def blocks(self) -> Blocks:
        """The lost blocks."""
        return self._blocks.select(_UNREACHABLE_IN[self._said])

    def table(self, edges_ns: I64) -> UnreachableTable:
        """Lost blocks by slices of time, given the edges of the slices."""
        blocks, slices = self.blocks, len(edges_ns) - 1
        stacks, row = np.unique(blocks.stack.astype(np.int64), return_inverse=True)
        column = np.searchsorted(edges_ns, blocks.birth_ns.astype(np.int64), side="right") - 1
        cell = row * slices + np.clip(column, 0, slices - 1)
        shape = len(stacks), slices
        count = np.bincount(cell, minlength=shape[0] * slices).reshape(shape)
        sizes = np.bincount(cell, blocks.size.astype(np.float64), shape[0] * slices)
        return UnreachableTable(self._asked, stacks, count, sizes.astype(np.int64).reshape(shape))


def keys_of(address: U64, birth_ns: U64) -> U64:
    """A practically unique number per block: an address alone may be reused."""
    keys: U64 = address * _GOLDEN + birth_ns
    return keys
