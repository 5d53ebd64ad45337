"""All processes of a trace as one: every figure against the sums of theirs."""

import random
from collections import Counter as Tally
from dataclasses import dataclass, field, fields, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tests.snapshots import snapshot_of
from tests.unit.events import A, F, records
from tests.unit.leaks import HANDLERS, LEAK, SESSIONS, watched
from tests.unit.show.presentation.test_views import FakeSymbolizer
from tests.unit.stage import Stages
from tracelloc.heap.stacks import Stacks
from tracelloc.heap.table import LiveTable
from tracelloc.model.codefiles import CodeModule, CodePlace, Unresolved
from tracelloc.model.figures import HeapPoints, History, Totals
from tracelloc.model.losses import Counter
from tracelloc.model.process import ALL_PROCESSES, Overhead, Target
from tracelloc.model.snapshotrequest import TOTALS_ONLY, SnapshotRequest
from tracelloc.model.stacks import Frames, StackFlag
from tracelloc.model.verdicts import VERDICTS, Verdict
from tracelloc.record.mallocs.discovery import Module
from tracelloc.show.analysis.merge import TraceMerger
from tracelloc.show.filters import Filters
from tracelloc.show.presentation.naming import MergedSymbols, Namer
from tracelloc.snapshots.snapshot import Snapshot, TraceSnapshot
from tracelloc.text import NS_PER_S
from tracelloc.verdict.evidence import stack_judgement

EVERYTHING = SnapshotRequest(blocks=True, threads=True)
PAGE = 4096
PROGRAM, LIBRARY = (cast(Module, SimpleNamespace(path=path)) for path in ("/app", "/lib"))
NO_SUMS = ("peak_bytes", "first_ns", "last_ns", "sample_bytes")
SUMS = [column.name for column in fields(Totals) if column.name not in NO_SUMS]
WHOLE = StackFlag(0)


@dataclass
class Spaces:
    """Where processes have files mapped: by number, (first page, file) with 8 pages each."""

    maps: dict[int, list[tuple[int, Module]]] = field(default_factory=dict)
    asked: int = 0

    def place(self, target: Target, address: int) -> CodePlace[CodeModule] | Unresolved:
        self.asked += 1
        for first, module in self.maps.get(target.number, ()):
            offset = address - first * PAGE
            if 0 <= offset < 8 * PAGE:
                return CodePlace(cast(Any, None), module, None, offset)
        return Unresolved.UNMAPPED


def figures(one: Snapshot, key_of: Any) -> dict[Any, list[int]]:
    """Sums of the totals by what ``key_of`` makes of a stack's frames; only what has any."""
    found: dict[Any, list[int]] = {}
    columns = [getattr(one.totals, name).tolist() for name in SUMS]
    for index in np.flatnonzero(one.totals.allocated_count).tolist():
        key = key_of(one.frames(index)), int(one.stacks.flags(index))
        row = found.setdefault(key, [0] * len(SUMS))
        for at, column in enumerate(columns):
            row[at] += column[index]
    return found


def added(parts: list[dict[Any, list[int]]]) -> dict[Any, list[int]]:
    whole: dict[Any, list[int]] = {}
    for part in parts:
        for key, row in part.items():
            old = whole.get(key, [0] * len(row))
            whole[key] = [a + b for a, b in zip(old, row, strict=True)]
    return whole


