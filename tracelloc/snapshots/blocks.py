"""Live blocks: the largest of them, selected without sorting all, and their usable sizes.

A usable size is what the allocator provides for a block, as far as it is known.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tracelloc.heap.blocks import U64, Blocks, Mask
from tracelloc.heap.table import LiveTable
from tracelloc.heap.usable import formula_for, header_bytes
from tracelloc.model.mallocs import MainLibrary, MallocLibrary


@dataclass(frozen=True, slots=True)
class BlockStat:
    """One live block."""

    address: int
    size_bytes: int
    age_ns: int
    stack: int
    tid: int


@dataclass(frozen=True, slots=True)
class BlockSelection:
    """The largest of some blocks, and the sums of all of them."""

    count: int
    size_bytes: int
    largest: tuple[BlockStat, ...]
    """By size; of equal ones, the older first."""


def select_blocks(
    table: LiveTable, n: int, now_ns: int, min_age_ns: int | None = None
) -> BlockSelection:
    """The ``n`` largest blocks, of those at least ``min_age_ns`` old if that is given."""
    if n == 0 and min_age_ns is None:
        return BlockSelection(0, 0, ())
    count, size_bytes, best = table.largest(n, max(0, now_ns - (min_age_ns or 0)))
    return BlockSelection(count, size_bytes, block_stats(best, now_ns))


def block_stats(blocks: Blocks, now_ns: int) -> tuple[BlockStat, ...]:
    """One record per block, in order."""
    columns = blocks.address, blocks.size, blocks.birth_ns, blocks.stack, blocks.tid
    return tuple(
        BlockStat(address, size, max(0, now_ns - birth_ns), stack, tid)
        for address, size, birth_ns, stack, tid in zip(*(c.tolist() for c in columns), strict=True)
    )


class Usable(NamedTuple):
    """Columns, a row per block."""

    size_bytes: U64
    """At least the requested size."""
    known: Mask
    """Whether the size is known; otherwise it is meaningless."""
    read: Mask
    """Whether the size was read from the process rather than computed from the request."""


@dataclass(frozen=True, slots=True)
class ReadSizes:
    """Usable sizes that were read from the process, addresses ascending."""

    address: U64 = field(default_factory=lambda: np.empty(0, np.uint64))
    birth_ns: U64 = field(default_factory=lambda: np.empty(0, np.uint64))
    size_bytes: U64 = field(default_factory=lambda: np.empty(0, np.uint64))

    def find(self, blocks: Blocks) -> tuple[Mask, U64]:
        """Which of some blocks have a size here, and the sizes (0 for others)."""
        sizes = np.zeros(len(blocks), np.uint64)
        if not len(self.address):
            return np.zeros(len(blocks), np.bool_), sizes
        rows = np.minimum(np.searchsorted(self.address, blocks.address), len(self.address) - 1)
        # A later block may have the same address.
        same = self.birth_ns[rows] == blocks.birth_ns
        there = (self.address[rows] == blocks.address) & same
        sizes[there] = self.size_bytes[rows[there]]
        return there, sizes

    def select(self, rows: Mask) -> ReadSizes:
        """Some of the sizes."""
        return ReadSizes(self.address[rows], self.birth_ns[rows], self.size_bytes[rows])


@dataclass(frozen=True, slots=True)
class UsableSizes:
    """Usable sizes of the blocks of one snapshot."""

    main: MainLibrary
    """The malloc library that all blocks are counted as."""
    read: ReadSizes
    unusual: bool = False
    """The allocator was built in a way for which no sizes are known."""

    @property
    def header_bytes(self) -> int:
        """Least overhead of a block of known size beside its usable bytes."""
        return header_bytes(self.main)

    @property
    def has_sizes(self) -> bool:
        """Whether usable sizes can be known at all."""
        return not self.unusual and formula_for(self.main) is not None

    def of(self, blocks: Blocks) -> Usable:
        """Usable sizes of some of the snapshot's blocks, in their order."""
        there, sizes = self.read.find(blocks)
        formula = None if self.unusual else formula_for(self.main)
        # With several allocators, only blocks whose size was read are certainly glibc's.
        is_mixed = self.main.library is MallocLibrary.GLIBC and bool(self.main.others)
        if formula is None or is_mixed:
            return Usable(sizes, there, there)
        computed, known = formula(blocks.size)
        return Usable(np.where(there, sizes, computed), there | known, there)
