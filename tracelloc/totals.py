"""Totals per call stack, kept up to date batch by batch: never a walk over all blocks."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]
I64 = npt.NDArray[np.int64]

_EXACT_FLOAT: Final = 1 << 53
"""Sums below this are exact in a float64, which ``bincount`` adds in."""


@dataclass(slots=True)
class Totals:
    """One array per figure, indexed by stack. Bytes are as requested, counts are blocks.

    Outstanding = allocated - freed, always. ``peak_bytes`` is the largest outstanding
    figure at the end of a batch (a lower bound of the true peak). ``first_ns`` and
    ``last_ns`` are CLOCK_MONOTONIC times of the first and the newest allocation, 0 if
    there was none.
    """

    allocated_bytes: I64
    allocated_count: I64
    freed_bytes: I64
    freed_count: I64
    peak_bytes: I64
    first_ns: I64
    last_ns: I64

    @classmethod
    def empty(cls, stacks: int = 1) -> Totals:
        """All zero for this many stacks."""
        return cls(*(np.zeros(stacks, np.int64) for _ in fields(cls)))

    def __len__(self) -> int:
        return len(self.allocated_bytes)

    def copy(self, stacks: int | None = None) -> Totals:
        """The first ``stacks`` stacks (default: all) as an independent copy."""
        return Totals(*(getattr(self, f.name)[:stacks].copy() for f in fields(self)))

    @property
    def live_bytes(self) -> I64:
        """Outstanding bytes per stack."""
        return self.allocated_bytes - self.freed_bytes

    @property
    def live_count(self) -> I64:
        """Outstanding blocks per stack."""
        return self.allocated_count - self.freed_count

    def grow(self, stacks: int) -> None:
        """Makes room for this many stacks; arrays at least double."""
        old = len(self)
        if stacks <= old:
            return
        room = max(stacks, 2 * old, 64)
        for field in fields(self):
            column = np.zeros(room, np.int64)
            column[:old] = getattr(self, field.name)
            setattr(self, field.name, column)

    def allocate(self, stack: U32, size: U64, birth_ns: U64) -> None:
        """Adds new blocks; rows in order of time."""
        _add(self.allocated_count, self.allocated_bytes, stack, size, 1)
        if len(stack):
            # The last of several assignments to one element holds.
            self.last_ns[stack] = birth_ns.astype(np.int64)
            fresh = self.first_ns[stack] == 0
            if fresh.any():
                self.first_ns[stack[fresh][::-1]] = birth_ns[fresh][::-1].astype(np.int64)

    def free(self, stack: U32, size: U64, sign: int = 1) -> None:
        """Takes blocks away from the stacks that allocated them; -1 takes that back."""
        _add(self.freed_count, self.freed_bytes, stack, size, sign)

    def note_peaks(self) -> None:
        """To be called at the end of a batch."""
        np.maximum(self.peak_bytes, self.live_bytes, out=self.peak_bytes)


def _add(counts: I64, sizes: I64, stack: U32, size: U64, sign: int) -> None:
    if not len(stack):
        return
    rows = int(stack.max()) + 1
    counts[:rows] += sign * np.bincount(stack, minlength=rows)
    if int(size.max()) * len(size) < _EXACT_FLOAT:
        sums = np.bincount(stack, weights=size, minlength=rows).astype(np.int64)
        sizes[:rows] += sign * sums
    else:
        np.add.at(sizes, stack, sign * size.astype(np.int64))
