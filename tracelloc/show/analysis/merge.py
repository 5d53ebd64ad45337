"""Merges the snapshots of all processes of a trace into one, by adding up every figure.

A call stack that several processes share, as forked workers do, becomes one stack. Ended
processes count with their last figures, as in the list of processes; rates and findings are
sums of running processes. Figures without a sum are missing: the peak, because each process
peaks at its own time, and the account of resident memory, because processes may share pages.
The peak of a stack is the largest of any process, a lower bound.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from tracelloc.dataclass import dataclass, field, fields, replace
from tracelloc.heap.heap import POINTS
from tracelloc.heap.stacks import Stacks
from tracelloc.model.blocks import Blocks, BlockSelection, Mappings
from tracelloc.model.figures import I64, SAMPLES, HeapPoints, History, Mask, ThreadActivity, Totals
from tracelloc.model.losses import Counter, LossCounts, Oddities
from tracelloc.model.process import ALL_PROCESSES, RUNNING_PROCESSES, Overhead, Target
from tracelloc.model.stacks import NO_STACK, CallStacks, Frames, StackFlag
from tracelloc.show.analysis.locations import Locations, PlaceOf
from tracelloc.show.analysis.mergedfindings import MergedProcess, added, merged_findings
from tracelloc.snapshots.snapshot import ProcessSum, Snapshot, TraceSnapshot

_NOT_SUMS: Final = "peak_bytes", "first_ns", "last_ns", "sample_bytes"
_SUMS: Final = tuple(column.name for column in fields(Totals) if column.name not in _NOT_SUMS)
_LATE: Final = np.iinfo(np.int64).max
# The counter of all processes that each process's figure includes, by kind of anomaly.
_SPILLED: Final = {
    "unmatched_frees": Counter.SPILL_UNMATCHED,
    "address_reuses": Counter.SPILL_REUSES,
    "odd_restores": Counter.SPILL_ODD_RESTORES,
}


@dataclass(slots=True)
class _Numbers:
    stacks: CallStacks
    # Merged index by own index; -1 for stacks that have not allocated anything.
    merged: I64 = field(default_factory=lambda: np.zeros(1, np.int64))
    # Provisional ids, by own index, of stacks whose frames are not known yet.
    nameless: dict[int, int] = field(default_factory=dict)


class TraceMerger:
    """Makes merged snapshots of one trace, in which a stack keeps its index. Not thread safe."""

    def __init__(self, place_of: PlaceOf) -> None:
        # The places that the addresses in merged stacks stand for
        self.locations = Locations(place_of)
        self._stacks = Stacks()
        self._index_of: dict[tuple[Frames, int], int] = {}
        self._ids = 0
        self._numbers: dict[int, _Numbers] = {}  # Stack indices by the identity of the stacks
        # Processes whose figures `_ended_sum` includes, by number
        self._ended: dict[int, MergedProcess] = {}
        self._ended_sum: MergedProcess | None = None
        self._now_ns = 0

    def merge(self, trace: TraceSnapshot, *, running_only: bool = False) -> Snapshot:
        """Returns the sum of all processes of a trace, or of the running ones if there are any."""
        with_threads = trace.root.threads is not None
        last, before_ns, self._now_ns = self._ended_sum, self._now_ns, trace.root.now_ns
        lacks_threads = last is not None and with_threads and last.one.threads is None
        # A recording may go back to a snapshot in which these processes still ran.
        if lacks_threads or self._now_ns < before_ns:
            self._ended, self._ended_sum = {}, None
        running = [self._part(one) for one in trace.living]
        gone = (one for one in trace.processes if one.target.has_ended)
        ended = [self._part(one) for one in gone if one.target.number not in self._ended]
        if ended:
            before = [] if self._ended_sum is None else [self._ended_sum]
            whole = self._sum([*before, *ended], [])
            self._ended.update((part.one.target.number, part) for part in ended)
            every = np.arange(len(whole.totals))
            self._ended_sum = MergedProcess(whole, every, every, every)
        is_partial = running_only and bool(running)
        past = [] if self._ended_sum is None or is_partial else [self._ended_sum]
        found = self._sum([*past, *running], running)
        judged = running or list(self._ended.values())
        root = trace.root
        ended_count = 0 if is_partial else len(self._ended)
        ended_bytes = sum(part.one.live_bytes for part in past)
        return replace(
            found,
            target=replace(
                root.target, command="running processes" if is_partial else "all processes",
                number=RUNNING_PROCESSES if is_partial else ALL_PROCESSES, exec_count=0,
                has_ended=not running,
            ),
            time_s=root.time_s,
            findings=merged_findings(judged, len(self._stacks), self.locations, found),
            blocks=None if root.blocks is None else found.blocks,
            threads=found.threads if with_threads else None,
            merged=ProcessSum(
                len(running) + ended_count, ended_count, ended_bytes,
                *_owners(running, len(self._stacks)),
            ),
        )  # fmt: skip

    # Stacks.

    def _part(self, one: Snapshot) -> MergedProcess:
        numbers = self._numbers.setdefault(id(one.stacks), _Numbers(one.stacks))
        count = len(one.totals)
        if (more := count - len(numbers.merged)) > 0:
            numbers.merged = np.pad(numbers.merged, (0, more), constant_values=-1)
        merged = numbers.merged[:count]
        used = one.totals.allocated_count > 0
        if one.mappings is not None:
            used[[each.stack for each in one.mappings.stacks if each.stack < count]] = True
        self.locations.begin(one.target)
        for index in np.flatnonzero(used & (merged < 0)).tolist():
            merged[index] = self._index(one, numbers, index)
        for index, stack_id in list(numbers.nameless.items()):
            frames = one.stacks.frames(index)
            if frames is not None:
                places = self.locations.translate(one.target, frames)
                self._stacks.add(stack_id, places, one.stacks.flags(index))
                del numbers.nameless[index]
        self.locations.end(one.target)
        rows = np.flatnonzero(used)
        return MergedProcess(one, merged, rows, merged[rows])

    def _index(self, one: Snapshot, numbers: _Numbers, index: int) -> int:
        frames, flags = one.stacks.frames(index), one.stacks.flags(index)
        if frames is None:
            self._ids += 1
            numbers.nameless[index] = self._ids
            return int(self._stacks.indices(np.array([self._ids], np.uint64))[0])
        key = self.locations.translate(one.target, frames), int(flags)
        found = self._index_of.get(key)
        if found is None:
            self._ids += 1
            found = self._index_of[key] = self._stacks.add(self._ids, key[0], flags)
        return found

    # Sums.

    def _sum(self, parts: Sequence[MergedProcess], running: Sequence[MergedProcess]) -> Snapshot:
        """Returns a snapshot whose figures are sums; other attributes may be wrong."""
        ones = [part.one for part in parts]
        now_ns = max(one.now_ns for one in ones)
        start_ns = min(one.now_ns - one.elapsed_ns for one in ones)
        stacks, count = self._stacks, len(self._stacks)
        totals = _totals(parts, count)

        def count_used(of_kind: Mask) -> int:
            return int(np.count_nonzero(of_kind & (totals.allocated_count > 0)))

        growth = np.zeros(count, np.int64)
        for part in running:
            np.add.at(growth, part.at, part.one.growth_per_min[part.rows])
        sizes = [rss for one in ones if (rss := _rss_bytes(one)) is not None]
        cores = [part.one.cpu_cores for part in running if part.one.cpu_cores is not None]
        history = _history(parts, count)
        past = zip(*history.total(), strict=True)
        return Snapshot(
            target=Target(0, ""), time_s=ones[0].time_s, started_ns=start_ns,
            cpu_cores=sum(cores) if cores else None, rss_bytes=sum(sizes) if sizes else None,
            totals=totals, growth_per_min=growth, stacks=stacks,
            events=sum(one.events for one in ones),
            overhead=_overhead([part.one for part in running]), losses=_losses(ones),
            gaps=tuple(dict.fromkeys(gap for one in ones for gap in one.gaps)),
            truncated_stacks=count_used(stacks.have(StackFlag.TRUNCATED)),
            broken_stacks=count_used(stacks.have(StackFlag.BROKEN | StackFlag.UNREADABLE)),
            partial_allocations=int(totals.allocated_count[stacks.are_partial[:count]].sum()),
            unknown_stacks=count_used(stacks.are_unknown),
            unsure_stacks=sum(one.unsure_stacks for one in ones),
            top_blocks=BlockSelection(
                int(totals.live_count.sum()), int(totals.live_bytes.sum()), ()
            ),
            old_blocks=None, runtimes=tuple(dict.fromkeys(r for one in ones for r in one.runtimes)),
            allocators=tuple(dict.fromkeys(a for one in ones for a in one.allocators)),
            mappings=_mappings(parts),
            live_history=tuple((time_ns - start_ns, held) for time_ns, held in past), now_ns=now_ns,
            blocks=_blocks(running), history=history, series=_series(ones),
            temporary=ones[0].temporary, unordered_count=sum(one.unordered_count for one in ones),
            threads=_activity([one.threads for one in ones if one.threads is not None]),
            thread_names={tid: name for one in ones for tid, name in one.thread_names.items()},
            stack_methods={path: how for one in ones for path, how in one.stack_methods.items()},
        )  # fmt: skip


def _owners(running: Sequence[MergedProcess], count: int) -> tuple[I64, I64]:
    most, sharing = np.zeros((2, count), np.int64)
    main = np.full(count, -1)
    for part in running:
        own = np.zeros(count, np.int64)
        np.add.at(own, part.at, part.one.totals.live_bytes[part.rows])
        main[own > most] = part.one.target.number
        most = np.maximum(most, own)
        sharing += own > 0
    return main, sharing


def _totals(parts: Sequence[MergedProcess], count: int) -> Totals:
    found = Totals.empty(count, parts[0].one.sample_bytes)
    found.first_ns[:] = _LATE
    for part in parts:
        at, rows, own = part.at, part.rows, part.one.totals
        for name in _SUMS:
            np.add.at(getattr(found, name), at, getattr(own, name)[rows])
        np.maximum.at(found.peak_bytes, at, own.peak_bytes[rows])
        np.maximum.at(found.last_ns, at, own.last_ns[rows])
        first = own.first_ns[rows]
        np.minimum.at(found.first_ns, at, np.where(first > 0, first, _LATE))
    found.first_ns[found.first_ns == _LATE] = 0
    np.maximum(found.peak_bytes, found.live_bytes, out=found.peak_bytes)
    return found


def _rss_bytes(one: Snapshot) -> int | None:
    """Returns resident bytes; the process may have ended after they were read."""
    return None if one.target.has_ended else one.rss_bytes


def _losses(ones: Sequence[Snapshot]) -> LossCounts:
    """Merges losses; the capture's counters are global and the same for each process."""
    newest, each = max(ones, key=lambda one: one.now_ns).losses, [one.losses for one in ones]
    oddities = {
        name: newest.counters[spilled]
        + sum(getattr(own.oddities, name) - own.counters[spilled] for own in each)
        for name, spilled in _SPILLED.items()
    }
    return replace(newest, oddities=Oddities(**oddities))


