"""A source with fixed data and a fixed clock: a small server with one leak.

It is driven through the real table, history and filters; only the probes and the names'
files are missing.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from textual.pilot import Pilot

from tests.snapshots import snapshot_of
from tests.ui.screens import as_test, text_of
from tests.unit.events import records
from tests.unit.show.presentation.test_views import FakeSymbolizer
from tracelloc.heap.heap import HeapSeries
from tracelloc.heap.stacks import Stacks
from tracelloc.heap.table import LiveTable
from tracelloc.model.blocks import BlockHolders, ReadSizes, SuspectHolders, UsableSizes
from tracelloc.model.codefiles import CodeModule, CodePlace, Mapping, Unresolved
from tracelloc.model.events import EventKind
from tracelloc.model.figures import History
from tracelloc.model.frames import Frame
from tracelloc.model.losses import Counter
from tracelloc.model.process import MainLibrary, MemoryUsage, Overhead, ProcessInfo, Target
from tracelloc.model.snapshotrequest import SnapshotRequest
from tracelloc.model.stacks import StackFlag
from tracelloc.model.verdicts import Findings
from tracelloc.show.filters import Filters, NamedStack
from tracelloc.show.filters.files import shipped_rules
from tracelloc.show.presentation.naming import Namer
from tracelloc.snapshots.snapshot import Snapshot, TraceSnapshot
from tracelloc.system.invoker import Invoker
from tracelloc.text import NS_PER_S
from tracelloc.ui.app import LiveApp
from tracelloc.ui.view import LastOutput, TraceFacts
from tracelloc.verdict.judge import Judge

APP = "/opt/shop/server"
START_NS = 1_000 * NS_PER_S
SECONDS = 120

Call = tuple[str, str | None, str | None, int | None]  # symbol, module, file, line

SERVE: list[Call] = [
    ("handle_request", APP, "/src/server.c", 95),
    ("serve", APP, "/src/server.c", 107),
    ("start_thread", "/usr/lib/libc.so.6", None, None),
]
LEAK, CACHE, PAGE, LOG, DNS = 1, 2, 3, 4, 5
STACKS: dict[int, list[Call]] = {
    LEAK: [("record_request", APP, "/src/server.c", 32), *SERVE],
    CACHE: [("cache_lookup", APP, "/src/cache.c", 47), *SERVE],
    PAGE: [("render_page", APP, "/src/page.c", 66), *SERVE],
    LOG: [("append_log", APP, "/src/log.c", 84), *SERVE],
    DNS: [
        ("alloc::raw_vec::finish_grow", APP, None, None),
        ("<alloc::raw_vec::RawVec<dns::Record>>::grow_one", APP, None, None),
        ("dns::Message::decode", APP, "/src/dns.rs", 12),
        ("dns::Client::update_records", APP, "/src/dns.rs", 77),
        ("tokio::runtime::task::poll", APP, None, None),
        ("main", APP, "/src/main.rs", 3),
    ],
}

MODULES: dict[str, object] = {}  # Files by path, the same ones for all processes


class Symbols(FakeSymbolizer):
    """Frames by address, and the files that they are in."""

    def place(self, address: int) -> CodePlace[CodeModule] | Unresolved:
        frame = self.names.get(address + 1)
        if frame is None or frame.module is None:
            return Unresolved.UNMAPPED
        module = MODULES.setdefault(frame.module, SimpleNamespace(path=frame.module, build_id=None))
        mapping = Mapping(0, 1 << 40, 0, True, "0:1", 1, frame.module, False)
        return CodePlace(mapping, cast(CodeModule, module), None, address)

    def peek(self, addresses: Iterable[int]) -> list[Frame]:
        return [self.names[address] for address in addresses]


@dataclass
class FakeSource:
    """See the module. ``stacks``: by stack id, innermost call first."""

    stacks: dict[int, list[Call]]
    directory: Path
    target: Target = field(default_factory=lambda: Target(2954, "shop-server"))
    now_ns: int = START_NS
    rss_bytes: int | None = 24 << 20
    memory: MemoryUsage | None = None
    sample_bytes: int | None = None
    lost: int = 0
    allocator: MainLibrary | None = None  # Whose sizes blocks have
    failure: BaseException | None = None
    others: tuple[Snapshot, ...] = ()  # Other processes
    change: Callable[[Snapshot], Snapshot] = lambda one: one  # Of the first one's snapshots
    has_many: bool = False
    has_python: bool = False
    writes_files: bool = True
    advice: str | None = None
    last_output: LastOutput | None = None
    recorded: None = None
    taken: int = 0
    facts: TraceFacts = field(
        default_factory=lambda: TraceFacts(
            ("libc.so.6",), ("malloc in /usr/lib/libc.so.6",), "uprobe sessions", 1 << 17
        )
    )

    def list_processes(self) -> list[ProcessInfo]:
        return []

    def __post_init__(self) -> None:
        known = Stacks()
        frames: dict[int, Frame] = {}
        addresses: dict[Call, int] = {}
        for stack_id, calls in self.stacks.items():
            for call in calls:
                if call not in addresses:
                    address = addresses[call] = 0x1000 * (len(addresses) + 1)
                    symbol, module, file, line = call
                    frames[address] = Frame(
                        address, symbol, symbol, 4, 16, module, address, None, file, line
                    )
            known.add(stack_id, tuple(addresses[call] for call in calls), StackFlag(0))
        self.table = LiveTable(known, self.sample_bytes)
        self.table.cohorts.begin(START_NS)
        self.judge = Judge()
        self.findings: Findings | None = None
        self.holders: dict[int, BlockHolders] = {}
        self.history = History(START_NS)
        self.series = HeapSeries(START_NS)
        self.invoker = Invoker(os.geteuid(), os.getegid(), self.directory, self.directory)
        self.filters = Filters([shipped_rules()])
        self._namer = Namer(Symbols(frames), self.filters)
        self.next_address = 0x7F0000001000

    def apply(self, events: list[tuple[EventKind, int, int, int, int]]) -> None:
        """Events at the current moment."""
        self.table.apply(records(events, self.now_ns))

    def allocate(self, stack: int, size: int, tid: int = 101) -> int:
        address = self.next_address
        self.next_address += 0x1000
        self.apply([(EventKind.ALLOC, address, size, stack, tid)])
        return address

    def allocate_many(self, stack: int, size: int, count: int, tid: int = 101) -> None:
        first = self.next_address
        self.next_address += 0x1000 * count
        self.apply([(EventKind.ALLOC, first + 0x1000 * n, size, stack, tid) for n in range(count)])

    def free(self, address: int) -> None:
        self.apply([(EventKind.FREE, address, 0, 0, 101)])

    def pass_second(self) -> None:
        self.now_ns += NS_PER_S
        live = self.table.totals.live_bytes
        if self.history.is_due(self.now_ns):
            self.history.sample(self.now_ns, live)
        if self.judge.is_due(self.now_ns):
            table = self.table
            looks = self.judge.judge_stacks(table.cohorts, table.totals, table.stacks, self.now_ns)
            *_, self.findings = looks
        if self.series.is_due(self.now_ns):
            self.series.add(self.now_ns, int(live.sum()), self.rss_bytes)

    def take_snapshot(self, wanted: SnapshotRequest) -> TraceSnapshot:
        if self.failure is not None:
            raise self.failure
        self.taken += 1
        return TraceSnapshot((self.change(self.snapshot(wanted)), *self.others))

    def snapshot(self, wanted: SnapshotRequest) -> Snapshot:
        return snapshot_of(
            self.table,
            self.now_ns,
            wanted,
            history=self.history,
            lost={Counter.LOST_FREES: self.lost},
            target=self.target,
            started_ns=START_NS,
            overhead=Overhead(26_800.0, 0.09, ()),
            rss_bytes=self.rss_bytes,
            memory=self.memory,
            series=self.series.points(),
            findings=self.findings,
            facets={"holders": SuspectHolders(self.holders)},
            thread_names={101: "worker-1", 102: "worker-2"},
        )

    def measured(self, snapshot: Snapshot) -> Snapshot:
        if self.allocator is None:
            return snapshot
        return replace(snapshot, usable=UsableSizes(self.allocator, ReadSizes()))

    def ring_share(self) -> float:
        return 0.02

    def namer(self, _target: Target) -> Namer:
        return self._namer

    def symbol_advice(self, _target: Target, _stack: NamedStack) -> str | None:
        """Advice that a test asks for."""
        return self.advice

    def read_source(self, _target: Target, path: str) -> list[str]:
        if path == "/src/server.c":
            return [f"int line_{n};" for n in range(1, 200)]
        raise FileNotFoundError(2, "No such file or directory")


def shop(directory: Path, **options: Any) -> FakeSource:
    """Two minutes of a server that leaks 160 bytes with each of 20 requests per second."""
    source = FakeSource(STACKS, directory, **options)
    cache = []
    source.allocate(LOG, 32 << 10)
    source.allocate(DNS, 5 << 10, tid=103)
    for second in range(SECONDS):
        source.allocate_many(LEAK, 160, 20, tid=101 + second % 2)
        cache.append(source.allocate(CACHE, 4096, tid=102))
        if len(cache) > 30:
            source.free(cache.pop(0))
        source.free(source.allocate(PAGE, 50_000))
        source.pass_second()
    return source


# Outstanding bytes by what the row says first.
LIVE = {
    "record_request": SECONDS * 20 * 160,
    "cache_lookup": 30 * 4096,
    "append_log": 32 << 10,
    "dns::Message::decode": 5 << 10,
}

Steps = Callable[[LiveApp, Pilot[int]], Awaitable[None]]


async def settle(app: LiveApp, pilot: Pilot[int]) -> None:
    """Waits until everything that was asked for is drawn."""
    calm = 0
    for _ in range(5000):
        # Not pause(): that sleeps until the processor is idle, fifty times as long.
        await pilot._wait_for_screen()
        # A screen that was just put on top has no picture yet.
        has_screen = app.screen.is_mounted and app.screen._compositor.size
        is_calm = has_screen and app.refresher.is_settled and not _has_messages(app)
        calm = calm + 1 if is_calm else 0
        if calm == 3 or not app.is_running:
            return
        await asyncio.sleep(0 if calm else 0.001)
    raise AssertionError("never settled")


def _has_messages(app: LiveApp) -> bool:
    """Whether a key, or what followed from it, is still on its way from widget to widget.

    A change of layout is on its way until its widgets have been resized. (A screen below another
    one is laid out when it is on top again.)
    """
    shown = app.screen, *app.screen.walk_children()
    return any(widget._layout_required for widget in shown) or any(
        node._message_queue.qsize() or node._next_callbacks
        for node in (app, *app.screen_stack, *shown)
    )


async def until(app: LiveApp, pilot: Pilot[int], holds: Callable[[], bool]) -> None:
    """Waits until this holds: after a resize, the screen is laid out anew a frame or two later."""
    for _ in range(1000):
        await settle(app, pilot)
        if holds():
            return
        await asyncio.sleep(0.002)
    raise AssertionError("\n".join(text_of(app)))


async def press(app: LiveApp, pilot: Pilot[int], *keys: str) -> None:
    """Keys one by one, each with all its consequences."""
    for key in keys:
        app.simulate_key(key)
        await settle(app, pilot)


async def tick(app: LiveApp, pilot: Pilot[int]) -> None:
    """A new snapshot, as the clock would ask for one."""
    app.refresher.ask(app.state.settings, tick=True)
    await settle(app, pilot)


@asynccontextmanager
async def live(
    source: FakeSource,
    size: tuple[int, int] = (120, 40),
    *,
    notifications: bool = False,
    together: bool = False,
) -> AsyncIterator[tuple[LiveApp, Pilot[int]]]:
    """The application on a source, and its pilot, until the block ends.

    ``together``: whether it begins to show all processes once there are two.
    """
    app = LiveApp(source, interval_s=None)
    app.state.has_chosen_process |= not together
    async with app.run_test(size=size, notifications=notifications) as pilot:
        await settle(app, pilot)
        yield app, pilot


def drive(source: FakeSource, steps: Steps, *size: tuple[int, int], **options: bool) -> LiveApp:
    """Runs the application on a source and does the steps. Returns it, ended."""

    async def run() -> LiveApp:
        async with live(source, *size, **options) as (app, pilot):
            await steps(app, pilot)
        return app

    return asyncio.run(run())


def on_live_screen(
    size: tuple[int, int] = (120, 40), **options: bool
) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Makes a test of a coroutine: on the screen of the fixture ``source``; see ``live``."""

    def decorate(coroutine: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        wants_source = "source" in signature(coroutine).parameters

        def run(source: FakeSource, **fixtures: Any) -> None:
            given = {**fixtures, "source": source} if wants_source else fixtures
            drive(source, partial(coroutine, **given), fixtures.get("size", size), **options)

        return as_test(run, coroutine, needs="source")

    return decorate