class Checker:
    """Merges, and compares with the processes."""

    def __init__(self, spaces: Spaces) -> None:
        self.spaces = spaces
        self.merger = TraceMerger(spaces.place)
        self.frames: dict[int, Frames] = {}
        self.families: dict[tuple[int, int], int] = {}
        """By process and program: those that were forked off one another have one."""

    def key_of(self, target: Target, frames: Frames) -> Any:
        """The places of a process's addresses."""
        found = []
        for address in frames:
            place = self.spaces.place(target, address - 1)
            if isinstance(place, CodePlace):
                found.append((place.module.path if place.module else "", place.file_offset))
            else:
                found.append((self.families[target.number, target.exec_count], address))
        return tuple(found)

    def merge(self, trace: TraceSnapshot) -> Snapshot:
        """Also looks that no stack's index or addresses have changed."""
        merged = self.merger.merge(trace)
        for one in trace.processes:
            target = one.target
            self.families[target.number, target.exec_count] = id(one.stacks)
        now = {index: merged.frames(index) for index in range(len(merged.totals))}
        assert {index: now[index] for index in self.frames} == self.frames
        self.frames = now
        expected = added(
            [figures(one, lambda f, t=one.target: self.key_of(t, f)) for one in trace.processes]
        )

        def merged_key(frames: Frames) -> Any:
            owners = [self.merger.locations.owner(address) for address in frames]
            return tuple(self.key_of(o[0], (o[1],))[0] if o else None for o in owners)

        assert figures(merged, merged_key) == expected
        for name in ("live_bytes", "live_count", "events"):
            assert getattr(merged, name) == sum(getattr(one, name) for one in trace.processes)
        return merged


def test_a_family_is_the_sum_of_its_members(stage: Stages) -> None:
    """Forks, programs, ends and events in any order; stacks in files and outside of them."""
    rng = random.Random(5)
    at = stage()
    # The first one's children have its layout, programs that they begin have their own.
    spaces = Spaces({0: [(16, PROGRAM), (32, LIBRARY)]})
    checker = Checker(spaces)
    pids, blocks, next_address = [at.root], {at.root: {}}, 1 << 20
    numbers = {at.root: 0}
    for step in range(120):
        pid = rng.choice(pids)
        way = rng.random()
        if way < 0.05 and len(pids) < 6:
            child = at.start()
            at.fork(at.image(pid), pid)
            at.session.forked(pid, pid, child, shares=False)
            numbers[child] = at.now()[child].target.number
            spaces.maps[numbers[child]] = list(spaces.maps[numbers[pid]])
            pids.append(child)
            blocks[child] = dict(blocks[pid])
        elif way < 0.08 and pid != at.root:
            at.session.executed(pid, same_thread=True)
            first = 64 * (step + 1)
            spaces.maps[numbers[pid]] = [(first, PROGRAM), (first + 16, LIBRARY)]
            blocks[pid] = {}
        elif way < 0.10 and len(pids) > 3 and pid != at.root:
            at.session.ended(pid, 0)
            pids.remove(pid)
        else:
            events = []
            stacks = set()
            for _ in range(rng.randrange(1, 12)):
                if blocks[pid] and rng.random() < 0.4:
                    address = rng.choice(list(blocks[pid]))
                    events.append((F, address, 0, 0, pid))
                    del blocks[pid][address]
                    continue
                first, _ = rng.choice(spaces.maps[numbers[pid]])
                stack = first * PAGE + rng.randrange(1, 40) if rng.random() < 0.9 else 7
                stacks.add(stack)
                next_address += 16
                blocks[pid][next_address] = stack
                events.append((A, next_address, rng.randrange(1, 99), stack, pid))
            at.play(at.image(pid), *events, stacks=tuple(stacks))
        if step % 3 == 0:
            trace = at.session.snapshot(EVERYTHING)
            merged = checker.merge(trace)
            check_the_rest(merged, trace)
    assert len(trace.processes) > 4
    assert 0 < merged.merged.ended_count < len(trace.processes)
    # Programs share what they have in the same files: there are far fewer stacks than theirs.
    assert len(merged.totals) < sum(len(one.totals) for one in trace.processes) / 2


