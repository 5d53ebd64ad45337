"""Figures that views derive from snapshots, as pure functions.

Everything is a column by stack, thread or bin, computed from copies, outside of any lock.
Counts are blocks and sizes are bytes as requested. A sampled block counts for the blocks
that it represents, rounded like the totals, so that both agree.
"""

from enum import Enum
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tracelloc.dataclass import dataclass
from tracelloc.model.blocks import Blocks, BlockSelection, block_stats, first_rows, weights
from tracelloc.model.figures import COUNT_PARTS, F64, I64, U64, Totals
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import NS_PER_S

NO_AGE: Final = -1  # Mean age of a stack without live blocks
_EXACT_FLOAT: Final = 1 << 53  # Sums below this are exact in float64, in which `bincount` adds


@dataclass(frozen=True, slots=True)
class Mark:
    """The state of a process when the user set a mark."""

    name: str  # Name on the screen; empty: the mark is unnamed
    now_ns: int  # CLOCK_MONOTONIC; blocks born later are new since the mark
    elapsed_ns: int  # Time since tracing began
    totals: Totals  # Totals at that time


def mark(snapshot: Snapshot, name: str) -> Mark:
    """Returns the totals of a snapshot, to compare later snapshots with; without blocks."""
    return Mark(name, snapshot.now_ns, snapshot.elapsed_ns, snapshot.totals)


@dataclass(frozen=True, slots=True)
class Change:
    """Changes between two snapshots, with an element per stack of the later one."""

    elapsed_ns: int  # Time between the snapshots
    _earlier: Totals | None  # None: the start, when all figures were zero
    _later: Totals

    def grown(self, figure: str) -> I64:
        """Returns by how much a figure of ``Totals`` has grown, per stack; negative if it fell."""
        column: I64 = getattr(self._later, figure)
        if self._earlier is None:
            return column
        column, old = column.copy(), getattr(self._earlier, figure)[: len(column)]
        column[: len(old)] -= old
        return column

    def per_second(self, column: I64) -> F64:
        """Returns a cumulative column as a rate; zero if no time has passed.

        A column falls only if a process executed another program or is no longer counted.
        """
        seconds = self.elapsed_ns / NS_PER_S
        return np.maximum(column, 0) / seconds if seconds > 0 else np.zeros(len(column))


def change(before: Mark | Snapshot | None, after: Mark | Snapshot) -> Change:
    """Returns the changes from one snapshot (None: the start) to another."""
    if before is None:
        return Change(after.elapsed_ns, None, after.totals)
    return Change(after.elapsed_ns - before.elapsed_ns, before.totals, after.totals)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the shown blocks; a block is shown if it is within all of them."""

    min_age_ns: int = 0
    max_age_ns: int | None = None
    min_size_bytes: int = 0
    max_size_bytes: int | None = None
    # CLOCK_MONOTONIC; `now_ns` of a mark selects blocks born since. Birth times are those of the
    # last timer tick, so blocks of the first 2 to 11 ms after the mark may be missing.
    born_after_ns: int | None = None
    born_before_ns: int | None = None  # CLOCK_MONOTONIC; selects blocks born by then
    stack: int | None = None  # Only blocks of this stack; None: of all
    tid: int | None = None  # Only blocks that this thread allocated; None: of all

    @property
    def is_open(self) -> bool:
        return self == ALL


ALL: Final = Limits()


def pick_blocks(blocks: Blocks, now_ns: int, limits: Limits = ALL) -> Blocks:
    """Returns the blocks within limits. Blocks born after ``now_ns`` are younger than any age."""
    if limits.is_open:
        return blocks
    kept = np.ones(len(blocks), np.bool_)
    if limits.stack is not None:
        kept &= blocks.stack == limits.stack
    if limits.tid is not None:
        kept &= blocks.tid == limits.tid
    if limits.min_size_bytes > 0:
        kept &= blocks.size >= _u64(limits.min_size_bytes)
    if limits.max_size_bytes is not None:
        kept &= blocks.size <= _u64(limits.max_size_bytes)
    if limits.min_age_ns > 0:
        if limits.min_age_ns > now_ns:
            kept[:] = False
        kept &= blocks.birth_ns <= _u64(now_ns - limits.min_age_ns)
    if limits.max_age_ns is not None:
        kept &= blocks.birth_ns >= _u64(now_ns - limits.max_age_ns)
    if limits.born_after_ns is not None:
        kept &= blocks.birth_ns > _u64(limits.born_after_ns)
    if limits.born_before_ns is not None:
        kept &= blocks.birth_ns <= _u64(limits.born_before_ns)
    return blocks.select(kept)


def _u64(number: int) -> np.uint64:
    return np.uint64(min(max(number, 0), 0xFFFFFFFFFFFFFFFF))


class Amounts(NamedTuple):
    """What each of some blocks stands for: blocks and bytes, an element per block."""

    parts: I64 | None  # Blocks, in parts of `COUNT_PARTS`; None: one block each
    size_bytes: U64  # Bytes, scaled if blocks are sampled


def amounts(blocks: Blocks, sample_bytes: int | None, each_bytes: U64 | None = None) -> Amounts:
    """Returns what each block stands for. ``each_bytes``: to count in place of the sizes."""
    each = blocks.size if each_bytes is None else each_bytes
    if sample_bytes is None:
        return Amounts(None, each)
    weight = blocks.weight
    if weight is None:
        weight = weights(blocks.size, sample_bytes)
    parts = np.rint(weight * COUNT_PARTS).astype(np.int64)
    return Amounts(parts, np.rint(weight * each).astype(np.uint64))


@dataclass(frozen=True, slots=True)
class HeldSums:
    """Sums of live bytes and blocks, with an element per stack, thread or bin."""

    size_bytes: I64
    count: I64


def held_by(keys: npt.NDArray[np.integer], length: int, amount: Amounts) -> HeldSums:
    """Returns exact sums of bytes and blocks per key; keys are below ``length``."""
    sizes = _sum_by(keys, amount.size_bytes, length)
    if amount.parts is None:
        return HeldSums(sizes, np.bincount(keys, minlength=length).astype(np.int64))
    parts = _sum_by(keys, amount.parts.astype(np.uint64), length)
    return HeldSums(sizes, (parts + COUNT_PARTS // 2) // COUNT_PARTS)


def _sum_by(keys: npt.NDArray[np.integer], values: U64, length: int) -> I64:
    if len(values) and int(values.max()) * len(values) >= _EXACT_FLOAT:
        sums = np.zeros(length, np.int64)
        np.add.at(sums, keys, values.astype(np.int64))
        return sums
    return np.bincount(keys, weights=values, minlength=length).astype(np.int64)


def held_by_stack(blocks: Blocks, stacks: int, sample_bytes: int | None) -> HeldSums:
    """Returns the live bytes and blocks of the first ``stacks`` stacks."""
    known = blocks.stack < stacks
    if not known.all():
        blocks = blocks.select(known)
    return held_by(blocks.stack, stacks, amounts(blocks, sample_bytes))


def mean_ages_ns(blocks: Blocks, stacks: int, now_ns: int, sample_bytes: int | None) -> I64:
    """Returns the mean age of each stack's blocks, equally weighted; ``NO_AGE`` without blocks."""
    if not len(blocks):
        return np.full(stacks, NO_AGE, np.int64)
    # Relative to the oldest, so that sums of float64 stay precise.
    first = blocks.birth_ns.min()
    since = (blocks.birth_ns - first).astype(np.float64)
    # As ``bincount`` needs it: it would convert it twice.
    stack = blocks.stack.astype(np.intp)
    parts = amounts(blocks, sample_bytes).parts
    counts = np.bincount(stack, parts, stacks)[:stacks]
    weighted = since if parts is None else since * parts
    sums = np.bincount(stack, weighted, stacks)[:stacks]
    born = sums / np.maximum(counts, 1)
    ages = np.maximum(now_ns - int(first) - np.rint(born).astype(np.int64), 0)
    return np.where(counts > 0, ages, NO_AGE)


