"""Samples over time, the first of many blocks, and stacks that are asked about by their frames."""

import itertools

import numpy as np
import pytest

from tracelloc.heap.stacks import Stacks
from tracelloc.model.blocks import first_rows
from tracelloc.model.figures import SAMPLES, History
from tracelloc.model.stacks import StackFlag
from tracelloc.text import NS_PER_S


@pytest.mark.parametrize("n", [0, 1, 7, 39, 40, 41])
@pytest.mark.parametrize("kinds", [(1, 1), (1, 9), (2, 2), (9, 3), (1000, 1000)])
def test_first_rows_are_those_of_all_sorted(n: int, kinds: tuple[int, int]) -> None:
    """``kinds``: how many values the first two keys have."""
    random = np.random.default_rng(1)
    for _ in range(50):
        keys = [random.integers(0, most, 40).astype(np.uint64) for most in (*kinds, 1 << 40)]
        assert first_rows(n, *keys).tolist() == np.lexsort(keys[::-1])[:n].tolist()


def test_stacks_that_pass_through_memory() -> None:
    stacks = Stacks()
    stacks.indices(np.array([7], np.uint64))  # its frames are not known yet
    for number, frames in enumerate([(16, 39), (16, 20, 99), (), (60,), (40, 59)]):
        stacks.add(number + 8, frames, StackFlag(0))
    edges = np.array([20, 30, 50, 60], np.uint64)
    assert stacks.pass_through(edges).tolist() == [
        False, False, False, True, False, False, True
    ]  # fmt: skip
    assert not stacks.pass_through(edges[:0]).any()


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
