"""Which threads allocate and free: figures per thread, and blocks that pass between threads.

The sums over all threads equal those over all stacks: what can't be assigned to a thread counts in
the first row. (Stale blocks, whose address was allocated again, are freed by ``NOBODY``.) If the
kernel reuses a thread id, the figures of both threads are added up.
"""

from __future__ import annotations

from typing import Final

from tracelloc.dataclass import dataclass, fields
from tracelloc.model.figures import I64

# The row of events without a known thread order, and of threads beyond `MOST_THREADS`.
NOBODY: Final = 0
MOST_THREADS: Final = 1 << 16
MOST_FLOWS: Final = 1 << 14  # Most pairs of threads; further flows count as from and to `NOBODY`


@dataclass(slots=True)
class ThreadTotals:
    """One array per figure: a row per thread. Bytes are as requested, counts are blocks."""

    tid: I64  # 0 in the first row
    allocated_bytes: I64
    allocated_count: I64
    freed_bytes: I64  # Freed by this thread, whichever thread allocated them; so is `freed_count`
    freed_count: I64

    def __len__(self) -> int:
        return len(self.tid)


FIGURES: Final = len(fields(ThreadTotals))


@dataclass(frozen=True, slots=True)
class Flow:
    """Blocks that one thread allocated and another one freed.

    Counts are in blocks, or in parts of sampled ones (``COUNT_PARTS``).
    """

    count: int
    size_bytes: int
