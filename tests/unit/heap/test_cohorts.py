"""Births, survivors and lifetimes per slice, against books that are kept block by block."""

import random
from collections.abc import Generator

import numpy as np
import pytest

from tests.unit.events import A, F, R, X, random_program, records
from tracelloc.heap.cohorts import LIFETIME_EDGES_S, LIFETIMES, SLICES, Cohorts, CounterRows
from tracelloc.heap.stacks import Stacks
from tracelloc.heap.table import LiveTable
from tracelloc.model.figures import Totals
from tracelloc.text import NS_PER_S

LONG_S = 20_000


def whole(rows: CounterRows) -> np.ndarray:  # type: ignore[type-arg]
    """All figures: a row each, a column per stack."""
    return rows.gather(np.arange(len(rows)), rows.columns)


def assert_sums(table: LiveTable, sampled: bool = False) -> None:
    """The cohorts say of each stack what the totals say."""
    cohorts, totals = table.cohorts, table.totals
    pairs = [(cohorts.alive_bytes, totals.live_bytes)]
    if not sampled:
        pairs += [(cohorts.born, totals.allocated_count), (cohorts.alive, totals.live_count)]
    for rows, column in pairs:
        np.testing.assert_array_equal(whole(rows).sum(axis=0)[: len(totals)], column)
    dead = (whole(cohorts.born) - whole(cohorts.alive)).sum(axis=0)
    assert (whole(cohorts.lifetimes).sum(axis=0) <= dead).all()


def assert_blocks(table: LiveTable) -> None:
    """Each live block is in the slice of its birth, and nothing else is."""
    cohorts = table.cohorts
    alive = np.zeros_like(whole(cohorts.alive))
    starts = cohorts._starts.tolist()
    blocks = table.blocks()
    for birth, stack in zip(blocks.birth_ns.tolist(), blocks.stack.tolist(), strict=True):
        at = max((n for n, start in enumerate(starts) if start <= birth), default=0)
        alive[cohorts._row_of[at], stack] += 1
    np.testing.assert_array_equal(whole(cohorts.alive), alive)


@pytest.mark.parametrize("sample_bytes", [None, 512])
@pytest.mark.parametrize("seed", range(12))
def test_sums_equal_the_totals(seed: int, sample_bytes: int | None) -> None:
    """After any events, failed reallocs and lost frees included, in any batches."""
    rng = random.Random(seed)
    events = random_program(seed, 2000, 4, 64)
    if seed % 3 == 0:
        events = [event for event in events if rng.random() > 0.03]
    table = LiveTable(Stacks(), sample_bytes)
    steps = np.random.default_rng(seed).exponential(10 ** rng.uniform(6, 9.5), len(events))
    all_records = records(events, times_ns=NS_PER_S + np.cumsum(steps).astype(np.uint64))
    cut = 0
    while cut < len(events):
        end = cut + rng.choice([1, 7, 150])
        table.apply(all_records[cut:end])
        assert_sums(table, sampled=sample_bytes is not None)
        cut = end
    if sample_bytes is None:
        assert_blocks(table)


def test_lifetimes() -> None:
    # One that is as long as the lower edge is in the class, a nanosecond less is not.
    edges_ns = np.ceil(LIFETIME_EDGES_S * NS_PER_S).astype(np.int64)
    classes = np.arange(LIFETIMES)
    for lives_ns, expected in ((edges_ns, classes), (edges_ns - 1, classes - 1)):
        for life_ns, at in zip(lives_ns.tolist(), expected.tolist(), strict=True):
            table = LiveTable(Stacks())
            times_ns = [NS_PER_S, NS_PER_S + life_ns]
            table.apply(records([(A, 16, 8, 1, 1), (F, 16, 0, 0, 1)], times_ns=times_ns))
            filed = whole(table.cohorts.lifetimes).sum(axis=1)
            assert filed.nonzero()[0].tolist() == [at] * (at >= 0)
    table = LiveTable(Stacks())
    for second, kind in enumerate([A, R, X]):
        table.apply(records([(kind, 16, 8, 1, 1)], times_ns=(1 + 10 * second) * NS_PER_S))
    assert whole(table.cohorts.alive).sum() == 1
    assert whole(table.cohorts.lifetimes).sum() == 0
    assert_blocks(table)


