"""Totals per call stack, kept up to date batch by batch: never a walk over all blocks."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracelloc.sampling import weights

U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]
I64 = npt.NDArray[np.int64]
Stacks = npt.NDArray[np.integer]
"""Indices."""

Sums = tuple[I64, I64]
"""Blocks and bytes per stack."""
Amount = tuple[I64 | None, npt.NDArray[Any]]
"""Parts of a block (None: one block each) and bytes, per block."""

COUNT_PARTS: Final = 1024
"""Parts of a block that sampled counts are kept in."""
_EXACT_FLOAT: Final = 1 << 53
"""Sums below this are exact in a float64, which ``bincount`` adds in."""
_COUNT_BIT: Final = 36
_COUNT_UNIT: Final = 1 << _COUNT_BIT


@dataclass(slots=True)
class Totals:
    """One array per figure, indexed by stack. Bytes are as requested, counts are blocks.

    Outstanding = allocated - freed, always. Of the freed ones, ``temporary`` were freed soon
    after by the thread that had allocated them, ``remote`` by another one. ``peak_bytes`` is
    the largest outstanding figure at the end of a batch (a lower bound of the true peak).
    ``first_ns`` and ``last_ns`` are CLOCK_MONOTONIC times of the first and the newest
    allocation, 0 if there was none.
    """

    allocated_bytes: I64
    allocated_count: I64
    freed_bytes: I64
    freed_count: I64
    temporary_bytes: I64
    temporary_count: I64
    remote_bytes: I64
    remote_count: I64
    peak_bytes: I64
    first_ns: I64
    last_ns: I64
    sample_bytes: int | None = None
    """Mean distance of samples. If set, every block counts for what it stands for: bytes
    are scaled, and counts are in parts of ``COUNT_PARTS`` until ``whole``."""

    @classmethod
    def empty(cls, stacks: int = 1, sample_bytes: int | None = None) -> Totals:
        """All zero for this many stacks."""
        columns: dict[str, Any] = {name: np.zeros(stacks, np.int64) for name in _COLUMNS}
        return cls(**columns, sample_bytes=sample_bytes)

    def __len__(self) -> int:
        return len(self.allocated_bytes)

    def copy(self, stacks: int | None = None) -> Totals:
        """The first ``stacks`` stacks (default: all) as an independent copy."""
        columns: dict[str, Any] = {n: getattr(self, n)[:stacks].copy() for n in _COLUMNS}
        return Totals(**columns, sample_bytes=self.sample_bytes)

    def fork(self) -> Totals:
        """The same blocks outstanding, as if they were all that ever was allocated."""
        child = Totals.empty(len(self), self.sample_bytes)
        child.allocated_bytes, child.allocated_count = self.live_bytes, self.live_count
        for name in ("peak_bytes", "first_ns", "last_ns"):
            setattr(child, name, getattr(self, name).copy())
        return child

    def whole(self, stacks: int) -> Totals:
        """A copy of the first ``stacks`` stacks with counts in blocks."""
        copy = self.copy(stacks)
        if self.sample_bytes is not None:
            live = _rounded(copy.live_count)
            copy.freed_count = _rounded(copy.freed_count)
            copy.allocated_count = copy.freed_count + live
            copy.temporary_count = _rounded(copy.temporary_count)
            copy.remote_count = _rounded(copy.remote_count)
        return copy

    @property
    def live_bytes(self) -> I64:
        """Outstanding bytes per stack."""
        return self.allocated_bytes - self.freed_bytes

    @property
    def live_count(self) -> I64:
        """Outstanding blocks per stack."""
        return self.allocated_count - self.freed_count

    @property
    def temporary_share(self) -> npt.NDArray[np.float64]:
        """Per stack, of the blocks that it has allocated: 0 to 1."""
        share: npt.NDArray[np.float64] = self.temporary_count / np.maximum(self.allocated_count, 1)
        return share

    def grow(self, stacks: int) -> None:
        """Makes room for this many stacks; arrays at least double."""
        old = len(self)
        if stacks <= old:
            return
        room = max(stacks, 2 * old, 64)
        for name in _COLUMNS:
            column = np.zeros(room, np.int64)
            column[:old] = getattr(self, name)
            setattr(self, name, column)

    def allocate(self, stack: Stacks, size: U64, birth_ns: U64, *, in_order: bool = True) -> Sums:
        """Adds new blocks. Returns what was added. ``in_order``: rows are in order of time."""
        sums = self._sums(stack, size)
        _add(self.allocated_count, self.allocated_bytes, sums)
        if not in_order:
            self._note_late(stack, birth_ns)
        elif len(stack):
            self._note_times(stack, birth_ns)
        return sums

    def _note_late(self, stack: Stacks, birth_ns: U64) -> None:
        """Notes births in any order, which may be older than others that are known."""
        order = np.argsort(birth_ns, kind="stable")
        stack, times_ns = stack[order], birth_ns[order].astype(np.int64)
        self._note_times(stack, np.maximum(times_ns, self.last_ns[stack]))

    def _note_times(self, stack: Stacks, birth_ns: U64 | I64) -> None:
        # The last of several assignments to one element holds.
        self.last_ns[stack] = birth_ns
        fresh = self.first_ns.take(stack) == 0
        if fresh.any():
            self.first_ns[stack[fresh][::-1]] = birth_ns[fresh][::-1]

    def pass_by(
        self, stack: Stacks, size: U64, count: I64, total: I64, time_ns: U64
    ) -> tuple[int, int]:
        """Adds blocks that were allocated and freed again: ``count`` with ``total`` bytes.

        ``size`` of each of them, needed for samples only; ``time_ns`` of the last birth.
        Returns how many blocks (or parts of them) and bytes these are together.
        """
        if self.sample_bytes is not None:
            weight = weights(size, self.sample_bytes)
            total = count * np.rint(weight * size).astype(np.int64)
            count = count * np.rint(weight * COUNT_PARTS).astype(np.int64)
        for counts, sizes in (
            (self.allocated_count, self.allocated_bytes),
            (self.freed_count, self.freed_bytes),
        ):
            np.add.at(counts, stack, count)
            np.add.at(sizes, stack, total)
        self._note_late(stack, time_ns)
        return int(count.sum()), int(total.sum())

    def note_temporary(self, stack: Stacks, size: U64, sign: int = 1) -> None:
        """Counts some of the freed blocks as temporary; -1 takes that back."""
        _add(self.temporary_count, self.temporary_bytes, self._sums(stack, size), sign)

    def note_remote(self, stack: Stacks, size: U64, sign: int = 1) -> None:
        """Counts some of the freed blocks as freed by another thread; -1 takes that back."""
        _add(self.remote_count, self.remote_bytes, self._sums(stack, size), sign)

    def free(self, stack: Stacks, size: U64, sign: int = 1) -> None:
        """Takes blocks away from the stacks that allocated them; -1 takes that back."""
        if len(stack):
            self.free_sums(self._sums(stack, size), sign)

    def free_sums(self, sums: Sums, sign: int = 1) -> None:
        """The same, already added up."""
        _add(self.freed_count, self.freed_bytes, sums, sign)

    def bytes_of(self, size: U64) -> I64:
        """What each block counts for: its size, or what it stands for if it is a sample."""
        if self.sample_bytes is None:
            return size.view(np.int64)
        scaled: I64 = np.rint(weights(size, self.sample_bytes) * size).astype(np.int64)
        return scaled

    def parts_of(self, size: U64) -> I64:
        """The same in blocks, or in parts of ``COUNT_PARTS`` if they are samples."""
        if self.sample_bytes is None:
            return np.ones(len(size), np.int64)
        parts: I64 = np.rint(weights(size, self.sample_bytes) * COUNT_PARTS).astype(np.int64)
        return parts

    def amount_of(self, size: U64) -> Amount:
        """Both."""
        if self.sample_bytes is None:
            return None, size
        return self.parts_of(size), self.bytes_of(size)

    def whole_counts(self, parts: I64) -> I64:
        """What was added up from ``parts_of``, in blocks."""
        return parts if self.sample_bytes is None else _rounded(parts)

    def whole_number(self, parts: int) -> int:
        """The same of one number."""
        return int(self.whole_counts(np.array([parts], np.int64))[0])

    def _sums(self, stack: Stacks, size: U64) -> Sums:
        if self.sample_bytes is None or not len(stack):
            return sums_by(stack, size)
        # Whole numbers, the same each time that a block comes by: what is freed is what
        # was allocated.
        counts = np.bincount(stack, weights=self.parts_of(size))
        sizes = np.bincount(stack, weights=self.bytes_of(size))
        return counts.astype(np.int64), sizes.astype(np.int64)

    def note_peaks(self) -> None:
        """To be called at the end of a batch."""
        np.maximum(self.peak_bytes, self.live_bytes, out=self.peak_bytes)


_COLUMNS: Final = tuple(f.name for f in fields(Totals) if f.name != "sample_bytes")


def _add(counts: I64, sizes: I64, sums: Sums, sign: int = 1) -> None:
    counts[: len(sums[0])] += sign * sums[0]
    sizes[: len(sums[1])] += sign * sums[1]


def _rounded(parts: I64) -> I64:
    return (parts + COUNT_PARTS // 2) // COUNT_PARTS


def sums_by(keys: npt.NDArray[Any], size: U64) -> Sums:
    """(blocks, bytes) per stack, or whatever the keys number."""
    if not len(keys):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    largest = int(size.max())
    if largest * len(size) < _COUNT_UNIT and len(size) < _EXACT_FLOAT // _COUNT_UNIT:
        # Both in one go: a float64 is exact up to 2^53, the count rides above the bytes.
        packed = np.bincount(keys, weights=size.view(np.int64) + _COUNT_UNIT).astype(np.int64)
        counts: I64 = packed >> _COUNT_BIT
        return counts, packed & (_COUNT_UNIT - 1)
    counts = np.bincount(keys)
    if largest * len(size) < _EXACT_FLOAT:
        return counts, np.bincount(keys, weights=size).astype(np.int64)
    sizes = np.zeros(len(counts), np.int64)
    np.add.at(sizes, keys, size.astype(np.int64))
    return counts, sizes
