"""What a child process inherits: the same blocks and stacks, independent of its parent's."""

from itertools import pairwise

import numpy as np
import pytest

from tests.unit.events import A, F, held, random_program, records, table_of
from tracelloc.heap.stacks import Stacks
from tracelloc.heap.table import LiveTable
from tracelloc.model.events import Events
from tracelloc.model.stacks import StackFlag
from tracelloc.text import NS_PER_S


def sums(table: LiveTable) -> list[int]:
    """Blocks and bytes: allocated, freed."""
    totals = table.totals
    columns = ("allocated_count", "allocated_bytes", "freed_count", "freed_bytes")
    return [int(getattr(totals, name).sum()) for name in columns]


def test_forks_and_execs() -> None:
    stacks = Stacks()
    stacks.add(11, (1, 2), StackFlag(0))
    parent = table_of([(A, n * 16, n, 11, 1) for n in range(1, 101)], stacks)
    parent.apply(records([(F, n * 16, 0, 0, 1) for n in range(1, 41)], first_time=200))
    child = parent.fork()
    before = held(parent)
    assert len(before) == 60
    assert held(child) == before
    live_bytes = sum(range(41, 101))
    assert sums(parent) == [100, 5050, 40, 5050 - live_bytes]
    # What came and went before it was born is not the child's.
    assert sums(child) == [60, live_bytes, 0, 0]
    # The same call path has the same index in both, whatever its id is.
    assert stacks.add(99, (1, 2), StackFlag(0)) == stacks.add(11, (1, 2), StackFlag(0))
    child.apply(records([(F, 16 * 50, 0, 0, 2), (A, 7, 7, 99, 2)], first_time=300))
    assert held(parent) == before
    assert held(child) == {a: b for a, b in before.items() if a != 16 * 50} | {7: (7, 1)}
    parent.apply(records([(F, 16 * 60, 0, 0, 1), (F, 16 * 50, 0, 0, 1)], first_time=400))
    assert sums(parent)[2] == 42
    assert 16 * 60 in held(child)
    assert parent.oddities.unmatched_frees == child.oddities.unmatched_frees == 0
    before = Stacks()
    first = before.add(1, (5, 6), StackFlag(0))
    after = Stacks(before)
    assert after.frames(first) == (5, 6)
    other = after.add(2, (5, 6), StackFlag(0))
    assert other == first + 1
    # The earlier program may have other processes: each of the two goes on by itself.
    assert before.add(3, (7,), StackFlag(0)) == other
    assert (before.frames(other), after.frames(other)) == ((7,), (5, 6))
    assert after.indices(np.array([1], np.uint64)).tolist() == [other + 1]


def everything(table: LiveTable) -> tuple[object, ...]:
    """What there is to know of a table."""
    census = table.cohorts.census(1000 * NS_PER_S, len(table.totals))
    columns = ("born", "alive", "alive_bytes", "floor_bytes", "lifetimes", "load", "unmatched")
    return (
        held(table),
        sums(table),
        [getattr(census, name).tolist() for name in columns],
        census.edges_s.tolist(),
        table.threads().allocated_bytes.tolist(),
    )


def replayed(steps: list[tuple[int, int] | None], events: Events) -> LiveTable:
    """A table that applied these stretches of events, as the only one; None: was forked off."""
    table = LiveTable(stacks())
    for step in steps:
        if step is None:
            table = table.fork()
        else:
            table.apply(events[slice(*step)])
    return table


def stacks() -> Stacks:
    """Those of random programs, always by the same index."""
    known = Stacks()
    known.indices(np.arange(9, dtype=np.uint64))
    return known


@pytest.mark.parametrize("seed", range(6))
def test_what_is_shared_is_copied_before_it_changes(seed: int) -> None:
    """Several forks of forks, all of which go on, against tables that share nothing."""
    events = records(random_program(seed, 3000, 3, 40))
    events["time_ns"] = np.arange(1, len(events) + 1) * (NS_PER_S // 20)
    tables = [LiveTable(stacks())]
    steps: list[list[tuple[int, int] | None]] = [[]]
    for start, end in pairwise(range(0, len(events) + 1, 250)):
        parent = start // 250 % len(tables)
        tables.append(tables[parent].fork())
        steps.append([*steps[parent], None])
        for number, (table, taken) in enumerate(zip(tables, steps, strict=True)):
            if (start // 250 + number) % 3:
                table.apply(events[start:end])
                taken.append((start, end))
    alone = [everything(replayed(taken, events)) for taken in steps]
    assert [everything(table) for table in tables] == alone
