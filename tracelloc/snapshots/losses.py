"""What was missed: counts by cause, and what can be said of the figures all the same."""

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
    # Counted by what is left of them: partial stacks.
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
    """How often the ring of events was found to have been full."""
    shared: bool = False
    """The probes have counted for other processes or programs, too, not for this table only."""
    failed_tasks: dict[str, int] = field(default_factory=dict)
    """Tasks of the trace that have failed, such as a pointer search, and how often."""

    @property
    def events(self) -> int:
        """Allocations, frees and restores that are missing from the table."""
        lost = sum(self.counters[counter] for counter in LOST_EVENT_COUNTERS)
        return lost + self.counters[Counter.CALL_TABLE_FULL]

    @property
    def spilled_events(self) -> int:
        """Events that went to the overflow map because the ring was full; some may be lost."""
        return self.counters[Counter.SPILLED]

    @property
    def by_cause(self) -> dict[str, int]:
        """Every count by its name, zeros included, what is no loss left out."""
        causes = {
            counter.name.lower(): count
            for counter, count in self.counters.items()
            if counter not in _NO_LOSSES
        }
        causes["address_reuses"] = self.oddities.address_reuses
        causes["odd_restores"] = self.oddities.odd_restores
        return causes

    def bounds(self, live_count: int) -> tuple[int, int] | None:
        """(at least, at most) how many blocks are outstanding when the table has this many.

        None if nothing was lost: the table is right. None also if nobody can tell what was
        lost of this table, and what of others. Each lost event is counted by what it
        would have done (``probes/spill.h``). What stays open is which of the unmatched frees
        are of blocks from before, or of sizes that were not asked for, which lost frees
        inside other frees were of blocks, and what calls of threads did that could not be
        followed. Not for samples.
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
