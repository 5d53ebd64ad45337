"""What the table learns from the ends of blocks: where the order of events is not known, too."""

from collections import Counter

import numpy as np
import pytest

from tests.unit.events import A, F, records, table_of
from tracelloc.heap import table as threads_module
from tracelloc.heap.stacks import Stacks
from tracelloc.heap.table import LiveTable
from tracelloc.model.blocks import weights
from tracelloc.model.events import PAIR_DTYPE, EventKind
from tracelloc.model.figures import COUNT_PARTS
from tracelloc.model.process import TemporaryPolicy
from tracelloc.text import NS_PER_S

L = EventKind.LATE_ALLOC
MS = NS_PER_S // 1000


def test_soon_by_time_or_out_of_order() -> None:
    """The time from birth to end counts, and the thread; in one batch and over several."""
    for step in (1, 2, 8):
        table = LiveTable(Stacks(), temporary=TemporaryPolicy(life_ns=20 * MS))
        events = records(
            [
                (A, 16, 100, 1, 7), (A, 32, 200, 2, 7), (A, 48, 400, 3, 7), (A, 64, 800, 4, 7),
                (F, 16, 0, 0, 7), (F, 48, 0, 0, 8), (F, 32, 0, 0, 7), (F, 64, 0, 0, 7),
            ]
        )  # fmt: skip
        events["time_ns"] = NS_PER_S + np.array([0, 0, 0, 0, 20, 20, 21, 10]) * MS
        for start in range(0, 8, step):
            table.apply(events[start : start + step])
        assert table.totals.temporary_bytes.sum() == 100 + 800
        assert table.totals.temporary_count.sum() == 2
        assert table.totals.remote_bytes.sum() == 400
    # Nothing is called temporary that may not be; all of it is counted as unknown.
    table = table_of([(A, 16, 100, 1, 7)])
    late = records([(F, 16, 0, 0, 7), (A, 32, 50, 1, 7), (L, 48, 70, 1, 7), (A, 64, 30, 1, 7)])
    table.apply(late, in_order=False)
    table.apply(records([(F, 64, 0, 0, 7), (F, 48, 0, 0, 7), (F, 32, 0, 0, 7)]))
    assert table.totals.temporary_count.sum() == 0
    # The block from before may have been freed at once, too.
    assert table.unordered_count == 4
    # What was outstanding in the end; that it was 250 at some moment is not known.
    assert table.peak.size_bytes == 150
    table.apply(records([(A, 16, 100, 1, 7), (F, 16, 0, 0, 7)]))
    assert table.totals.temporary_count.sum() == 1
    # A block that comes and goes out of order at the address of one that may be temporary.
    table = table_of([(A, 16, 100, 1, 7)])
    again = records([(F, 16, 0, 0, 7), (A, 16, 50, 1, 7), (F, 16, 0, 0, 7)])
    table.apply(again, in_order=False)
    assert table.unordered_count == 2


def test_pairs_samples_and_forks() -> None:
    """All threads together are all stacks together, also where threads are not known."""
    table = table_of([(A, 16, 100, 1, 7), (F, 16, 0, 0, 8), (A, 32, 7, 2, 9)])
    pairs = np.zeros(2, PAIR_DTYPE)
    pairs["stack_id"], pairs["count"], pairs["bytes"] = [1, 2], [3, 4], [30, 60]
    pairs["time_ns"] = 9
    table.apply_pairs(pairs)
    threads = table.threads()
    assert threads.tid.tolist() == [0, 7, 8, 9]
    assert threads.allocated_count.tolist() == [7, 1, 0, 1]
    assert threads.freed_bytes.tolist() == [90, 0, 100, 0]
    assert threads.allocated_bytes.sum() == table.totals.allocated_bytes.sum()
    assert table.unordered_count == 7
    # A child begins with what its parent held: its peak, and nobody's work.
    parent = table_of(
        [(A, 16, 100, 1, 7), (A, 32, 300, 1, 7), (F, 32, 0, 0, 7)], temporary=TemporaryPolicy(4)
    )
    child = parent.fork()
    child.apply(records([(F, 16, 0, 0, 9)], first_time=4))
    assert child.peak.size_bytes == 100
    threads = child.threads()
    assert dict(zip(threads.tid.tolist(), threads.allocated_count.tolist(), strict=True))[0] == 1
    assert child.totals.remote_count.sum() == 1
    assert child.totals.temporary_count.sum() == 0
    assert child.temporary == TemporaryPolicy(4)
    assert parent.totals.temporary_count.sum() == 1
    # A sampled block counts for what it stands for, everywhere alike.
    table = table_of([(A, 16, 100, 1, 7), (F, 16, 0, 0, 7), (A, 16, 100, 1, 7)], sample_bytes=512)
    table.apply(records([(F, 16, 0, 0, 8)]))
    totals = table.totals
    assert totals.temporary_bytes.sum() == totals.remote_bytes.sum() == totals.freed_bytes.sum() / 2
    weight = weights(np.array([100], np.uint64), 512)[0]
    assert totals.temporary_count.sum() == round(weight * COUNT_PARTS)
    assert totals.temporary_bytes.sum() == round(weight * 100)
    assert table.peak.size_bytes == totals.temporary_bytes.sum() > 100
    assert table.threads().freed_count.sum() == totals.freed_count.sum()


def test_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flows are the same however they are counted; too many of them go to nobody."""
    events = []
    for n in range(3000):
        events += [(A, 16 * n + 16, n, 1, n % 600 + 1), (F, 16 * n + 16, 0, 0, n % 7 + 601)]
    expected = Counter[tuple[int, int]]()
    for n in range(3000):
        expected[n % 600 + 1, n % 7 + 601] += n
    table = table_of(events)
    tids = table.threads().tid
    assert {
        (int(tids[maker]), int(tids[ender])): flow.size_bytes
        for (maker, ender), flow in table.flows().items()
    } == expected
    monkeypatch.setattr(threads_module, "MOST_FLOWS", 10)
    monkeypatch.setattr(threads_module, "MOST_THREADS", 100)
    table = table_of(events)
    flows = table.flows()
    assert len(flows) <= 11
    assert sum(flow.size_bytes for flow in flows.values()) == sum(range(3000))
    threads = table.threads()
    assert len(threads) == 100
    assert threads.allocated_count.sum() == threads.freed_count.sum() == 3000
