"""Byte-weighted sampling: unbiased for every size, consistent between birth and death."""

import numpy as np
import pytest

from tests.unit.events import A, F, R, X, records
from tracelloc.heap.sampling import GAPS, gaps
from tracelloc.heap.stacks import Stacks
from tracelloc.heap.table import LiveTable
from tracelloc.model.blocks import weights


@pytest.mark.parametrize("mean", [1, 64, 4096, 512 << 10, 1 << 30])
def test_gaps(mean: int) -> None:
    lengths = gaps(mean)
    assert len(lengths) == GAPS
    assert lengths.min() >= 1
    # Rounding up to whole bytes adds half a byte on average.
    assert lengths.mean() == pytest.approx(mean + 0.5, rel=1e-3, abs=0.6)
    # The share of gaps up to s is the probability that a block of s bytes is sampled.
    for size in (0, 1, mean // 3, mean, 3 * mean):
        probability = 1 - np.exp(-max(size, 1) / mean)
        share = np.count_nonzero(lengths <= max(size, 1)) / GAPS
        assert share == pytest.approx(probability, abs=2e-4)
        (weight,) = weights(np.array([size], np.uint64), mean)
        assert weight * probability == pytest.approx(1)


def test_what_is_freed_is_what_was_allocated() -> None:
    """Scaled totals come back to nothing, however the events are cut into batches."""
    rng = np.random.default_rng(3)
    events = [(A, 16 * n, int(rng.integers(0, 9000)), n % 7 + 1, 1) for n in range(1, 400)]
    for n in rng.permutation(np.arange(1, 400)).tolist():
        events.append((R if n % 3 else F, 16 * n, 0, 0, 1))
        if n % 3 == 1:
            events += [(X, 16 * n, 0, 0, 1), (F, 16 * n, 0, 0, 1)]
    table = LiveTable(Stacks(), sample_bytes=512)
    for start in range(0, len(events), 37):
        table.apply(records(events[start : start + 37], first_time=start + 1))
    assert table.count == 0
    assert not table.totals.live_bytes.any()
    assert not table.totals.live_count.any()
    assert table.totals.allocated_bytes.sum() > 399 * 512
    assert not table.totals.whole(len(table.stacks)).live_count.any()
