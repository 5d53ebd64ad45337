"""The kept tree against one that is made anew from the same stacks."""

import random
from collections import defaultdict

import numpy as np

from tests.unit.events import A, F, records, table_of
from tests.unit.show.analysis.test_analysis import snapshot_of
from tests.unit.show.presentation.test_views import FakeSymbolizer, frame
from tracelloc.heap.stacks import Stacks
from tracelloc.heap.table import LiveTable
from tracelloc.model.codefiles import Unresolved
from tracelloc.model.figures import I64
from tracelloc.model.frames import Frame
from tracelloc.model.stacks import StackFlag
from tracelloc.show.filters import Filters
from tracelloc.show.filters.rules import Rule
from tracelloc.show.presentation.calltree import CallTree, LiveTree, steps
from tracelloc.show.presentation.naming import Namer
from tracelloc.show.presentation.profile import Metric
from tracelloc.snapshots.snapshot import Snapshot


class SlowSymbolizer(FakeSymbolizer):
    """Addresses that are not in ``names`` are still being looked up."""

    def __init__(self) -> None:
        super().__init__({})
        self.asked = 0

    def learn(self, names: dict[int, str]) -> None:
        self.names.update(names)
        self.version += 1

    def peek(self, addresses: object) -> list[Frame]:
        self.asked += 1
        return [
            frame(self.names[a], a)
            if a in self.names
            else Frame(a, None, None, None, None, None, None, Unresolved.PENDING)
            for a in addresses  # type: ignore[attr-defined]
        ]


def picture(tree: CallTree) -> dict[tuple[str, ...], tuple[int, ...]]:
    """Per path what it weighs, in total and by itself; what weighs nothing is left out."""
    found = {}
    for node in range(len(tree)):
        path, at = [], node
        while at:
            path.append(tree.steps[at].name)
            at = int(tree.parent[at])
        figures = [int(c[m][node]) for c in (tree.totals, tree.own) for m in Metric]
        if any(figures):
            found[tuple(path)] = (*figures, -1 if tree.stacks[node] is None else 1)
    return found


def weights_of(snapshot: Snapshot) -> dict[Metric, I64]:
    """What each stack weighs; stacks that hold no block weigh nothing."""
    holds = snapshot.totals.live_count != 0
    return {metric: np.where(holds, metric.column(snapshot), 0) for metric in Metric}


def expected(snapshot: Snapshot, namer: Namer, *, inverted: bool) -> dict:
    """What ``picture`` is to say, added up path by path."""
    found: dict[tuple[str, ...], list[int]] = defaultdict(lambda: [0] * (2 * len(Metric)))
    ends = set()
    for stat in snapshot.top_stacks():
        names = [step.name for step in steps(namer.stack(snapshot, stat.index), stat.index)]
        path = tuple(names) if inverted else tuple(reversed(names))
        ends.add(path)
        for at, metric in enumerate(Metric):
            found[path][len(Metric) + at] += metric.value_of(stat)
            for start in range(len(path) + 1):
                found[path[start:]][at] += metric.value_of(stat)
    return {path: (*f, 1 if path in ends else -1) for path, f in found.items() if any(f)}


def same(kept: CallTree, snapshot: Snapshot, namer: Namer, *, inverted: bool = False) -> bool:
    return picture(kept) == expected(snapshot, namer, inverted=inverted)


