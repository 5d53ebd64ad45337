"""A simulated service with an injected clock: busy call sites, caches, and one slow leak."""

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from tests.snapshots import snapshot_of
from tests.unit.show.presentation.test_views import FakeSymbolizer
from tracelloc.heap.heap import HeapSeries
from tracelloc.heap.stacks import Stacks
from tracelloc.heap.table import LiveTable
from tracelloc.model.events import EVENT_DTYPE, EVENT_SIZE_BITS, EventKind
from tracelloc.model.figures import History
from tracelloc.model.process import Overhead, Target
from tracelloc.model.snapshotrequest import SnapshotRequest
from tracelloc.model.stacks import StackFlag
from tracelloc.model.verdicts import Findings
from tracelloc.record.symbolization.symbolizer import Symbolizer
from tracelloc.show.filters import Filters
from tracelloc.show.presentation.naming import Namers
from tracelloc.snapshots.snapshot import TraceSnapshot
from tracelloc.text import NS_PER_S
from tracelloc.verdict.judge import Judge

START_NS = 1_000 * NS_PER_S
START_S = 1_700_000_000.0
LEAKING = "keep_session"
_DEPTH = 10
_FIRST = 0x400000
_ALLOC = int(EventKind.ALLOC) << EVENT_SIZE_BITS
_FREE = int(EventKind.FREE) << EVENT_SIZE_BITS


class _Names(dict[int, str | None]):
    def __missing__(self, address: int) -> str:
        return LEAKING if address == _FIRST + 16 else f"function_{address:x}"


class ServiceNames:
    """Names of every process."""

    def symbols_of(self, _number: int) -> Symbolizer:
        return FakeSymbolizer(_Names())


def service_namers() -> Namers:
    return Namers(ServiceNames(), Filters())


@dataclass
class Service:
    """``sites`` call stacks; the first one keeps one block in ``leak_every``."""

    sites: int = 300
    per_s: float = 40.0
    step_s: float = 1.0
    leak_every: int = 40
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(5))

    def __post_init__(self) -> None:
        weight = 1 / np.arange(1, self.sites + 1)
        self._rates = weight / weight.sum() * self.per_s
        self._sizes = self.random.integers(16, 2000, self.sites)
        self._lives_s = self.random.uniform(0.5, 60.0, self.sites)
        self.stacks = Stacks()
        for site in range(1, self.sites + 1):
            # The outer functions are common to many stacks.
            outer = (_FIRST + 0x100000 + 16 * (site // 2**level) for level in range(1, _DEPTH))
            self.stacks.add(site, (_FIRST + 16 * site, *outer), StackFlag(0))
        self.table = LiveTable(self.stacks)
        self.table.cohorts.begin(START_NS)
        self.judge, self.findings = Judge(), None
        self.findings: Findings | None
        self.history, self.series = History(START_NS), HeapSeries(START_NS)
        self.now_ns = START_NS
        self._due: dict[int, list[int]] = defaultdict(list)
        """Addresses of blocks by the second in which they are freed."""
        self._address = 0x7F0000000000

    def advance(self) -> None:
        """Goes on by one step: frees what is due, allocates, judges."""
        before_s = self.now_ns // NS_PER_S
        self.now_ns += round(self.step_s * NS_PER_S)
        now_s = self.now_ns // NS_PER_S
        ended = [self._due.pop(second, []) for second in range(before_s + 1, now_s + 1)]
        freed = np.array([address for some in ended for address in some], np.uint64)
        sites = np.repeat(np.arange(self.sites), self.random.poisson(self._rates * self.step_s))
        events = np.zeros(len(freed) + len(sites), EVENT_DTYPE)
        frees, made = events[: len(freed)], events[len(freed) :]
        frees["address"], frees["size_tag"] = freed, _FREE
        made["address"] = self._address + 0x1000 * np.arange(len(sites))
        made["size_tag"] = self._sizes[sites] | _ALLOC
        made["stack_id"] = sites + 1
        events["tid"] = events["image"] = 42
        events["time_ns"] = self.now_ns
        self._address += 0x1000 * len(sites)
        lives_s = self.random.exponential(self._lives_s[sites])
        due = now_s + 1 + lives_s.astype(int)
        kept = (sites == 0) & (self.random.integers(self.leak_every, size=len(sites)) == 0)
        for address, step in zip(made["address"][~kept].tolist(), due[~kept].tolist(), strict=True):
            self._due[step].append(address)
        self.table.apply(events)
        totals = self.table.totals
        if self.judge.is_due(self.now_ns):
            looks = self.judge.judge_stacks(self.table.cohorts, totals, self.stacks, self.now_ns)
            *_, self.findings = looks
        if self.history.is_due(self.now_ns):
            self.history.sample(self.now_ns, totals.live_bytes.copy())
        if self.series.is_due(self.now_ns):
            self.series.add(self.now_ns, self.table.live_bytes, self.table.live_bytes + (8 << 20))

    def trace(self) -> TraceSnapshot:
        """What a recorder would write now."""
        one = snapshot_of(
            self.table,
            self.now_ns,
            SnapshotRequest(top=10),
            history=self.history,
            time_s=START_S + (self.now_ns - START_NS) / NS_PER_S,
            target=Target(42, "service"),
            started_ns=START_NS,
            overhead=Overhead(2 * self.per_s, None, ()),
            rss_bytes=self.table.live_bytes + (8 << 20),
            series=self.series.points(),
            findings=self.findings,
        )
        return TraceSnapshot((one,))
