"""What can be said of figures when events were lost."""

from __future__ import annotations

import numpy as np

from tracelloc.model.losses import Counter, LossCounts, Oddities
from tracelloc.snapshots.taking import take_losses


def losses(*, shared: bool = False, **counts: int) -> LossCounts:
    counters = np.zeros(len(Counter), np.uint64)
    for name, count in counts.items():
        counters[Counter[name.upper()]] = count
    return take_losses(counters, Oddities(unmatched_frees=3), 2, shared=shared)


def test_nothing_lost() -> None:
    """However much found the ring full."""
    fine = losses(spilled=1000, spill_unmatched=4)
    assert fine.bounds(50) is None
    assert (fine.events, fine.spilled_events, fine.overflows) == (0, 1000, 2)
    assert fine.oddities.unmatched_frees == 7
    assert not any(fine.by_cause.values())


def test_bounds() -> None:
    """Each lost event by what it would have done; unmatched frees may be of other blocks."""
    assert losses(lost_allocs=10).bounds(50) == (57, 60)
    assert losses(lost_frees=10).bounds(50) == (37, 40)
    assert losses(lost_restores=1, spill_reuses=1, spill_odd_restores=1).bounds(50) == (50, 53)
    assert losses(lost_inner_frees=2).bounds(50) == (45, 50)
    assert losses(call_table_full=5).bounds(50) == (42, 55)
    assert losses(lost_frees=100).bounds(50) == (0, 0)


def test_counts_of_several_programs_bound_none_of_them() -> None:
    assert losses(lost_frees=10, shared=True).bounds(50) is None
