"""Which threads allocate and free: figures per thread, and blocks that pass between threads.

The sums over all threads equal those over all stacks: what can't be assigned to a thread counts in
the first row. (Stale blocks, whose address was allocated again, are freed by ``NOBODY``.) If the
kernel reuses a thread id, the figures of both threads are added up.
"""

from typing import Final

from tracelloc.dataclass import dataclass, fields
from tracelloc.model.figures import I64

# The row of events without a known thread order, and of threads beyond `MOST_THREADS`.
NOBODY: Final = 0
MOST_THREADS: Final = 1 << 16
MOST_FLOWS: Final = 1 << 14  # Most pairs of threads; further flows count as from and to `NOBODY`


@dataclass(slots=True)
class ThreadTotals:
    """Totals per thread: one array per figure. Bytes are as requested, counts are blocks."""

    tid: I64  # Thread ids; 0 in the first row, which is of unknown threads
    allocated_bytes: I64
    allocated_count: I64
    freed_bytes: I64  # Bytes that the thread freed, whichever thread allocated them
    freed_count: I64  # Blocks that the thread freed, whichever thread allocated them

    def __len__(self) -> int:
        return len(self.tid)


FIGURES: Final = len(fields(ThreadTotals))


@dataclass(frozen=True, slots=True)
class Flow:
    """Blocks that one thread allocated and another freed; if sampled, in ``COUNT_PARTS``."""

    count: int
    size_bytes: int