def test_slices_over_hours_and_pauses() -> None:
    """Always within bounds, always covering everything, fine where it is recent."""
    table = LiveTable(Stacks())
    table.cohorts.begin(0)
    births = np.arange(0, LONG_S, 2.5)
    for number, birth in enumerate(births.tolist(), start=1):
        table.apply(records([(A, number, 1, 7, 1)], int(birth * NS_PER_S)))
    population = table.cohorts.census(LONG_S * NS_PER_S, 2).survivors_by_age(np.ones(1, np.int64))
    edges = population.edges_s
    assert len(edges) == SLICES + 1
    assert edges[0] == 0
    assert edges[-1] == LONG_S
    widths, ages = np.diff(edges), LONG_S - edges[1:]
    assert (widths > 0).all()
    old = ages > 30
    assert (widths[old] / ages[old])[1:].max() < 0.6
    assert widths[-3:].max() <= 3
    expected = np.histogram(births, edges)[0]
    np.testing.assert_array_equal(population.born[0], expected)
    np.testing.assert_array_equal(population.alive[0], expected)
    np.testing.assert_array_equal(population.load, expected)
    cohorts = Cohorts()
    cohorts.begin(0)
    for second in [0, 1, 2, 5000, 5001]:
        cohorts.advance(second * NS_PER_S, Totals.empty())
    edges_s = cohorts.census(5001 * NS_PER_S, 1).edges_s[:-1].tolist()
    assert edges_s == [0, 1, 2, 3, 5000, 5001]


def test_sums_and_stretches() -> None:
    """Added up, the rows of stacks are what one stack would have that stood for all."""
    events = random_program(5, 4000, 3, 200)
    apart, together = records(events), records(events)
    together["stack_id"] = np.minimum(together["stack_id"], 1)
    both = []
    for rows in (apart, together):
        rows["time_ns"] = np.arange(1, len(rows) + 1) * (NS_PER_S // 50)
        table = LiveTable(Stacks())
        for start in range(0, len(rows), 37):
            table.apply(rows[start : start + 37])
        count = len(table.stacks)
        census = table.cohorts.census(int(rows["time_ns"][-1]), count)
        both.append(census.survivors_by_age(np.arange(count)))
    split, whole = both
    summed = split.sums(np.arange(1, len(split.born)), np.array([0]))
    for name in ("born", "alive", "alive_bytes", "lifetimes"):
        np.testing.assert_array_equal(getattr(summed, name)[0], getattr(whole, name)[1])
    np.testing.assert_array_equal(summed.load, whole.load)
    assert (summed.floor_bytes[0] <= whole.floor_bytes[1]).all()
    # Of any order of the stacks, overlapping ones too, as one adds up the rows one by one.
    table = LiveTable(Stacks())
    rows = records(random_program(8, 3000, 3, 40))
    rows["time_ns"] = np.arange(1, len(rows) + 1) * (NS_PER_S // 20)
    table.apply(rows)
    census = table.cohorts.census(int(rows["time_ns"][-1]), len(table.stacks))
    order = np.random.default_rng(1).permutation(census.stacks)
    starts, ends = np.array([0, 2, 3, 3]), np.array([census.stacks, 9, 4, 7])
    found = []

    def summing() -> Generator[None, None, None]:
        found.append((yield from census.totals_of_groups(order, starts, ends)))

    assert len(list(summing())) == 5
    whole = census.survivors_by_age(np.arange(census.stacks))
    for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
        one = whole.sums(order[start:end], np.zeros(1, np.intp))
        for name in ("born", "alive", "alive_bytes", "floor_bytes", "lifetimes"):
            np.testing.assert_array_equal(getattr(found[0], name)[row], getattr(one, name)[0])


def test_the_floor() -> None:
    table = LiveTable(Stacks())
    for second, size in enumerate([100, 40, 40, 90], 1):
        freed = [(F, 16 * second - 16, 0, 0, 1)] if second > 1 else []
        story = [*freed, (A, 16 * second, size, 1, 1)]
        table.apply(records(story, times_ns=second * NS_PER_S))
    floors = table.cohorts.census(5 * NS_PER_S, 2).floor_bytes[:, 1]
    # A slice begins with what is held until its first batch.
    assert floors.tolist() == [0, 40, 40, 40]
    table = LiveTable(Stacks())
    stories = [(A, 16, 100, 1, 1)], [(R, 16, 0, 0, 1)], [(A, 32, 200, 1, 1)], [(A, 48, 5, 1, 1)]
    for second, story in enumerate(stories, 1):
        table.apply(records(list(story), times_ns=second * NS_PER_S))
    floors = table.cohorts.census(5 * NS_PER_S, 2).floor_bytes[:, 1]
    assert floors.tolist() == [0, 100, 100, 200]
