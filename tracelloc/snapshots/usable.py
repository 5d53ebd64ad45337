"""What the allocator gives for each outstanding block, as far as that is known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tracelloc.heap.blocks import U64, Blocks, Mask
from tracelloc.target.found import MainAllocator, Provider
from tracelloc.target.usable import formula_for, header_bytes


class Usable(NamedTuple):
    """Columns, a row per block."""

    size_bytes: U64
    """At least what was asked for."""
    known: Mask
    """Elsewhere the size means nothing."""
    read: Mask
    """Read from the process; what is known otherwise was computed from the request."""


@dataclass(frozen=True, slots=True)
class ReadSizes:
    """Usable sizes that were read from the process, addresses ascending."""

    address: U64 = field(default_factory=lambda: np.empty(0, np.uint64))
    birth_ns: U64 = field(default_factory=lambda: np.empty(0, np.uint64))
    size_bytes: U64 = field(default_factory=lambda: np.empty(0, np.uint64))

    def find(self, blocks: Blocks) -> tuple[Mask, U64]:
        """Which of some blocks are there, and their sizes (0 for others)."""
        sizes = np.zeros(len(blocks), np.uint64)
        if not len(self.address):
            return np.zeros(len(blocks), np.bool_), sizes
        rows = np.minimum(np.searchsorted(self.address, blocks.address), len(self.address) - 1)
        # Another block may have come to the same place.
        same = self.birth_ns[rows] == blocks.birth_ns
        there = (self.address[rows] == blocks.address) & same
        sizes[there] = self.size_bytes[rows[there]]
        return there, sizes

    def select(self, rows: Mask) -> ReadSizes:
        """Some of them."""
        return ReadSizes(self.address[rows], self.birth_ns[rows], self.size_bytes[rows])


@dataclass(frozen=True, slots=True)
class UsableSizes:
    """Usable sizes of the blocks of one snapshot."""

    main: MainAllocator
    """Whose blocks all are taken for."""
    read: ReadSizes
    unusual: bool = False
    """The allocator was built in a way of which no sizes are known."""

    @property
    def header_bytes(self) -> int:
        """What each block of known size takes beside its usable bytes, at least."""
        return header_bytes(self.main)

    @property
    def has_sizes(self) -> bool:
        """Whether any size can be known."""
        return not self.unusual and formula_for(self.main) is not None

    def of(self, blocks: Blocks) -> Usable:
        """Of some of the snapshot's blocks, in their order."""
        there, sizes = self.read.find(blocks)
        formula = None if self.unusual else formula_for(self.main)
        # Of several allocators' blocks, only what has been seen is certain to be glibc's.
        is_mixed = self.main.provider is Provider.GLIBC and bool(self.main.others)
        if formula is None or is_mixed:
            return Usable(sizes, there, there)
        computed, known = formula(blocks.size)
        return Usable(np.where(there, sizes, computed), there | known, there)
