"""The largest of the outstanding blocks, picked without sorting all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from tracelloc.heap.blocks import U64, Blocks, BlockStore, Rows
from tracelloc.sampling import weights

_SLICE: Final = 1 << 20
"""Rows looked at together when the largest blocks are picked."""


@dataclass(frozen=True, slots=True)
class BlockStat:
    """One outstanding block."""

    address: int
    size_bytes: int
    age_ns: int
    stack: int
    tid: int


@dataclass(frozen=True, slots=True)
class BlockSelection:
    """The largest of some blocks, and what all of them are together."""

    count: int
    size_bytes: int
    largest: tuple[BlockStat, ...]
    """By size, the older first where equal."""


def select_blocks(
    store: BlockStore,
    n: int,
    now_ns: int,
    min_age_ns: int | None = None,
    sample_bytes: int | None = None,
) -> BlockSelection:
    """The ``n`` largest blocks, of those at least ``min_age_ns`` old if that is given.

    Count and bytes are added up for an age only; sampled blocks count for what they stand
    for.
    """
    if n == 0 and min_age_ns is None:
        return BlockSelection(0, 0, ())
    best = Blocks.empty()
    count = size_bytes = floor = 0
    born_by = np.uint64(max(0, now_ns - (min_age_ns or 0)))
    for blocks, alive in store.runs():
        for start in range(0, len(blocks), _SLICE):
            rows = slice(start, start + _SLICE)
            chosen = alive[rows]
            if min_age_ns is not None:
                chosen = chosen & (blocks.birth_ns[rows] <= born_by)
                sizes = blocks.size[rows][chosen]
                if sample_bytes is None:
                    count += len(sizes)
                    size_bytes += int(sizes.sum())
                else:
                    weight = weights(sizes, sample_bytes)
                    count += round(weight.sum())
                    size_bytes += round((weight * sizes).sum())
            large = np.flatnonzero(chosen & (blocks.size[rows] >= np.uint64(floor))) + start
            if n:
                best = Blocks.concatenate([best, _largest(blocks, large, n)])
                best = _largest(best, np.arange(len(best)), n)
            if n and len(best) == n:
                floor = int(best.size[-1])
    return BlockSelection(count, size_bytes, block_stats(best, now_ns))


def block_stats(blocks: Blocks, now_ns: int) -> tuple[BlockStat, ...]:
    """One per block, in their order."""
    columns = blocks.address, blocks.size, blocks.birth_ns, blocks.stack, blocks.tid
    return tuple(
        BlockStat(address, size, max(0, now_ns - birth_ns), stack, tid)
        for address, size, birth_ns, stack, tid in zip(*(c.tolist() for c in columns), strict=True)
    )


def first_rows(n: int, main: U64, second: U64, third: U64) -> Rows:
    """The rows of the n smallest, in order, without sorting all."""
    rows = np.arange(len(main))
    if 0 < n < len(main):
        rows = np.flatnonzero(main <= np.partition(main, n - 1)[n - 1])
    return rows[np.lexsort((third[rows], second[rows], main[rows]))][: max(n, 0)]


def _largest(blocks: Blocks, rows: Rows, n: int) -> Blocks:
    size, birth_ns, address = blocks.size[rows], blocks.birth_ns[rows], blocks.address[rows]
    return blocks.select(rows[first_rows(n, ~size, birth_ns, address)])
