"""Traces of a made-up program to be recorded, and what makes two snapshots equal."""

from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.corpus.replay import START_NS, events_of, looks, stacks_of
from tests.corpus.streams import churn, every, leak, poisson, some_leak
from tests.snapshots import snapshot_of
from tests.unit.show.presentation.test_views import FakeSymbolizer
from tracelloc.heap.heap import HeapSeries
from tracelloc.heap.stacks import Stacks
from tracelloc.model.figures import History
from tracelloc.model.losses import Counter
from tracelloc.model.process import (
    FollowCounts,
    FoundLibrary,
    MallocLibrary,
    MemoryLimit,
    MemoryUsage,
    Overhead,
    ResidentMemory,
    Target,
)
from tracelloc.model.snapshotrequest import SnapshotRequest
from tracelloc.model.stacks import CallStacks
from tracelloc.record.mallocs.families import LIBC
from tracelloc.record.symbolization.symbolizer import Symbolizer
from tracelloc.show.filters import Filters
from tracelloc.show.presentation.naming import Namers
from tracelloc.show.recording.reader import RecordedTrace
from tracelloc.show.recording.writer import RecordingWriter
from tracelloc.snapshots.snapshot import Snapshot, TraceSnapshot
from tracelloc.text import NS_PER_S

START_S = 1_700_000_000.0
_FIVE = SnapshotRequest(top=5)


class FakeNames:
    """Names of each process."""

    def __init__(self, names: dict[int, str | None]) -> None:
        self._symbols = FakeSymbolizer(names)

    def symbols_of(self, _number: int) -> Symbolizer:
        return self._symbols


@cache
def program(end_s: float) -> tuple[Any, Stacks, dict[int, str | None]]:
    """(events, stacks, names) of a program with a leak and a busy site."""
    random = np.random.default_rng(7)
    busy = churn(random, poisson(random, 20, 0, end_s), 0.5, 100)
    sites = {
        "record_request/serve": some_leak(random, busy, 0.05),
        "parse/serve": churn(random, poisson(random, 30, 0, end_s), 0.2, 64),
        "late/serve": leak(random, every(7.0, 20.0, end_s), 3000),
    }
    stacks = stacks_of(list(sites))
    names: dict[int, str | None] = {0x401000: "main"}
    for index, site in enumerate(sites, 1):
        names.update(zip(stacks.frames(index) or (), site.split("/"), strict=False))
    return events_of(list(sites.values()), end_s), stacks, names


def namers(end_s: float) -> Namers:
    return Namers(FakeNames(program(end_s)[2]), Filters())


@cache
def traces(end_s: float) -> list[TraceSnapshot]:
    """The program at each look, every 5 s."""
    return list(traces_one_by_one(end_s))


def traces_one_by_one(end_s: float) -> Iterator[TraceSnapshot]:
    """The same, each made when it is asked for, beside a child that has ended."""
    events, stacks, _ = program(end_s)
    history, series = History(START_NS), HeapSeries(START_NS)
    found = FoundLibrary(LIBC.name, "/lib/libc.so.6", ("malloc", "free"), (), MallocLibrary.GLIBC)
    resident = ResidentMemory(1 << 20, 2 << 20, 0, 0)
    for time_s, table, findings in looks(events, stacks, end_s):
        now_ns = START_NS + int(time_s * NS_PER_S)
        if history.is_due(now_ns):
            history.sample(now_ns, table.totals.live_bytes)
        series.add(now_ns, table.live_bytes, 64 << 20)
        one = snapshot_of(
            table,
            now_ns,
            _FIVE,
            history=history,
            lost={Counter.LOST_FREES: int(time_s)},
            time_s=START_S + time_s,
            target=Target(42, "serv\x1b[31mer"),
            started_ns=START_NS,
            overhead=Overhead(10.0, None, ("realloc",)),
            cpu_cores=0.1 + 0.2,
            rss_bytes=64 << 20,
            memory=MemoryUsage(
                replace(resident, anonymous=int(time_s)), resident, None,
                MemoryLimit("cgroup", 1 << 30, 1 << 29), ((START_NS, 5), (now_ns, 6)),
            ),
            series=series.points(),
            allocators=(found,),
            findings=findings,
            stack_methods={"/opt/app": "unwind entries"},
            thread_names={42: "main"},
        )  # fmt: skip
        child = replace(one, target=Target(43, "child", 42, 1, 1, True), findings=None, series=None)
        yield TraceSnapshot((one, child), 3, FollowCounts(2, 1, 5))


def record(
    path: Path, every: Iterable[TraceSnapshot], end_s: float, about: dict[str, str] | None = None,
    *, max_bytes: int = 200 << 20, max_s: float = 1e9,
) -> RecordedTrace:  # fmt: skip
    """Records traces of the program, which runs until then, and opens what was written."""
    writer = RecordingWriter(path, max_bytes=max_bytes, max_s=max_s)
    writer.describe(about or {})
    for trace in every:
        writer.add(trace, namers(end_s))
    writer.close()
    return RecordedTrace(path)


def recorded_run(every: Iterator[TraceSnapshot], end_s: float, **more: Any) -> Any:
    """A stand-in for a ``Run`` with these snapshots, for ``Recorder``."""
    known = {
        "options": SimpleNamespace(wanted=SnapshotRequest(), duration_s=10.0),
        "session": SimpleNamespace(root=SimpleNamespace(target=Target(42, "server"))),
        "snapshots": SimpleNamespace(take_snapshot=lambda *_: next(every)),
        "namers": namers(end_s),
        "watch": SimpleNamespace(has_rules=False, leak_count=0),
        "say_what_is_traced": lambda: None,
    }
    return SimpleNamespace(**known | more)


def assert_equal(found: Any, wanted: Any, where: str = "trace") -> None:
    """Everything in it, but for what recordings do not keep."""
    if isinstance(wanted, np.ndarray):
        assert found.dtype == wanted.dtype, where
        # Equal bits: NaN is equal to NaN here.
        assert found.tobytes() == wanted.tobytes(), where
    elif isinstance(wanted, CallStacks):
        assert len(found) >= len(wanted), where
        for index in range(len(wanted)):
            assert found.frames(index) == wanted.frames(index), where
            assert found.flags(index) == wanted.flags(index), where
    elif isinstance(wanted, History):
        assert_equal(found.times_ns, wanted.times_ns, where)
        for time_ns in wanted.times_ns:
            assert_equal(found.at(time_ns), wanted.at(time_ns), f"{where} {time_ns}")
    elif is_dataclass(wanted):
        assert type(found) is type(wanted), where
        for field in fields(wanted):
            name = field.name
            if isinstance(wanted, Snapshot) and name in ("blocks", "usable", "threads"):
                assert getattr(found, name) is None
                continue
            assert_equal(getattr(found, name), getattr(wanted, name), f"{where}.{name}")
    elif isinstance(wanted, tuple | list) and wanted and is_dataclass(wanted[0]):
        assert len(found) == len(wanted), where
        for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
            assert_equal(one, other, f"{where}[{number}]")
    else:
        assert found == wanted, where