def check_the_rest(merged: Snapshot, trace: TraceSnapshot) -> None:
    ones = trace.processes
    found = merged.blocks
    theirs = [one.blocks for one in trace.living if one.blocks is not None]
    assert Tally(zip(found.address.tolist(), found.size.tolist(), strict=True)) == Tally(
        pair for b in theirs for pair in zip(b.address.tolist(), b.size.tolist(), strict=True)
    )
    # Of each stack as many blocks as its totals say, those of the living.
    counts = np.bincount(found.stack, minlength=len(merged.totals))
    ended = sum(one.live_count for one in ones if one.target.has_ended)
    assert int((merged.totals.live_count - counts).sum()) == ended
    assert (merged.totals.live_count >= counts).all()
    growth = sum(int(one.growth_per_min.sum()) for one in trace.living)
    assert int(merged.growth_per_min.sum()) == growth
    for name in ("allocated_bytes", "allocated_count", "freed_bytes", "freed_count"):
        assert sum(getattr(work, name) for work in merged.threads.threads) == sum(
            getattr(work, name) for one in ones for work in one.threads.threads
        )
    tids = [work.tid for work in merged.threads.threads]
    assert len(tids) == len(set(tids))
    assert merged.history.held()[1].shape[1] == len(merged.totals)
    assert abs(merged.live_history[0][0]) < NS_PER_S
    assert int(merged.series.live_bytes[-1]) == merged.live_bytes
    assert merged.peak is None
    assert (merged.totals.peak_bytes >= merged.totals.live_bytes).all()


def process(number: int, table: LiveTable, now_s: int = 10, **fields: Any) -> Snapshot:
    has_ended, wanted = fields.pop("ended", False), fields.pop("wanted", EVERYTHING)
    target = Target(100 + number, "worker", 100, number=number, has_ended=has_ended)
    return snapshot_of(table, now_s * NS_PER_S, wanted, target=target, **fields)


def table_of(*stacks: Frames, sizes: int = 100, flags: StackFlag = WHOLE) -> LiveTable:
    """A block of ``sizes`` bytes and more by each stack."""
    known = Stacks()
    for number, frames in enumerate(stacks, 1):
        known.add(number, frames, flags)
    table = LiveTable(known)
    table.apply(records([(A, n * 16, sizes + n, n, 7) for n in range(1, len(stacks) + 1)]))
    return table


def merged_of(spaces: Spaces, *ones: Snapshot) -> Snapshot:
    return TraceMerger(spaces.place).merge(TraceSnapshot(ones))


@pytest.fixture
def spaces() -> Spaces:
    """Two processes that have the same two files at different addresses."""
    return Spaces({0: [(16, PROGRAM), (64, LIBRARY)], 1: [(64, PROGRAM), (16, LIBRARY)]})


def test_stacks_are_those_of_the_same_places(spaces: Spaces) -> None:
    at, other = 16 * PAGE, 64 * PAGE
    first = table_of((at + 1, at + 50), (at + 1, other + 9), (at + 1, 3))
    second = table_of((other + 1, other + 50), (other + 1, at + 9), (other + 1, 3))
    merger = TraceMerger(spaces.place)
    merged = merger.merge(TraceSnapshot((process(0, first), process(1, second))))
    # What lies in no file is nobody else's.
    assert merged.totals.live_count.tolist() == [0, 2, 2, 1, 1]
    assert merged.totals.live_bytes.tolist() == [0, 202, 204, 103, 103]
    # The first one's addresses stay, as nothing else has them by then.
    assert [merged.frames(index) for index in (1, 2, 3)] == [
        first.stacks.frames(index) for index in (1, 2, 3)
    ]
    made_up = merged.frames(4)[1]
    assert made_up != 3
    owner = merger.locations.owner(made_up)
    assert (owner[0].number, owner[1]) == (1, 3)
    # Addresses are looked up once per page, not per stack or time.
    asked = spaces.asked
    second.apply(records([(A, 999, 5, 1, 7)], 50))
    merged = merger.merge(TraceSnapshot((process(0, first), process(1, second))))
    assert merged.totals.live_count.tolist() == [0, 3, 2, 1, 1]
    assert spaces.asked == asked


