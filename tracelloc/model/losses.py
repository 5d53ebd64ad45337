"""Missed events: counters of the sources, gaps in time, and the bounds of figures that remain.

A trace is complete while no event is missing. Otherwise, gaps record when events were missing, how
many, and why.
"""

from collections.abc import Sequence
from enum import Enum, IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.dataclass import dataclass, field


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


# Counters of events that never reached user space, as ring or overflow map had no room.
LOST_EVENT_COUNTERS: Final = (
    Counter.LOST_ALLOCS,
    Counter.LOST_FREES,
    Counter.LOST_RESTORES,
    Counter.LOST_INNER_FREES,
)

# Counters of oddities that the overflow map finds instead of the table.
ODDITY_COUNTERS: Final = (Counter.SPILL_REUSES, Counter.SPILL_UNMATCHED, Counter.SPILL_ODD_RESTORES)


def count_lost(counters: npt.NDArray[np.uint64]) -> int:
    """Returns how many events never reached user space, by the probes' counters."""
    return sum(int(counters[counter]) for counter in LOST_EVENT_COUNTERS)


@dataclass(frozen=True, slots=True)
class Oddities:
    """Counts of events that did not fit the live table, since the start."""

    unmatched_frees: int = 0  # Of blocks from before tracing, outside limits, or lost before
    address_reuses: int = 0  # Allocations at an address that was still live: an unseen free
    odd_restores: int = 0  # Failed reallocs of blocks for which no realloc had begun


_NO_LOSSES: Final = (
    Counter.EARLIER_CALLS,
    Counter.MISSES,
    # These show as partial stacks.
    Counter.LOST_MISSES,
    Counter.SPILLED,
    *ODDITY_COUNTERS,
)


@dataclass(frozen=True, slots=True)
class LossCounts:
    """Counts of events that were missed, since the start of tracing."""

    counters: dict[Counter, int]
    oddities: Oddities  # Oddities of the table and of the overflow map
    overflows: int = 0  # How often the event ring was found to have been full
    shared: bool = False  # Whether the probes counted for other processes or programs as well
    failed_tasks: dict[str, int] = field(default_factory=dict)  # By name: the failures

    @property
    def events(self) -> int:
        """Number of allocations, frees and restores that are missing from the table."""
        lost = sum(self.counters[counter] for counter in LOST_EVENT_COUNTERS)
        return lost + self.counters[Counter.CALL_TABLE_FULL]

    @property
    def spilled_events(self) -> int:
        """Number of events that went to the overflow map as the ring was full; some may be lost."""
        return self.counters[Counter.SPILLED]

    @property
    def by_cause(self) -> dict[str, int]:
        """Returns every count of losses by name, including zeros."""
        causes = {
            counter.name.lower(): count
            for counter, count in self.counters.items()
            if counter not in _NO_LOSSES
        }
        causes["address_reuses"] = self.oddities.address_reuses
        causes["odd_restores"] = self.oddities.odd_restores
        return causes

    def bounds(self, live_count: int) -> tuple[int, int] | None:
        """Returns (least, most) blocks that may be live when the table has ``live_count``.

        None if nothing was lost, so that the table is exact. None also if the losses of this
        table can't be separated from those of others. Each lost event counts by its effect
        (``probes/spill.h``). What remains unknown: which unmatched frees were of blocks from
        before tracing, or outside the size limits; which lost inner frees were of blocks; and
        what calls of threads did that could not be followed. Not for samples.
        """
        if not self.events or self.shared:
            return None
        counters, oddities = self.counters, self.oddities
        unseen = counters[Counter.CALL_TABLE_FULL]
        most = (
            live_count
            + oddities.address_reuses
            + oddities.odd_restores
            + counters[Counter.LOST_ALLOCS]
            + counters[Counter.LOST_RESTORES]
            - counters[Counter.LOST_FREES]
        )
        least = most - oddities.unmatched_frees - counters[Counter.LOST_INNER_FREES] - unseen
        return max(0, least), max(0, most + unseen)


class Completeness(Enum):
    """How complete the figures of a process are."""

    COMPLETE = "complete"  # The figures include every allocation and free since tracing began
    AT_LEAST = "at_least"  # Some events are missing; those included happened
    UNTIL = "until"  # No events have been seen since some time


@dataclass(frozen=True, slots=True)
class Gap:
    """A period of time with missing events."""

    start_s: float  # Last time without missing events: wall clock, seconds since 1970
    end_s: float | None  # When all events were seen again; None if not yet
    lost_events: int | None  # Number of missing allocations and frees; None if unknown
    reason: str  # A clause, without a subject if `lost_events` is known


def completeness_of(gaps: Sequence[Gap]) -> Completeness:
    """Returns how complete the figures of a trace with these gaps are."""
    if any(gap.end_s is None for gap in gaps):
        return Completeness.UNTIL
    return Completeness.AT_LEAST if gaps else Completeness.COMPLETE
