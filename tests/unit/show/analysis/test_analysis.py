"""Figures for views against ones added up block by block, and the copies they come from."""

import random
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from tests import snapshots
from tests.unit.events import A, F, random_program, records
from tracelloc.heap.heap import HeapSeries
from tracelloc.heap.stacks import Stacks
from tracelloc.heap.table import LiveTable
from tracelloc.model.blocks import Blocks
from tracelloc.model.figures import History
from tracelloc.model.snapshotrequest import TOTALS_ONLY, SnapshotRequest
from tracelloc.show.analysis.differences import (
    ALL,
    NO_AGE,
    BlockOrder,
    Limits,
    change,
    held_by_stack,
    list_blocks,
    mark,
    mean_ages_ns,
    pick_blocks,
    stack_figures,
)
from tracelloc.show.analysis.histograms import (
    age_bins,
    frequent_sizes,
    size_bins,
    stack_details,
    threads_of,
)
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import NS_PER_S

ALL_OF_IT = SnapshotRequest(blocks=True)


def snapshot_of(
    table: LiveTable, now_ns: int, wanted: SnapshotRequest = ALL_OF_IT, **process: Any
) -> Snapshot:
    return snapshots.snapshot_of(table, now_ns, wanted, **process)


@dataclass
class Row:
    address: int
    size: int
    birth: int
    stack: int
    tid: int


def rows(blocks: Blocks) -> list[Row]:
    columns = (blocks.address, blocks.size, blocks.birth_ns, blocks.stack, blocks.tid)
    return [Row(*values) for values in zip(*(c.tolist() for c in columns), strict=True)]


def made(*blocks: tuple[int, int, int, int], first: int = 1) -> Blocks:
    """Blocks of (size, birth, stack, tid) at ascending addresses."""
    columns = np.array(blocks, np.uint64).reshape(-1, 4)
    address = np.arange(first, first + len(blocks), dtype=np.uint64) << np.uint64(4)
    return Blocks(
        address, columns[:, 0], columns[:, 1], columns[:, 2].astype(np.uint32),
        columns[:, 3].astype(np.uint32),
    )  # fmt: skip


@pytest.fixture(params=[None, 700], ids=["exact", "sampled"])
def table(request: pytest.FixtureRequest) -> LiveTable:
    """A correct program's table, its blocks in several runs with dead rows in them."""
    table = LiveTable(Stacks(), request.param)
    events = random_program(3, 6000, 5, 900)
    for start in range(0, len(events), 500):
        table.apply(records(events[start : start + 500], first_time=start + 1))
    return table


def test_copies(table: LiveTable) -> None:
    snapshot = snapshot_of(table, 6001)
    table.apply(records([(A, 0x10, 5, 1, 1)], first_time=9000))
    blocks = snapshot.blocks
    assert len(blocks) == table.count - 1
    held = held_by_stack(blocks, len(snapshot.totals), snapshot.sample_bytes)
    assert held.size_bytes.tolist() == snapshot.totals.live_bytes.tolist()
    assert held.count.tolist() == snapshot.totals.live_count.tolist()
    assert snapshot.blocks is blocks
    snapshot = snapshot_of(LiveTable(Stacks()), 5, TOTALS_ONLY)
    assert snapshot.blocks is snapshot.threads is None
    assert snapshot.now_ns == 5
    history = History(0)
    for second in range(1, 20):
        history.sample(second * NS_PER_S, np.array([second, 7]))
    copy = history.copy()
    times, held = copy.held()
    before = held.tolist()
    for second in range(20, 60):
        history.sample(second * NS_PER_S, np.array([second, 9]))
    assert copy.series(0) == ([n * NS_PER_S for n in range(20)], list(range(20)))
    assert copy.held()[1].tolist() == before
    assert len(times) == len(before) == 20


LIMITS = [
    ALL, Limits(min_age_ns=2500), Limits(max_age_ns=2500),
    Limits(min_size_bytes=1000, max_size_bytes=3000), Limits(born_after_ns=4000),
    Limits(born_before_ns=4000), Limits(born_after_ns=2000, born_before_ns=4000), Limits(stack=3),
    Limits(tid=2, min_size_bytes=1), Limits(min_age_ns=9_999_999),
    Limits(max_age_ns=9_999_999, max_size_bytes=1 << 70),
]  # fmt: skip