def test_stacks_that_end_differently_stay_apart(spaces: Spaces) -> None:
    frames = (16 * PAGE + 1,)
    spaces.maps[1] = spaces.maps[0]
    whole, cut = table_of(frames), table_of(frames, flags=StackFlag.TRUNCATED)
    merged = merged_of(spaces, process(0, whole), process(1, cut))
    assert merged.totals.live_count.tolist() == [0, 1, 1]
    assert [merged.why_partial(index) is None for index in (1, 2)] == [True, False]
    assert merged.truncated_stacks == 1


def test_a_stack_gets_its_frames_later(spaces: Spaces) -> None:
    table = LiveTable(Stacks())
    table.apply(records([(A, 16, 10, 5, 7)]))
    merger = TraceMerger(spaces.place)
    trace = TraceSnapshot((process(0, table), process(1, table_of((70 * PAGE,)))))
    merged = merger.merge(trace)
    assert (merged.frames(1), merged.unknown_stacks) == ((), 1)
    table.stacks.add(5, (16 * PAGE + 4,), StackFlag(0))
    merged = merger.merge(TraceSnapshot((process(0, table), trace.processes[1])))
    assert (merged.frames(1), merged.unknown_stacks) == ((16 * PAGE + 4,), 0)


def test_names_come_from_a_process_that_has_the_file(spaces: Spaces) -> None:
    at, other = 16 * PAGE, 64 * PAGE
    named: dict[int, FakeSymbolizer] = {
        0: FakeSymbolizer({at + 1: "zero", at + 2: "zero"}),
        1: FakeSymbolizer({other + 1: "one", other + 2: "one", other + 3: "new"}),
    }
    namers = {number: Namer(symbols, Filters()) for number, symbols in named.items()}
    merger = TraceMerger(spaces.place)
    ones = (process(0, table_of((at + 1, at + 2))), process(1, table_of((other + 1, other + 2))))
    merged = merger.merge(TraceSnapshot(ones))
    symbols = MergedSymbols(merger.locations, lambda target: namers[target.number])
    namer = Namer(symbols, namers[0].filters)
    assert namer.prepare(merged, [1], 1.0)
    frames = namer.stack(merged, 1).frames
    assert [(f.symbol, f.address) for f in frames] == [("zero", at + 1), ("zero", at + 2)]
    # The first one begins another program: the second one knows the names, too.
    begun = replace(ones[0].target, exec_count=1)
    spaces.maps[0] = []
    first = replace(process(0, table_of((3,))), target=begun)
    merged = merger.merge(TraceSnapshot((first, ones[1])))
    named[0].version = 1
    namer = namer.copy()
    frames = namer.stack(merged, 1).frames
    assert [(f.symbol, f.address) for f in frames] == [("one", at + 1), ("one", at + 2)]
    # And when nobody has the place any more, it is said that there is none.
    spaces.maps[1] = []
    second = replace(process(1, table_of((3,))), target=replace(ones[1].target, exec_count=1))
    merger.merge(TraceSnapshot((first, second)))
    frames = namer.copy().stack(merged, 1).frames
    assert [f.reason for f in frames] == [Unresolved.UNMAPPED] * 2


def test_losses_of_the_capture_count_once(spaces: Spaces) -> None:
    lost = {Counter.LOST_FREES: 5, Counter.SPILL_UNMATCHED: 3, Counter.MISSES: 9}
    table = table_of((16 * PAGE,))
    table.apply(records([(F, 4711, 0, 0, 7), (F, 4712, 0, 0, 7)], 50))
    ones = [process(number, table, lost=lost) for number in range(3)]
    merged = merged_of(spaces, *ones)
    assert merged.losses.events == 5
    assert merged.losses.counters == ones[0].losses.counters
    assert merged.losses.oddities.unmatched_frees == 3 + 3 * 2


