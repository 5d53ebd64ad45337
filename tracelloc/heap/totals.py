"""Totals per call stack, updated with each batch, never by a walk over all blocks."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]

COUNT_PARTS: Final = 1024
"""Parts per block: the unit of sampled counts."""


@dataclass(slots=True)
class Totals:
    """One array per figure, indexed by stack. Bytes are as requested, counts are blocks.

    Outstanding = allocated - freed, always. Of the freed blocks, ``temporary`` were freed soon
    after by the allocating thread, ``remote`` by another thread. ``peak_bytes`` is the largest
    outstanding figure at the end of a batch (a lower bound of the true peak). ``first_ns`` and
    ``last_ns`` are CLOCK_MONOTONIC times of the first and the newest allocation, 0 if there was
    none.
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
    """Mean distance of samples. If set, each block counts for the blocks it stands for: bytes
    are scaled, and counts are in parts of ``COUNT_PARTS`` until ``whole``."""

    @classmethod
    def empty(cls, stacks: int = 1, sample_bytes: int | None = None) -> Totals:
        """All zeros for this many stacks."""
        columns: dict[str, Any] = {name: np.zeros(stacks, np.int64) for name in COLUMNS}
        return cls(**columns, sample_bytes=sample_bytes)

    def __len__(self) -> int:
        return len(self.allocated_bytes)

    def copy(self, stacks: int | None = None) -> Totals:
        """The first ``stacks`` stacks (default: all) as an independent copy."""
        columns: dict[str, Any] = {n: getattr(self, n)[:stacks].copy() for n in COLUMNS}
        return Totals(**columns, sample_bytes=self.sample_bytes)

    def fork(self) -> Totals:
        """Returns totals of the outstanding blocks, as if no others had ever been allocated."""
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
        """Per stack, the share of its allocated blocks that were temporary: 0 to 1."""
        share: npt.NDArray[np.float64] = self.temporary_count / np.maximum(self.allocated_count, 1)
        return share

    def grow(self, stacks: int) -> None:
        """Makes room for this many stacks; arrays at least double."""
        old = len(self)
        if stacks <= old:
            return
        room = max(stacks, 2 * old, 64)
        for name in COLUMNS:
            column = np.zeros(room, np.int64)
            column[:old] = getattr(self, name)
            setattr(self, name, column)

    def whole_counts(self, parts: I64) -> I64:
        """Counts of these totals' stacks in blocks."""
        return parts if self.sample_bytes is None else _rounded(parts)

    def whole_number(self, parts: int) -> int:
        """One count in blocks, see ``whole_counts``."""
        return int(self.whole_counts(np.array([parts], np.int64))[0])


COLUMNS: Final = tuple(f.name for f in fields(Totals) if f.name != "sample_bytes")


def _rounded(parts: I64) -> I64:
    return (parts + COUNT_PARTS // 2) // COUNT_PARTS