def within(row: Row, limits: Limits, now_ns: int) -> bool:
    age = now_ns - row.birth
    return (
        age >= limits.min_age_ns
        and (limits.max_age_ns is None or age <= limits.max_age_ns)
        and row.size >= limits.min_size_bytes
        and (limits.max_size_bytes is None or row.size <= limits.max_size_bytes)
        and (limits.born_after_ns is None or row.birth > limits.born_after_ns)
        and (limits.born_before_ns is None or row.birth <= limits.born_before_ns)
        and (limits.stack is None or row.stack == limits.stack)
        and (limits.tid is None or row.tid == limits.tid)
    )


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_limits(table: LiveTable, limits: Limits) -> None:
    snapshot = snapshot_of(table, 6001)
    every = rows(snapshot.blocks)
    chosen = rows(pick_blocks(snapshot.blocks, 6001, limits))
    assert chosen == [row for row in every if within(row, limits, 6001)]
    for order, key in (
        (BlockOrder.SIZE, lambda r: (-r.size, r.birth, r.address)),
        (BlockOrder.AGE, lambda r: (r.birth, -r.size, r.address)),
        (BlockOrder.YOUTH, lambda r: (-r.birth, -r.size, r.address)),
    ):
        for n in (0, 1, 7, 100_000):
            listed = list_blocks(snapshot, n, order, limits)
            expected = sorted(chosen, key=key)[:n]
            assert [block.address for block in listed.largest] == [r.address for r in expected]
            assert [block.age_ns for block in listed.largest] == [6001 - r.birth for r in expected]
    if snapshot.sample_bytes is None:
        assert listed.count == len(chosen)
        assert listed.size_bytes == sum(row.size for row in chosen)


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_figures_per_stack(table: LiveTable, limits: Limits) -> None:
    snapshot = snapshot_of(table, 6001)
    figures = stack_figures(snapshot, None, limits)
    chosen = rows(pick_blocks(snapshot.blocks, 6001, limits))
    assert sum(figures.share) == pytest.approx(1 if chosen else 0)
    for stack in range(len(snapshot.totals)):
        mine = [row for row in chosen if row.stack == stack]
        if snapshot.sample_bytes is not None:
            assert (figures.mean_age_ns[stack] == NO_AGE) == (not mine)
            continue
        assert figures.live_bytes[stack] == sum(row.size for row in mine)
        assert figures.live_count[stack] == len(mine)
        mean = 6001 - sum(row.birth for row in mine) / len(mine) if mine else NO_AGE
        assert abs(figures.mean_age_ns[stack] - mean) <= 1


def test_change_between_marks_and_what_has_come_since() -> None:
    table = LiveTable(Stacks())
    a, f = A, F
    table.apply(records([(a, 0x100, 10, 1, 1), (a, 0x200, 20, 2, 1)], first_time=1))
    first = mark(snapshot_of(table, 1 * NS_PER_S), "one")
    table.apply(
        records(
            [(f, 0x100, 0, 0, 1), (a, 0x300, 5, 2, 1), (a, 0x400, 7, 3, 1), (a, 0x100, 1, 1, 1)],
            first_time=2 * NS_PER_S,
        )
    )
    snapshot = snapshot_of(table, 3 * NS_PER_S)
    moved = change(first, snapshot)
    one, two, three = table.stacks.indices(np.array([1, 2, 3], np.uint64)).tolist()
    assert moved.elapsed_ns == 2 * NS_PER_S
    assert moved.grown("live_bytes")[[one, two, three]].tolist() == [-9, 5, 7]
    assert moved.grown("live_count")[[one, two, three]].tolist() == [0, 1, 1]
    assert moved.grown("freed_bytes")[[one, two, three]].tolist() == [10, 0, 0]
    assert moved.per_second(moved.grown("allocated_count"))[[one, two, three]].tolist() == [
        0.5,
        0.5,
        0.5,
    ]
    assert moved.per_second(moved.grown("freed_count"))[[one, two, three]].tolist() == [0.5, 0, 0]
    assert moved.per_second(moved.grown("allocated_bytes"))[one] == 0.5
    since = stack_figures(snapshot, first, Limits(born_after_ns=first.now_ns))
    assert since.live_bytes[[one, two, three]].tolist() == [1, 5, 7]
    back = change(snapshot, snapshot)
    assert not back.grown("live_bytes").any()
    assert not back.per_second(back.grown("allocated_count")).any()
    # Another program has begun: its rates are no less than nothing.
    assert not moved.per_second(-moved.grown("allocated_count")).any()
    assert (
        change(None, snapshot).grown("live_bytes").tolist() == snapshot.totals.live_bytes.tolist()
    )


