"""The vectorised table against one that applies events one by one."""

import random
from typing import Any

import numpy as np
import pytest

from tests.unit.events import A, Event, F, PlainTable, R, X, random_program, records
from tracelloc.heap.stacks import StackNumbers, Stacks
from tracelloc.heap.table import LiveTable
from tracelloc.model.figures import I64
from tracelloc.model.process import TemporaryPolicy
from tracelloc.model.stacks import NO_STACK, StackFlag


def run(
    events: list[Event],
    cuts: list[int],
    between: int = 1,
    kind: type[Stacks | StackNumbers] = Stacks,
) -> LiveTable:
    """Applies the events in batches that end at ``cuts``."""
    table = LiveTable(kind(), temporary=TemporaryPolicy(between))
    start = 0
    for end in [*cuts, len(events)]:
        table.apply(records(events[start:end], first_time=start + 1))
        start = end
    return table


def state(table: LiveTable, plain: PlainTable) -> dict[str, object]:
    """The vectorised table in the plain one's terms, stack ids found by index."""
    ids = sorted({0, *plain.allocated, *plain.freed})
    names = dict(zip(table.stacks.indices(np.array(ids, np.uint64)).tolist(), ids, strict=True))
    rows = zip(*(column.tolist() for column in table.blocks().columns()), strict=True)
    totals = table.totals
    return {
        "live": {at: (size, names[stack], birth, tid) for at, size, birth, stack, tid in rows},
        "count": table.count,
        "allocated": books(totals.allocated_count, totals.allocated_bytes, names),
        "freed": books(totals.freed_count, totals.freed_bytes, names),
        "unmatched": table.oddities.unmatched_frees,
        "reuses": table.oddities.address_reuses,
        "odd": table.oddities.odd_restores,
    }


def books(counts: I64, sizes: I64, names: dict[int, int]) -> dict[int, tuple[int, int]]:
    """Blocks and bytes by name, of those that have any."""
    rows = np.flatnonzero(counts | sizes).tolist()
    return {names[at]: (int(counts[at]), int(sizes[at])) for at in rows}


def expected(plain: PlainTable) -> dict[str, object]:
    return {
        "live": plain.live,
        "count": len(plain.live),
        "allocated": plain.allocated,
        "freed": without_zeros(plain.freed),
        "unmatched": plain.unmatched,
        "reuses": plain.reuses,
        "odd": plain.odd_restores,
    }


def without_zeros(book: dict[Any, tuple[int, int]]) -> dict[Any, tuple[int, int]]:
    return {name: sums for name, sums in book.items() if any(sums)}


def check(
    events: list[Event],
    cuts: list[int],
    between: int = 1,
    kind: type[Stacks | StackNumbers] = Stacks,
) -> LiveTable:
    """Compares with the plain table: blocks, totals, and what is learnt from the ends of blocks."""
    plain = PlainTable(between=between)
    for event in events:
        plain.apply(event)
    table = run(events, cuts, between, kind)
    assert state(table, plain) == expected(plain)
    ids = [0, *plain.allocated]
    names = dict(zip(table.stacks.indices(np.array(ids, np.uint64)).tolist(), ids, strict=True))
    totals, threads = table.totals, table.threads()
    tids = dict(enumerate(threads.tid.tolist()))
    for (counts, sizes), by, book in (
        ((totals.temporary_count, totals.temporary_bytes), names, plain.temporary),
        ((totals.remote_count, totals.remote_bytes), names, plain.remote),
        ((threads.allocated_count, threads.allocated_bytes), tids, plain.made_by),
        ((threads.freed_count, threads.freed_bytes), tids, plain.freed_by),
    ):
        assert books(counts, sizes, by) == without_zeros(book)
    assert {
        (tids[maker], tids[ender]): (flow.count, flow.size_bytes)
        for (maker, ender), flow in table.flows().items()
        if flow.count
    } == without_zeros(plain.flows)
    return table


