"""Blocks without any pointer to them, found by searches of the process's memory.

A search may miss a pointer that moves meanwhile, and stale contents of freed memory may look
like one. A block counts as lost when at least two of the last four searches, and all but one of
those that it was old enough for, have found no pointer to it: then nothing can free it. Where a
garbage collector moves the objects that point to blocks, all four must have found none. If the
program frees such blocks all the same, it can reach them in a way that no search sees (through the
kernel, say). A stack for which that has happened often is not said to lose blocks again.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tracelloc.dataclass import dataclass, replace
from tracelloc.model.blocks import Blocks
from tracelloc.model.figures import F64, I64, U64, Mask, Rows

_LAST: Final = 0b1111  # Mask of the searches that count
# Number of searches, by their mask.
_COUNT_IN: Final = np.array([bits.bit_count() for bits in range(_LAST + 1)])
_LEAST: Final = 2  # Searches that must have found no pointer
_REFUTED_LEAST: Final = 3  # Freed after they counted as lost: then the stack's are not believed
_REFUTED_SHARE: Final = 0.1  # Of those that counted as lost: a moving pointer is missed at times
NO_OBJECTS: Final[Mapping[int, int]] = MappingProxyType({})
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class UnreachableTable:
    """Lost blocks by stack and time of birth, at one time."""

    asked: I64  # Blocks that the last search covered: a row per stack
    stacks: I64  # Stacks that have lost blocks, ascending
    count: I64  # Lost blocks: a row per such stack, a column per slice of time
    size_bytes: I64

    def lost_blocks_of(self, stacks: Rows, slices: int) -> tuple[F64, F64, F64]:
        """Returns (lost blocks, their bytes: a row per stack; blocks searched for) of stacks."""
        rows = np.zeros((2, len(stacks), slices))
        if len(self.stacks):
            at = np.minimum(np.searchsorted(self.stacks, stacks), len(self.stacks) - 1)
            found = self.stacks[at] == stacks
            rows[:, found] = np.stack([self.count, self.size_bytes])[:, at[found]]
        return rows[0], rows[1], self._asked_of(stacks)

    def _asked_of(self, stacks: Rows) -> F64:
        return np.append(self.asked, 0.0)[np.minimum(stacks, len(self.asked))]

    def sums(self, order: Rows, starts: Rows, ends: Rows, slices: int) -> tuple[F64, F64, F64]:
        """Adds up ``lost_blocks_of`` over stretches; the n-th is ``order[starts[n]:ends[n]]``."""
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
    """The result of one pointer search, compared with earlier ones."""

    asked: I64  # Blocks that the search covered, per stack
    blocks: Blocks  # Blocks to which one of the last searches found no pointer, sorted by key
    said: npt.NDArray[np.uint8]  # Searches that found no pointer to each; the last is bit 0
    lost: Mask  # Which of the blocks count as lost
    newest_ns: tuple[int, ...]  # When the newest block was born of each of the last searches
    refuted: I64  # Blocks per stack that have been freed although they counted as lost
    # Bytes that were swapped out and may have pointers to blocks. Blocks that were lost before stay
    # lost meanwhile, and no others count as lost.
    swapped_bytes: int
    kernel_queue: str = ""  # Whose requests may (have) point(ed) to blocks: "io_uring", "AIO"
    # By stack, the lowest stack of those that allocate parts of the same objects; stacks without
    # others are left out.
    objects: Mapping[int, int] = NO_OBJECTS


_NO_SEARCH: Final = SearchResult(
    np.empty(0, np.int64), Blocks.empty(), np.empty(0, np.uint8), np.empty(0, np.bool_), (),
    np.empty(0, np.int64), 0,
)  # fmt: skip


class SearchComparison:
    """Compares a pointer search with earlier ones, some of its blocks at a time."""

    def __init__(self, last: SearchResult, *, moves: bool) -> None:
        self.last, self._moves = last, moves
        self._known = keys_of(last.blocks.address, last.blocks.birth_ns)
        self._is_there = np.zeros(len(self._known), np.bool_)
        self._is_found = np.zeros(len(self._known), np.bool_)
        self._new: list[Blocks] = []
        self._asked = np.zeros(0, np.int64)
        self._newest_ns = 0

    def add(self, blocks: Blocks, reachable: Mask) -> None:
        """Adds some of the searched blocks, and a mask of those that can be reached."""
        asked = np.bincount(blocks.stack, minlength=len(self._asked))
        asked[: len(self._asked)] += self._asked
        self._asked = asked
        self._newest_ns = max(self._newest_ns, int(blocks.birth_ns.max(initial=0)))
        keys, known = keys_of(blocks.address, blocks.birth_ns), self._known
        lost = np.flatnonzero(~reachable)
        if len(known):
            at = np.minimum(np.searchsorted(known, keys), len(known) - 1)
            was_known = known[at] == keys
            self._is_there[at[was_known]] = True
            self._is_found[at[was_known & reachable]] = True
            lost = lost[~was_known[lost]]
        self._new.append(blocks.select(lost))

    def result(
        self, *, swapped_bytes: int = 0, kernel_queue: str = "",
        objects: Mapping[int, int] = NO_OBJECTS,
    ) -> SearchResult:  # fmt: skip
        """Returns the result. All old blocks must have been added: missing ones count as freed.

        Changes nothing, so that only ``accept`` needs the lock if one thread calls both.
        """
        last, newest_ns = self.last, self.last.newest_ns
        said = np.where(self._is_there, last.said, 0).astype(np.uint8)
        blocks = last.blocks
        if not swapped_bytes:
            said = (((said << 1) | (self._is_there & ~self._is_found)) & _LAST).astype(np.uint8)
            newest_ns = (*newest_ns, self._newest_ns)[-_LAST.bit_count() :]
            new = Blocks.concatenate(self._new)
            blocks = Blocks.concatenate([blocks, new])
            said = np.concatenate([said, np.ones(len(new), np.uint8)])
        kept = np.flatnonzero(said)
        kept = kept[np.argsort(keys_of(blocks.address[kept], blocks.birth_ns[kept]))]
        births = blocks.birth_ns[kept]
        searched = sum((births <= np.uint64(ns) for ns in newest_ns), np.zeros(len(kept), np.intp))
        least = _LAST.bit_count() if self._moves else np.maximum(_LEAST, searched - 1)
        lost = _COUNT_IN[said[kept]] >= least
        is_gone = last.lost & ~self._is_there
        refuted = np.bincount(last.blocks.stack[is_gone], minlength=len(last.refuted))
        refuted[: len(last.refuted)] += last.refuted
        return SearchResult(
            self._asked, blocks.select(kept), said[kept], lost, newest_ns, refuted, swapped_bytes,
            kernel_queue or last.kernel_queue, objects,
        )  # fmt: skip


@dataclass(slots=True)
class UnreachableBlocks:
    """Results of the last pointer searches, block by block. Not thread safe."""

    searches: int = 0  # Number of searches so far
    is_refused: bool = False  # Whether the memory can't or must not be read: no search
    collects: bool = False  # By a garbage collector: then freeing a lost block refutes nothing
    moves: bool = False  # Whether the collector moves objects that point to blocks
    kept_stacks: frozenset[int] = frozenset()  # Stacks of which a root keeps what is not lost
    last: SearchResult = _NO_SEARCH
    _counts: I64 | None = None  # Computed once per search: see `last_counts`, and `table`
    _table: tuple[I64, UnreachableTable] | None = None

    def comparison(self) -> SearchComparison:
        """Returns a comparison with earlier searches, which one thread may use without a lock."""
        return SearchComparison(self.last, moves=self.moves)

    def accept(self, result: SearchResult) -> None:
        self.searches += 1
        self.last, self._counts, self._table = result, None, None

    def last_counts(self) -> tuple[I64, I64]:
        """Returns (blocks that the last search covered, blocks that count as lost) per stack."""
        last = self.last
        if self._counts is None:
            stacks = last.blocks.stack[(last.said & 1).astype(np.bool_)]
            self._counts = np.bincount(stacks, minlength=len(last.asked))
        return last.asked, self._counts

    @property
    def blocks(self) -> Blocks:
        """Returns the lost blocks, without those of stacks whose lost blocks were freed later."""
        lost, refuted = self.last.blocks.select(self.last.lost), self.last.refuted
        if self.collects or not len(refuted):
            return lost
        count = np.bincount(lost.stack, minlength=len(refuted))
        is_refuted = np.zeros(len(count), np.bool_)
        total = count[: len(refuted)] + refuted
        is_refuted[: len(refuted)] = (refuted >= _REFUTED_LEAST) & (
            refuted >= _REFUTED_SHARE * total
        )
        return lost.select(~is_refuted[lost.stack])

    def table(self, edges_ns: I64) -> UnreachableTable:
        """Lost blocks by slices of time, given the edges of the slices."""
        if self._table is None:
            self._table = edges_ns, self._new_table(edges_ns)
        # Slices since then are younger than all blocks, or several earlier ones in one.
        begins_ns, table = self._table[0][:-1], self._table[1]
        column = np.searchsorted(edges_ns[1:-1], begins_ns, side="right")
        sums = np.zeros((2, len(table.stacks), len(edges_ns) - 1), np.int64)
        for into, count, size_bytes in zip(
            column.tolist(), table.count.T, table.size_bytes.T, strict=True
        ):
            sums[:, :, into] += count, size_bytes
        return replace(table, count=sums[0], size_bytes=sums[1])

    def _new_table(self, edges_ns: I64) -> UnreachableTable:
        blocks, slices = self.blocks, len(edges_ns) - 1
        stacks, row = np.unique(blocks.stack.astype(np.int64), return_inverse=True)
        column = np.searchsorted(edges_ns, blocks.birth_ns.astype(np.int64), side="right") - 1
        cell = row * slices + np.clip(column, 0, slices - 1)
        shape = len(stacks), slices
        count = np.bincount(cell, minlength=shape[0] * slices).reshape(shape)
        sizes = np.bincount(cell, blocks.size.astype(np.float64), shape[0] * slices)
        return UnreachableTable(
            self.last.asked, stacks, count, sizes.astype(np.int64).reshape(shape)
        )


def keys_of(address: U64, birth_ns: U64) -> U64:
    """Returns a practically unique number per block: an address alone may be reused."""
    return address * _GOLDEN + birth_ns