def _overhead(ones: Sequence[Snapshot]) -> Overhead:
    shares = [each.overhead.probe_share for each in ones if each.overhead.probe_share is not None]
    slow = dict.fromkeys(name for each in ones for name in each.overhead.slow_probes)
    rate = sum(each.overhead.events_per_s for each in ones)
    return Overhead(rate, shares[0] if shares else None, tuple(slow))


def _blocks(parts: Sequence[MergedProcess]) -> Blocks:
    runs = []
    for part in parts:
        if part.one.blocks is not None:
            own = part.one.blocks
            stack = np.maximum(part.merged[own.stack], NO_STACK).astype(np.uint32)
            runs.append(replace(own, stack=stack))
    return Blocks.concatenate(runs)


def _mappings(parts: Sequence[MergedProcess]) -> Mappings | None:
    known = [(part, part.one.mappings) for part in parts if part.one.mappings is not None]
    if not known:
        return None
    pairs = ((part.merged, each) for part, mappings in known for each in mappings.stacks)
    stacks = (replace(each, stack=max(int(merged[each.stack]), NO_STACK)) for merged, each in pairs)
    merged = added(stacks, ("stack",), least=("oldest_ns",))
    largest = sorted(merged, key=lambda each: -each.size_bytes)
    return Mappings(tuple(largest), sum(m.of_allocators_bytes for _, m in known))


