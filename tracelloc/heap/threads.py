"""Who allocates and who frees: figures per thread, and what goes from one to another.

The sums over all threads are those over all stacks: what can't be assigned to a thread
stands in the first row. (Stale blocks, whose address was handed out again, are freed by
nobody.) Thread ids that the kernel gives to another thread later on stand for both.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]

NOBODY: Final = 0
"""The row of what came by in no thread's order, and of threads beyond ``MOST_THREADS``."""
MOST_THREADS: Final = 1 << 16
"""Rows, at most."""
MOST_FLOWS: Final = 1 << 14
"""Pairs of threads, at most; what goes between others is counted from and to ``NOBODY``."""


@dataclass(slots=True)
class ThreadTotals:
    """One array per figure: a row per thread. Bytes are as requested, counts are blocks."""

    tid: I64
    """0 in the first row."""
    allocated_bytes: I64
    allocated_count: I64
    freed_bytes: I64
    """By this thread, whoever had allocated them; as the next."""
    freed_count: I64

    def __len__(self) -> int:
        return len(self.tid)


FIGURES: Final = len(fields(ThreadTotals))


@dataclass(frozen=True, slots=True)
class Flow:
    """Blocks that one thread allocated and another one freed.

    Counts are in blocks, or in parts of sampled ones (``totals.COUNT_PARTS``).
    """

    count: int
    size_bytes: int
