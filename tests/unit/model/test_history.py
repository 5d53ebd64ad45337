"""Samples over time, and growth read from them."""

import itertools

import numpy as np

from tracelloc.model.figures import SAMPLES, History
from tracelloc.text import NS_PER_S


def held(*sizes: int) -> np.ndarray:
    return np.array(sizes, np.int64)


def test_whole_time_and_growth() -> None:
    """However long it lasts: from the start on, evenly, never more than the limit."""
    history = History(0)
    for second in range(1, 1000):
        now = second * NS_PER_S
        if history.is_due(now):
            history.sample(now, held(second, 2 * second))
        assert SAMPLES // 2 <= len(history) <= SAMPLES or second < SAMPLES
    times, sizes = history.series(0)
    assert times[0] == 0
    assert sizes == [time // NS_PER_S for time in times]
    assert {b - a for a, b in itertools.pairwise(times[1:])} == {32 * NS_PER_S}
    assert history.series(1)[1] == [2 * size for size in sizes]
    assert history.series(9999)[1] == [0] * len(times)
    history = History(0)
    for second in range(1, 31):
        history.sample(second * NS_PER_S, held(100 * second, 5000))
    # Younger than a minute: since the start.
    assert history.growth_per_min(30 * NS_PER_S, held(3000, 5000)).tolist() == [6000, 10_000]
    assert history.growth_per_min(80 * NS_PER_S, held(2600, 5000, 7)).tolist() == [600, 0, 7]
    history = History(0)
    history.sample(NS_PER_S, held(1))
    history.sample(2 * NS_PER_S, np.arange(500))
    assert history.series(499) == ([0, NS_PER_S, 2 * NS_PER_S], [0, 0, 499])
    grown = history.growth_per_min(62 * NS_PER_S, np.arange(500) * 2, 60 * NS_PER_S)
    assert grown.tolist() == list(range(500))
    history = History(0)
    history.sample(100 * NS_PER_S, held(1))
    assert history.is_due(101 * NS_PER_S)
    assert not history.is_due(100 * NS_PER_S)
