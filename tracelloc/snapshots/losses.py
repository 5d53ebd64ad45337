"""Missed events: counts by cause, and the bounds of figures that remain."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.heap.table import Oddities
from tracelloc.model.counters import LOST_EVENT_COUNTERS, ODDITY_COUNTERS, Counter

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
    """Counts of events that could not be seen, since the start."""

    counters: dict[Counter, int]
    oddities: Oddities
    """Oddities of the table and of the overflow map."""
    overflows: int = 0
    """How often the event ring was found to have been full."""
    shared: bool = False
    """Whether the probes counted for other processes or programs as well."""
    failed_tasks: dict[str, int] = field(default_factory=dict)
    """Tasks of the trace that have failed, such as the pointer search, with their failures."""

    @property
    def events(self) -> int:
        """Allocations, frees and restores missing from the table."""
        lost = sum(self.counters[counter] for counter in LOST_EVENT_COUNTERS)
        return lost + self.counters[Counter.CALL_TABLE_FULL]

    @property
    def spilled_events(self) -> int:
        """Events that went to the overflow map because the ring was full; some may be lost."""
        return self.counters[Counter.SPILLED]

    @property
    def by_cause(self) -> dict[str, int]:
        """Every count by name, including zeros, except counts that are not losses."""
        causes = {
            counter.name.lower(): count
            for counter, count in self.counters.items()
            if counter not in _NO_LOSSES
        }
        causes["address_reuses"] = self.oddities.address_reuses
        causes["odd_restores"] = self.oddities.odd_restores
        return causes

    def bounds(self, live_count: int) -> tuple[int, int] | None:
        """(least, most) number of outstanding blocks when the table has this many.

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


def take_losses(
    counters: npt.NDArray[np.uint64], oddities: Oddities, overflows: int, *, shared: bool
) -> LossCounts:
    """Reads counts of the probes (by ``abi.Counter``) and oddities of the table."""
    return LossCounts(
        {counter: int(counters[counter]) for counter in Counter},
        Oddities(
            oddities.unmatched_frees + int(counters[Counter.SPILL_UNMATCHED]),
            oddities.address_reuses + int(counters[Counter.SPILL_REUSES]),
            oddities.odd_restores + int(counters[Counter.SPILL_ODD_RESTORES]),
        ),
        overflows,
        shared,
    )
