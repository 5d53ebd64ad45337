"""Counters of the events that a source reports and loses."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt


class Counter(IntEnum):
    """Counters of the probes since they were loaded (``enum counter``)."""

    LOST_ALLOCS = 0
    LOST_FREES = 1
    LOST_RESTORES = 2
    LOST_STACKS = 3
    STACK_TABLE_FULL = 4
    CALL_TABLE_FULL = 5
    UNPAIRED_RETURNS = 6
    ABANDONED_CALLS = 7
    UNREADABLE_RESULTS = 8
    EARLIER_CALLS = 9
    SAMPLE_TABLE_FULL = 10
    MISSES = 11
    LOST_MISSES = 12
    SPILLED = 13
    SPILL_REUSES = 14
    SPILL_UNMATCHED = 15
    SPILL_ODD_RESTORES = 16
    LOST_PAIRS = 17
    LOST_INNER_FREES = 18
    LOST_MAPPINGS = 19
    SKIPPED_RUNS = 20
    IMPOSSIBLE_SIZES = 21
    LOST_PYTHON_FRAMES = 22


LOST_EVENT_COUNTERS: Final = (
    Counter.LOST_ALLOCS,
    Counter.LOST_FREES,
    Counter.LOST_RESTORES,
    Counter.LOST_INNER_FREES,
)
"""Counters of events that never reached user space, as ring or overflow map had no room."""


def count_lost(counters: npt.NDArray[np.uint64]) -> int:
    """Number of events that never reached user space."""
    return sum(int(counters[counter]) for counter in LOST_EVENT_COUNTERS)


ODDITY_COUNTERS: Final = (
    Counter.SPILL_REUSES,
    Counter.SPILL_UNMATCHED,
    Counter.SPILL_ODD_RESTORES,
)
"""Counters of oddities that the overflow map finds instead of the table."""