@dataclass(frozen=True)
class StackFigures:
    """Figures of tables of stacks, an element per index; rarely needed ones are lazy."""

    live_bytes: I64
    live_count: I64
    _blocks: Blocks | None
    _snapshot: Snapshot
    _before: Mark | None

    @cached_property
    def share(self) -> F64:
        """Share of the bytes of all stacks within the limits; 0 to 1."""
        return self.live_bytes / max(int(self.live_bytes.sum()), 1)

    @cached_property
    def mean_age_ns(self) -> I64:
        """Mean age of live blocks per stack; ``NO_AGE`` if there are none or they are unknown."""
        stacks, snapshot = len(self.live_bytes), self._snapshot
        if self._blocks is None:
            return np.full(stacks, NO_AGE, np.int64)
        return mean_ages_ns(self._blocks, stacks, snapshot.now_ns, snapshot.sample_bytes)

    @cached_property
    def allocations_per_s(self) -> F64:
        """Allocations per second and stack since the earlier snapshot, whatever the limits."""
        moved = change(self._before, self._snapshot)
        return moved.per_second(moved.grown("allocated_count"))


def stack_figures(
    snapshot: Snapshot, before: Mark | None = None, limits: Limits = ALL
) -> StackFigures:
    """Returns a table's figures; rates are since ``before``. Limits need a snapshot with blocks."""
    assert snapshot.blocks is not None or limits.is_open, "limits need a snapshot with blocks"
    every = snapshot.blocks
    blocks = None if every is None else pick_blocks(every, snapshot.now_ns, limits)
    if blocks is None or limits.is_open:
        live_bytes, live_count = snapshot.totals.live_bytes, snapshot.totals.live_count
    else:
        held = held_by_stack(blocks, len(snapshot.totals), snapshot.sample_bytes)
        live_bytes, live_count = held.size_bytes, held.count
    return StackFigures(live_bytes, live_count, blocks, snapshot, before)


class BlockOrder(Enum):
    """The order of a list of blocks; the value names the sort key."""

    SIZE = "size"  # Largest first, then oldest
    AGE = "age"  # Oldest first, then largest
    YOUTH = "youth"  # Youngest first, then largest


def list_blocks(
    snapshot: Snapshot, n: int, order: BlockOrder = BlockOrder.SIZE, limits: Limits = ALL
) -> BlockSelection:
    """Returns the first ``n`` blocks within limits, and the sum of all blocks within limits."""
    assert snapshot.blocks is not None
    blocks = pick_blocks(snapshot.blocks, snapshot.now_ns, limits)
    all_of_them = held_by(np.zeros(len(blocks), np.intp), 1, amounts(blocks, snapshot.sample_bytes))
    smallest_first, oldest_first = ~blocks.size, blocks.birth_ns
    keys = {
        BlockOrder.SIZE: (smallest_first, oldest_first),
        BlockOrder.AGE: (oldest_first, smallest_first),
        BlockOrder.YOUTH: (~oldest_first, smallest_first),
    }[order]
    rows = first_rows(n, *keys, blocks.address)
    first = block_stats(blocks.select(rows), snapshot.now_ns)
    return BlockSelection(int(all_of_them.count[0]), int(all_of_them.size_bytes[0]), first)