def test_through_a_life() -> None:
    """Stacks come, grow, are freed; names come late; filters change. Either way round."""
    rng = random.Random(7)
    stacks = Stacks()
    table = LiveTable(stacks)
    symbolizer = SlowSymbolizer()
    filters = Filters()
    namer = Namer(symbolizer, filters)
    trees = [LiveTree("program", inverted=inverted, budget_s=10) for inverted in (False, True)]
    live: list[int] = []
    for tick in range(40):
        events = []
        for _ in range(30):
            stack_id = rng.randrange(1, 20 + 3 * tick)
            depth = random.Random(stack_id).randrange(1, 9)
            frames = tuple(100 + (stack_id * (n + 3)) % 23 for n in range(depth))
            if stack_id % 7:
                stacks.add(stack_id, frames, StackFlag(0))
            address = 0x1000 + len(live) * 16 + tick * 0x100000
            events.append((A, address, rng.randrange(1, 999), stack_id, 1))
            live.append(address)
        rng.shuffle(live)
        for _ in range(rng.randrange(45)):
            if live:
                events.append((F, live.pop(), 0, 0, 1))
        freed = {e[1] for e in events if e[0] is F}
        made = {e[1] for e in events if e[0] is A}
        events = [e for e in events if e[1] not in (freed & made)]
        table.apply(records(events, first_time=1 + tick * 1000))
        if tick % 3 == 0:
            symbolizer.learn({100 + tick // 3 * 2 + n: f"f{(tick + n) % 9}" for n in range(2)})
        if tick == 20:
            filters.add(Rule("f3"))
        snapshot = snapshot_of(table, 50_000 + tick)
        for tree in trees:
            kept = tree.update(snapshot, namer, weights_of(snapshot))
            assert same(kept, snapshot, namer, inverted=tree.inverted), tick
            assert not tree._stale


def small() -> tuple[LiveTable, SlowSymbolizer]:
    stacks = Stacks()
    for n in range(1, 51):
        stacks.add(n, (n, 1000), StackFlag(0))
    table = table_of([(A, 0x1000 * n, n, n, 1) for n in range(1, 51)], stacks)
    symbolizer = SlowSymbolizer()
    symbolizer.learn({1000: "main", **{n: f"f{n}" for n in range(1, 51)}})
    return table, symbolizer


def test_names_and_weights() -> None:
    table, symbolizer = small()
    namer = Namer(symbolizer, Filters())
    tree = LiveTree("program")
    snapshot = snapshot_of(table, 100)
    first = tree.update(snapshot, namer, weights_of(snapshot))
    asked = symbolizer.asked
    table.apply(records([(F, 0x1000 * n, 0, 0, 1) for n in range(2, 51)], 200))
    snapshot = snapshot_of(table, 300)
    second = tree.update(snapshot, namer, weights_of(snapshot))
    assert symbolizer.asked == asked == 50
    assert (first.totals[Metric.BYTES][0], second.totals[Metric.BYTES][0]) == (1275, 1)
    assert first.steps == second.steps
    assert sum(stack is not None for stack in second.stacks) == 1
    table, symbolizer = small()
    namer = Namer(symbolizer, Filters())
    ticks = iter(range(10**9))
    # Each look at the clock is a second: a budget of 20 is 20 stacks.
    tree = LiveTree("program", budget_s=19.5, clock_ns=lambda: next(ticks) * 1_000_000_000)
    snapshot = snapshot_of(table, 100)
    tree.update(snapshot, namer, weights_of(snapshot))
    symbolizer.learn({n: f"g{n}" for n in range(1, 51)})
    waiting = []
    for _ in range(3):
        kept = tree.update(snapshot, namer, weights_of(snapshot))
        waiting.append(len(tree._stale))
        assert kept.totals[Metric.BYTES][0] == 1275
    assert waiting == [31, 12, 0]
    assert same(kept, snapshot, namer)
    table, symbolizer = small()
    namer = Namer(symbolizer, Filters())
    snapshot = snapshot_of(table, 100)
    weights = weights_of(snapshot)
    only = {metric: np.where(np.arange(len(c)) == 7, c, 0) for metric, c in weights.items()}
    kept = LiveTree("program").update(snapshot, namer, only)
    assert [step.name for step in kept.steps] == ["program", "app", "main", "f7"]
    assert kept.totals[Metric.BYTES].tolist() == [7, 7, 7, 7]
    # The program's own module is its root.
    kept = LiveTree("app").update(snapshot, namer, only)
    assert [step.name for step in kept.steps] == ["app", "main", "f7"]
    tree = LiveTree("program")
    snapshot = snapshot_of(LiveTable(Stacks()), 5)
    kept = tree.update(snapshot, Namer(SlowSymbolizer(), Filters()), weights_of(snapshot))
    assert len(kept) == 1
    assert kept.totals[Metric.BYTES].tolist() == [0]


def test_what_does_not_wait_for_its_turn() -> None:
    """Names that were missing, and filters that have changed."""
    table, symbolizer = small()
    filters = Filters()
    namer = Namer(symbolizer, filters)
    del symbolizer.names[7]
    tree = LiveTree("program", budget_s=-1)
    snapshot = snapshot_of(table, 100)
    tree.update(snapshot, namer, weights_of(snapshot))
    symbolizer.learn({7: "late"})
    kept = tree.update(snapshot, namer, weights_of(snapshot))
    assert "late" in {step.name for step in kept.steps}
    filters.add(Rule("f1"))
    kept = tree.update(snapshot, namer, weights_of(snapshot))
    assert not any(step.name.startswith("f1") for step in kept.steps)
    assert same(kept, snapshot, namer)