# Live bytes over time: each process has its own times, and keeps its last value in between.


def _history(parts: Sequence[MergedProcess], count: int) -> History:
    tables = [part.one.history.held() for part in parts]
    times = np.unique(np.concatenate([np.array(times, np.int64) for times, _ in tables]))
    times = times[_evenly(times, SAMPLES)]
    held = [np.zeros(count, np.int64) for _ in times]
    for part, (own_times, table) in zip(parts, tables, strict=True):
        before = np.searchsorted(np.array(own_times), times, side="right") - 1
        rows = part.rows[part.rows < table.shape[1]]
        for merged, at in zip(held, before.tolist(), strict=True):
            if at >= 0:
                np.add.at(merged, part.merged[rows], table[at, rows])
    return History.from_samples(times.tolist(), held)


def _evenly(times_ns: I64, most: int) -> I64:
    """Returns positions of at most ``most`` ascending times, evenly spaced, with the last one."""
    if len(times_ns) <= most:
        return np.arange(len(times_ns))
    # Whole numbers: float64 has no room for the nanoseconds of a hundred days.
    edges = times_ns[0] + np.arange(most) * (times_ns[-1] - times_ns[0]) // (most - 1)
    return np.unique(np.searchsorted(times_ns, edges, side="right") - 1)


def _series(ones: Sequence[Snapshot]) -> HeapPoints | None:
    """Sums the series of several processes by their changes from point to point."""
    known = [(one, one.series) for one in ones if one.series is not None]
    if not known:
        return None
    times, held, resident, seen = [], [], [], []
    kept, objects = list[I64](), list[I64]()
    for one, series in known:
        # The last point is the state of this snapshot.
        last = _rss_bytes(one)
        rss = np.append(series.rss_bytes, -1 if last is None else last)
        times.append(np.append(series.time_ns, one.now_ns))
        held.append(np.diff(np.append(series.live_bytes, one.live_bytes), prepend=0))
        resident.append(np.diff(np.maximum(rss, 0), prepend=0))
        # They were examined before, not for this snapshot.
        for sums, values in (kept, series.kept_bytes), (objects, series.object_bytes):
            sums.append(np.diff(np.append(values, values[-1:] if len(series) else 0), prepend=0))
        seen.append(np.diff((rss >= 0).astype(np.int64), prepend=0))
    time_ns = np.concatenate(times)
    order = np.argsort(time_ns, kind="stable")
    time_ns = time_ns[order]
    changes = held, resident, kept, objects, seen
    columns = [np.cumsum(np.concatenate(column)[order]) for column in changes]
    # A point includes all changes at its time.
    last_of_time = np.flatnonzero(np.append(np.diff(time_ns) > 0, True))
    chosen = last_of_time[_evenly(time_ns[last_of_time], POINTS)]
    live_bytes, rss_bytes, *more, running = (column[chosen] for column in columns)
    rss_bytes = np.where(running > 0, rss_bytes, -1)
    return HeapPoints(time_ns[chosen], live_bytes, rss_bytes, *more)


def _activity(parts: Sequence[ThreadActivity]) -> ThreadActivity | None:
    """Merges the activity of processes; None: none has any. Unknown threads share a row."""
    if not parts:
        return None
    names = {tid: name for part in parts for tid, name in part.names.items()}
    works = added((work for part in parts for work in part.threads), ("tid", "name"))
    flows = added((flow for part in parts for flow in part.flows), ("maker_tid", "ender_tid"))
    works.sort(key=lambda work: (-work.allocated_bytes, work.tid))
    flows.sort(key=lambda flow: (-flow.size_bytes, flow.maker_tid, flow.ender_tid))
    return ThreadActivity(tuple(works), tuple(flows), names)