@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed: int) -> None:
    rng = random.Random(seed)
    events = random_program(seed, rng.choice([50, 500, 3000]), rng.randint(1, 6), 64)
    cuts = sorted(rng.sample(range(len(events)), rng.choice([0, 1, 5, len(events) // 3])))
    kind = rng.choice([Stacks, StackNumbers])
    table = check(events, cuts, rng.choice([0, 1, 3, 64]), kind)
    if isinstance(table.stacks, StackNumbers):
        known = table.stacks.known()
        assert table.stacks.indices(known).tolist() == list(range(len(known)))
    assert (table.totals.temporary_count <= table.totals.freed_count).all()


@pytest.mark.parametrize("seed", range(20))
def test_peaks(seed: int) -> None:
    """The moment, and what each stack held then, wherever batches end."""
    rng = random.Random(seed)
    events = random_program(seed, 2000, rng.randint(1, 4), 64, failing=0)
    cuts = sorted(rng.sample(range(len(events)), rng.choice([0, 1, 5, 600])))
    plain = PlainTable()
    for event in events:
        plain.apply(event)
    table = run(events, cuts)
    peak = table.peak
    time, held = plain.peak
    index = table.stacks.indices(np.array([*held], np.uint64)).tolist()
    assert peak.time_ns == time
    assert peak.size_bytes == sum(size for _, size in held.values())
    assert books(peak.live_count, peak.live_bytes, dict(zip(index, held, strict=True))) == held


@pytest.mark.parametrize("seed", range(10))
def test_random_programs_with_losses(seed: int) -> None:
    """Events that are missing leave oddities, each counted as the plain table counts it."""
    rng = random.Random(1000 + seed)
    events = [
        event
        for event in random_program(seed, 2000, 1, 64)
        # A lost event within a realloc's two would depend on where batches end.
        if event[0] in (R, X) or rng.random() > 0.05
    ]
    table = check(events, list(range(97, len(events), 97)))
    assert table.oddities.address_reuses > 0


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([(F, 16, 0, 0, 1), (F, 16, 0, 0, 1)], id="double free of an old block"),
        pytest.param(
            [(A, 16, 5, 1, 1), (R, 16, 0, 0, 1), (A, 16, 3, 2, 2), (A, 48, 9, 3, 1)],
            id="old address handed out while the realloc returns",
        ),
        pytest.param([(X, 16, 0, 0, 1)], id="restore without a taking"),
        pytest.param([(A, (1 << 56) - 16, 5, 1, 1), (A, 16, 6, 1, 1)], id="57-bit address"),
    ],
)  # fmt: skip
def test_stories_cut_anywhere(events: list[Event]) -> None:
    """Each short story in one batch, in single events, and cut at each place."""
    check(events, [])
    check(events, list(range(1, len(events))))
    for cut in range(1, len(events)):
        check(events, [cut])


def test_stacks_merge_and_sizes_are_huge() -> None:
    size = (1 << 55) - 1
    table = run([(A, 16, size, 1, 1), (A, 32, size, 1, 1), (A, 48, 3, 1, 1)], [])
    assert int(table.totals.live_bytes.sum()) == 2 * size + 3
    ids = random.Random(1).sample(range(1, 1 << 63), 500)
    check([(A, 16 * n, n, ids[n], 1) for n in range(1, 500)], [10, 100, 110, 300])
    table = run([(A, 16, 1, 5, 1), (A, 32, 1, 5, 1), (A, 48, 1, 6, 1), (A, 64, 1, 5, 1)], [2])
    at = int(table.stacks.indices(np.array([5], np.uint64))[0])
    assert (int(table.totals.first_ns[at]), int(table.totals.last_ns[at])) == (1, 4)
    stacks = Stacks()
    first = stacks.add(11, (1, 2), StackFlag(0))
    assert stacks.add(12, (1, 2), StackFlag(0)) == first
    assert stacks.add(13, (1, 2), StackFlag.TRUNCATED) != first
    unknown = int(stacks.indices(np.array([99, 11, 0], np.uint64))[0])
    assert stacks.frames(unknown) is None
    assert stacks.indices(np.array([11, 12, 0], np.uint64)).tolist() == [first, first, NO_STACK]
    assert stacks.add(99, (7,), StackFlag(0)) == unknown
    assert stacks.frames(unknown) == (7,)


def test_store_stays_compact_under_churn() -> None:
    """A million blocks through few addresses leave no trail of dead rows."""
    table = LiveTable(Stacks())
    rng = np.random.default_rng(1)
    for _ in range(40):
        address = np.unique(rng.integers(1, 1 << 40, 5000, dtype=np.uint64)) << np.uint64(4)
        made = np.zeros(len(address), records([]).dtype)
        made["address"], made["size_tag"], made["stack_id"] = address, (1 << 56) | 8, 1
        gone = made.copy()
        gone["size_tag"] = 2 << 56
        table.apply(made)
        table.apply(gone)
    assert table.count == 0
    assert table._core.room < 20_000
