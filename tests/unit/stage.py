"""A session whose source replays records (``EventSource``), on processes that sleep."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest

from tests.unit.events import Event, records, sent_stacks
from tracelloc.errors import TargetError
from tracelloc.model.events import (
    EVENT_DTYPE,
    PAIR_DTYPE,
    EventBatch,
    EventKind,
    Events,
    Miss,
    SentStacks,
)
from tracelloc.model.losses import Counter
from tracelloc.model.snapshotrequest import TOTALS_ONLY, SnapshotRequest
from tracelloc.record.abi import SPACE_DTYPE, ForkFlag
from tracelloc.record.kernel.captureconfig import CaptureConfig, Method
from tracelloc.record.kernel.spacecontrol import SpaceControl
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.session.config import TraceConfig
from tracelloc.record.session.session import Session
from tracelloc.record.sources.eventsource import ProbeSource, Sources
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import NS_PER_S


@dataclass
class FakeProbes:
    """Stands for ``record.kernel.attach.Attachment``."""

    pid: int
    closed: list[int]

    @property
    def thread_id(self) -> int:
        return self.pid

    def close(self) -> None:
        self.closed.append(self.pid)


class Drain:
    """The capture's drain of events."""

    def __init__(self) -> None:
        self.records: list[Events] = []
        self.blocked_looks = 0
        """How often there is a record in the way that is not finished."""

    def take_batch(self) -> EventBatch:
        records, self.records = self.records, []
        if self.blocked_looks:
            self.blocked_looks -= 1
            self.records, records = records, []
        events = np.concatenate([np.empty(0, EVENT_DTYPE), *records])
        return EventBatch(events, np.empty(0, PAIR_DTYPE), 0, False)


@dataclass
class FakeCapture:
    """Gives what tests have put into it."""

    config: CaptureConfig
    rows: None = None
    is_urgent = False
    is_quiet = has_stacks = has_probes = True
    waits_ms: tuple[int, int] = (5, 100)
    method: Method = Method.PERF
    overflows: int = 0
    notices_execs: Callable[[], bool] = lambda: True
    attached: list[int] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)
    refused: set[int] = field(default_factory=set)
    forks: dict[int, ForkFlag] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.spaces = np.zeros(self.config.max_spaces, SPACE_DTYPE)
        self.free_slots = list(range(self.config.max_spaces))
        self.slot_of: dict[int, int] = {}
        self.counts = np.zeros(len(Counter), np.uint64)
        self.wakeup_fds = [os.eventfd(0)]
        self.drain, self.sent = Drain(), list[tuple[int, SentStacks]]()

    def until_now(self) -> Callable[[], bool]:
        return lambda: not self.drain.records

    def take_mappings(self) -> Events:
        return np.empty(0, EVENT_DTYPE)

    def take_fork(self, thread_id: int) -> ForkFlag | None:
        return self.forks.pop(thread_id, None)

    def take_events(self) -> EventBatch:
        return self.drain.take_batch()

    def take_stacks(self) -> list[tuple[int, SentStacks]]:
        sent, self.sent = self.sent, []
        return sent

    def take_misses(self, _most: int) -> list[Miss]:
        return []

    def fail(self, error: Exception) -> None:
        raise error

    def counters(self) -> Any:
        return self.counts.copy()

    def ignore(self, _what: object) -> None:
        """There are no probes, nothing is loaded, and every exec is told by the test."""

    set_live = set_stop_at_loads = forget_image = watch = ignore

    def new_space(self) -> SpaceControl:
        return SpaceControl(self.spaces, self.free_slots.pop(0))

    def free_space(self, words: SpaceControl) -> None:
        self.free_slots.append(words.slot)

    def assign(self, pid: int, words: SpaceControl) -> None:
        self.slot_of[pid] = words.slot

    def unassign(self, pid: int) -> None:
        self.slot_of.pop(pid, None)

    def forget_threads(self, _pid: int, _alive: set[int]) -> int:
        return 0

    def attach(self, pid: int, _points: object) -> FakeProbes:
        if pid in self.refused:
            raise TargetError("could not probe it")
        self.attached.append(pid)
        return FakeProbes(pid, self.closed)

    def close(self) -> None:
        os.close(self.wakeup_fds[0])


@dataclass
class Stage:
    """A session, what it is fed with, and a process to begin with."""

    session: Session
    capture: FakeCapture
    said: list[str]
    pids: list[int]
    time: int = 1

    @property
    def root(self) -> int:
        return self.pids[0]

    def image(self, pid: int) -> int:
        """The number of the memory image that a process has."""
        return int(self.capture.spaces["image"][self.capture.slot_of[pid]])

    def play(self, image: int, *events: Event, stacks: tuple[int, ...] = (1,)) -> None:
        """Events of one memory image, one after the other."""
        batch = records(list(events), self.time)
        self.time += len(events)
        batch["image"] = image
        for stack in stacks:
            self.capture.sent.append((image, sent_stacks((stack, 0, (stack,)))))
        self.capture.drain.records.append(batch)

    def fork(self, image: int, tid: int) -> None:
        """A fork by this thread has its place among the events."""
        self.play(image, (EventKind.FORK, 0, 0, 0, tid), stacks=())
        self.capture.forks[tid] = ForkFlag.MARKED

    def start(self) -> int:
        """Another process; it sleeps."""
        process = subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL)
        self.pids.append(process.pid)
        return process.pid

    def child(self) -> int:
        """Another process, forked off the first one by thread 7."""
        child = self.start()
        self.session.forked(self.root, 7, child, shares=False)
        return child

    def run_upkeep(self, after_s: float = 0.0) -> None:
        """Lets what is due after so many seconds take place, as the pump does."""
        upkeep = self.session._upkeep
        with self.session._lock:
            upkeep.run_due(time.monotonic_ns() + int(after_s * NS_PER_S))
        for schedule in upkeep._schedules:
            schedule.wait(10)

    def now(self, wanted: SnapshotRequest = TOTALS_ONLY) -> dict[int, Snapshot]:
        """Snapshots by PID."""
        return {one.target.pid: one for one in self.session.snapshot(wanted).processes}

    def figures(self) -> dict[int, tuple[int, int]]:
        """By PID: outstanding bytes and blocks."""
        return {pid: (one.live_bytes, one.live_count) for pid, one in self.now().items()}


Stages = Callable[..., Stage]


@pytest.fixture
def stage() -> Iterator[Stages]:
    """Makes one; its arguments are those of ``TraceConfig``, or ``follow=False``."""
    made: list[Stage] = []

    def make(*, follow: bool = True, **settings: Any) -> Stage:
        pid = subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL).pid
        config = CaptureConfig(follow=follow, max_spaces=8, use_rows=False, spill_entries=0)
        capture, said = FakeCapture(config), list[str]()
        session = Session(
            Sources(cast("ProbeSource", capture)),
            TraceConfig(config, **settings),
            AddressSpace(Process(pid)),
            said.append,
        )
        made.append(Stage(session, capture, said, [pid]))
        session.start()
        return made[-1]

    yield make
    for each in made:
        each.session.close()
        for pid in each.pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