def test_who_has_ended_is_remembered(spaces: Spaces) -> None:
    """Its memory and growth are no more; what it held is, with threads or without."""
    growing = History(0)
    table = table_of((16 * PAGE + 1,), (16 * PAGE + 2,))
    alike = {"rss_bytes": 5 << 20, "history": growing, "overhead": Overhead(10.0, 0.5, ())}
    points = HeapPoints(
        *(np.array(c) for c in ([0, NS_PER_S], [0, 80], [1 << 20, 2 << 20], [0, 5], [0, 7]))
    )
    left = {"ended": True, "series": points, "history": growing}
    ended = process(2, table, 4, **left, overhead=Overhead(9.0, 0.5, ()))
    spaces.maps[2] = spaces.maps[0]
    root = process(0, table, **alike, series=points)
    merger = TraceMerger(spaces.place)
    for wanted in (TOTALS_ONLY, EVERYTHING, TOTALS_ONLY):
        one = process(0, table, **alike, series=points, wanted=wanted)
        # It had been asked for its memory shortly before its end.
        gone = process(2, table, 4, **left, wanted=wanted, rss_bytes=1 << 20)
        for _ in range(2):
            merged = merger.merge(TraceSnapshot((one, gone)))
            assert (merged.live_bytes, merged.live_count) == (2 * 203, 4)
            assert merged.rss_bytes == root.rss_bytes
            assert merged.overhead == root.overhead
            assert int(merged.growth_per_min.sum()) == int(root.growth_per_min.sum()) > 0
            assert merged.target.number == ALL_PROCESSES
            assert (merged.merged.ended_count, merged.merged.ended_bytes) == (1, 203)
            assert (merged.threads is None) == (wanted is TOTALS_ONLY)
            if merged.threads is not None:
                assert [work.allocated_count for work in merged.threads.threads] == [4]
            assert merged.series.time_ns.tolist()[-2:] == [4 * NS_PER_S, 10 * NS_PER_S]
            assert merged.series.live_bytes.tolist()[-3:] == [160, 80 + 203, 406]
            assert merged.series.rss_bytes.tolist()[-3:] == [4 << 20, 2 << 20, 5 << 20]
    alone = merger.merge(TraceSnapshot((replace(ended, target=root.target), ended)))
    assert alone.rss_bytes is None


def test_the_past_is_the_sum_of_pasts(spaces: Spaces) -> None:
    """Each held at any moment what it held at its sample before."""
    spaces.maps[2] = spaces.maps[0]
    table = table_of((16 * PAGE + 1,), (16 * PAGE + 2,))
    first, second = History(0), History(2 * NS_PER_S + 5, np.array([0, 7]))
    for n in range(1, 9):
        first.sample(n * NS_PER_S, np.array([0, n, 10 * n]))
        second.sample((n + 2) * NS_PER_S + 5, np.array([0, 100 * n]))
    ones = process(0, table, 12, history=first), process(2, table, 12, history=second)
    history = merged_of(spaces, *ones).history
    held = dict(zip(*history.series(1), strict=True))
    assert held[0] == 0
    assert held[2 * NS_PER_S] == 2
    assert held[2 * NS_PER_S + 5] == 2 + 7
    assert held[5 * NS_PER_S + 5] == 5 + 300
    assert held[10 * NS_PER_S + 5] == 8 + 800
    assert list(zip(*history.series(2), strict=True))[-1] == (10 * NS_PER_S + 5, 80)