def test_bins_threads_and_ages() -> None:
    huge = size_bins(made(((1 << 54) - 1, 1, 1, 1), (1 << 54, 1, 1, 1)))
    assert [(b.low, b.count) for b in huge] == [(1 << 53, 1), (1 << 54, 1)]
    assert size_bins(Blocks.empty()) == frequent_sizes(Blocks.empty(), 3) == []
    now = 200_000 * NS_PER_S
    births = [now + 5, now, now - NS_PER_S + 1, now - NS_PER_S, now - 59 * NS_PER_S]
    bins = age_bins(made(*[(10, birth, 1, 1) for birth in births]), now)
    assert [(b.low // NS_PER_S, b.high and b.high // NS_PER_S, b.count) for b in bins] == [
        (0, 1, 3), (1, 3, 1), (3, 10, 0), (10, 30, 0), (30, 60, 1)
    ]  # fmt: skip
    assert age_bins(made((10, 1, 1, 1)), now)[-1].high is None
    assert age_bins(Blocks.empty(), now) == []
    blocks = made((100, 1, 1, 7), (50, 1, 2, 7), (300, 1, 1, 4_000_000))
    stats = threads_of(blocks, {7: "main"}, NS_PER_S)
    assert [(s.tid, s.name, s.live_bytes, s.live_count, s.bytes_per_min) for s in stats] == [
        (4_000_000, None, 300, 1, None), (7, "main", 150, 2, None)
    ]  # fmt: skip
    assert stats[1].share == pytest.approx(1 / 3)
    later = threads_of(made((160, 1, 1, 7)), {7: "main"}, 31 * NS_PER_S, (NS_PER_S, stats))
    assert [(s.tid, s.live_bytes, s.bytes_per_min) for s in later] == [
        (7, 160, 20), (4_000_000, 0, -600)
    ]  # fmt: skip
    assert threads_of(Blocks.empty(), {}, 5, (5, stats))[0].bytes_per_min is None
    year_ns = 365 * 86_400 * NS_PER_S
    blocks = made((8, year_ns + 1, 1, 1), (1 << 30, year_ns + 4, 1, 1), (8, year_ns + 9, 3, 1))
    ages = mean_ages_ns(blocks, 4, year_ns + 10, None)
    assert ages.tolist() == [NO_AGE, 7, NO_AGE, 1]  # 7.5
    # A sampled small block stands for many, so its age weighs more.
    assert mean_ages_ns(blocks, 4, year_ns + 10, 1 << 20).tolist() == [NO_AGE, 9, NO_AGE, 1]
    assert mean_ages_ns(blocks, 4, year_ns, None).tolist() == [NO_AGE, 0, NO_AGE, 0]
    odd = (1 << 55) - 1
    blocks = made(*[(odd, 1, 1, 1)] * 8, (1, 1, 1, 1))
    assert held_by_stack(blocks, 2, None).size_bytes.tolist() == [0, 8 * odd + 1]


def test_details_of_a_stack() -> None:
    table = LiveTable(Stacks())
    events = [(A, 0x1000 * n, 10 * n, 1, 40 + n % 2) for n in range(1, 5)]
    table.apply(records([*events, (F, 0x4000, 0, 0, 1)], first_time=10))
    history = History(0)
    history.sample(12, table.totals.live_bytes)
    snapshot = snapshot_of(table, 20, history=history)
    (index,) = table.stacks.indices(np.array([1], np.uint64)).tolist()
    history.sample(30, table.totals.live_bytes * 5)
    details = stack_details(replace(snapshot, thread_names={41: "b"}), index)
    assert (details.stat.live_bytes, details.stat.live_count) == (60, 3)
    assert details.stat.allocated_count == 4
    assert details.last_age_ns == 7
    assert (details.mean_age_ns, details.oldest_age_ns) == (9, 10)
    assert [(t.tid, t.name, t.live_bytes) for t in details.threads] == [
        (41, "b", 40),
        (40, None, 20),
    ]
    assert details.history == ([0, 12, 20], [0, 60, 60])
    empty = stack_details(snapshot_of(table, 20, TOTALS_ONLY), 0)
    assert empty.mean_age_ns is empty.last_age_ns is None
    assert empty.history == ([0, 20], [0, 0])


def test_series_covers_everything_and_keeps_peaks() -> None:
    series = HeapSeries(0, points=10)
    rng = random.Random(1)
    added = []
    for tick in range(5000):
        now = tick * NS_PER_S // 8
        if series.is_due(now):
            value = rng.randrange(1000)
            added.append((now, value))
            series.add(now, value, None if tick % 2 else 2 * value)
    points = series.points()
    assert 5 < len(points) <= 10
    assert points.time_ns[0] == 0
    assert points.time_ns[-1] == added[-1][0]
    known = dict(added)
    assert [known[t] for t in points.time_ns.tolist()] == points.live_bytes.tolist()
    steps = np.diff(points.time_ns)
    assert steps[:-1].max() <= 2 * steps[:-1].min()
    series.add(10**15, 1, None)
    assert series.points().rss_bytes[-1] == -1
    assert len(points) <= 10
