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
    for size in (1, mean // 3, mean, 3 * mean):
        share = np.count_nonzero(lengths <= size) / GAPS
        assert share == pytest.approx(1 - np.exp(-size / mean), abs=2e-4)


def sampled(sizes: np.ndarray, mean: int, rng: np.random.Generator) -> np.ndarray:
    """Which blocks the probes would sample: the loop of ``is_sampled``, in Python."""
    lengths = gaps(mean)
    chosen = np.zeros(len(sizes), np.bool_)
    left = int(rng.choice(lengths))
    for n, size in enumerate(np.maximum(sizes, 1).tolist()):
        if size < left:
            left -= size
        else:
            chosen[n] = True
            left = int(rng.choice(lengths))
    return chosen


@pytest.mark.parametrize("mean", [100, 1000])
def test_estimates_are_unbiased_for_each_size(mean: int) -> None:
    rng = np.random.default_rng(7)
    kinds = np.array([0, 1, 16, 100, 900, 20_000], np.uint64)
    sizes = rng.choice(kinds, 150_000, p=[0.1, 0.2, 0.3, 0.2, 0.15, 0.05])
    chosen = sampled(sizes, mean, rng)
    weight = weights(sizes, mean)
    for size in kinds:
        mine = sizes == size
        truth = np.count_nonzero(mine)
        estimate = weight[mine & chosen].sum()
        probability = 1 / weight[mine][0]
        spread = np.sqrt(truth * (1 - probability) / probability)
        assert abs(estimate - truth) <= 4 * spread + 1e-6 * truth


def test_weights() -> None:
    assert weights(np.array([10**9], np.uint64), 100)[0] == 1
    assert weights(np.array([0, 1], np.uint64), 1000) == pytest.approx([1000.5, 1000.5], rel=1e-4)


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