def test_long_pasts_keep_their_ends(spaces: Spaces) -> None:
    """However long the machine has been up: more nanoseconds than float64 has room for."""
    start_ns = (1 << 54) + 1
    table = table_of((16 * PAGE + 1,))
    parts = []
    for number in range(40):
        history = History(start_ns + number)
        for n in range(30):
            history.sample(start_ns + 2 * NS_PER_S * (n + 1) + number, np.array([0, n]))
        times = start_ns + number + np.arange(500) * NS_PER_S
        series = HeapPoints(
            times, np.arange(500), np.full(500, 7), np.full(500, 3), np.full(500, 2)
        )
        spaces.maps[number] = spaces.maps[0]
        one = process(number, table, history=history, series=series)
        now_ns = int(times[-1]) + 1
        parts.append(replace(one, now_ns=now_ns, started_ns=now_ns - 500 * NS_PER_S))
    merged = merged_of(spaces, *parts)
    assert 500 < len(merged.series) <= 600
    assert int(merged.series.kept_bytes[-1]) == 40 * 3
    assert int(merged.series.object_bytes[-1]) == 40 * 2
    assert int(merged.series.time_ns[-1]) == parts[-1].now_ns
    assert int(merged.series.live_bytes[-1]) == merged.live_bytes
    times, held = merged.history.series(1)
    assert len(times) <= 32
    assert (times[-1], held[-1]) == (start_ns + 60 * NS_PER_S + 39, 40 * 29)


def test_names_and_workers() -> None:
    one = watched().snapshot()
    spaces = Spaces({number: [(0x3FF, PROGRAM)] for number in range(2)})
    gone = replace(one, target=replace(one.target, number=1, has_ended=True))
    merger = TraceMerger(spaces.place)
    rates = []
    for root in (one, replace(one, target=replace(one.target, has_ended=True))):
        found = merger.merge(TraceSnapshot((root, gone))).findings
        rates.append(sum(s.judgement.rate_bytes_per_min for s in found.suspects))
    assert rates[1] == pytest.approx(2 * rates[0])
    # The worst verdict, with the rates of all; a stack only one has is told as by itself.
    old, young = watched(), watched(100.0)
    ones = []
    for number, found in enumerate((young, old, old)):
        one = found.snapshot()
        if found is young:
            # Large as it is, the worse verdict of the others counts.
            sites = found.findings.sites
            sites = replace(sites, alive_bytes=sites.alive_bytes * 1000)
            one = replace(one, findings=replace(found.findings, sites=sites))
        ones.append(replace(one, target=replace(one.target, number=number)))
    spaces = Spaces({number: [(0x3FF, PROGRAM)] for number in range(3)})
    merged = merged_of(spaces, *ones)
    findings = merged.findings
    places = {merged.frames(index): index for index in range(1, len(merged.totals))}
    leak = places[ones[0].frames(LEAK)]
    sessions = {places[ones[0].frames(index)] for index in SESSIONS}
    assert len(sessions) == HANDLERS

    mine = findings.suspect_of[leak].judgement
    theirs = [one.findings.suspect_of[LEAK].judgement for one in ones]
    assert [t.verdict for t in theirs] == [Verdict.GROWING, Verdict.LEAKING, Verdict.LEAKING]
    assert mine.verdict is Verdict.LEAKING
    assert mine.rate_bytes_per_min == pytest.approx(sum(t.rate_bytes_per_min for t in theirs))
    assert mine.survivors == sum(t.survivors for t in theirs)
    assert mine.evidence.startswith(theirs[1].evidence)
    assert mine.evidence.endswith(" (the worst of 3 processes)")
    assert VERDICTS[findings.codes[leak]] is Verdict.LEAKING
    own_rates = [float(one.findings.sites.rate_bytes_per_min[LEAK]) for one in ones]
    assert findings.sites.rate_bytes_per_min[leak] == pytest.approx(sum(own_rates))
    group = findings.suspect_of[min(sessions)]
    assert {member.stack for member in group.members} == sessions
    assert sum(member.share for member in group.members) == pytest.approx(1.0)
    assert len(findings.suspects) == 2
    # What one process alone says of itself is said of all.
    alone = merged_of(spaces, ones[1])
    for index in range(1, len(ones[1].totals)):
        own = next(n for n in range(len(alone.totals)) if alone.frames(n) == ones[1].frames(index))
        assert stack_judgement(alone.findings, own) == stack_judgement(ones[1].findings, index)
