"""Long work takes turns among processes, and bounds on its time hold."""

from __future__ import annotations

import threading
import time

import pytest

from tracelloc.model.objects import ObjectFindings
from tracelloc.record.process.procfs import Process
from tracelloc.record.runtimes.cpython.watch import PythonObjectWatch
from tracelloc.record.session import objectcounts
from tracelloc.record.session.background import BackgroundTurns, Turn
from tracelloc.record.session.memorybudget import MemoryBudget
from tracelloc.record.session.objectcounts import ObjectCounts
from tracelloc.record.session.supervision import Supervisor
from tracelloc.text import NS_PER_S


def turns_of(turns: BackgroundTurns, at_s: float, *offered: Turn) -> None:
    turns.run_due(lambda: offered, int(at_s * NS_PER_S))
    turns.wait(10)


def test_who_has_waited_longest_is_next() -> None:
    done: list[str] = []
    turns = BackgroundTurns("test", 1e9, Supervisor())

    def turn(name: str, pause_s: float) -> Turn:
        return Turn(name, 0, int(pause_s * NS_PER_S), lambda: done.append(name))

    for at_s in range(10, 22):
        turns_of(turns, at_s, turn("often", 2), turn("rarely", 8))
    assert done == ["often", "rarely", *["often"] * 4, "rarely", "often"]
    turns.close()
    turns_of(turns, 100, turn("often", 2))
    assert len(done) == 8


def test_what_took_long_is_not_repeated_soon() -> None:
    done: list[int] = []
    turns = BackgroundTurns("test", 1 / 1000, Supervisor())

    def work() -> None:
        until_ns = time.thread_time_ns() + 10_000_000
        while time.thread_time_ns() < until_ns:
            pass
        done.append(until_ns)

    for at_s in (10, 10.5, 11.5):
        turns_of(turns, at_s, Turn("one", 0, 0, work))
    # Ten milliseconds of work are ten seconds of pause.
    assert len(done) == 1
    turns_of(turns, 1000, Turn("one", 0, 0, work))
    assert len(done) == 2
    turns.close()


def test_one_at_a_time_and_failures_are_counted() -> None:
    said: list[str] = []
    now_s = [0.0]
    supervisor = Supervisor(said.append, clock_s=lambda: now_s[0])
    turns, may_end = BackgroundTurns("test", 1e9, supervisor), threading.Event()
    turns.run_due(lambda: [Turn("long", 1, 0, lambda: may_end.wait(10) and None)], 10 * NS_PER_S)
    turns.run_due(lambda: pytest.fail("something is going on"), 12 * NS_PER_S)
    may_end.set()
    turns.wait(10)
    ends: list[str] = []
    for n in range(10):
        now_s[0] += 1000
        turns_of(turns, 14 + 2 * n, Turn("bad", 1, 0, lambda: [][0], lambda: ends.append("bad")))
    assert supervisor.failures == {"test": 3}
    (line,) = said
    assert "test of process 1 failed: IndexError: list index out of range; tracing" in line
    assert ends == ["bad"]
    turns.close()


class FakeWatch:
    """Counts looks."""

    def __init__(self, *, is_growing: bool) -> None:
        self.is_growing = is_growing
        self.most_bytes: int | None = None
        self.looks = 0
        self.findings: ObjectFindings | None = None

    def update_findings(self) -> None:
        self.looks += 1


class Counted:
    """A process."""

    process = Process(1)

    def __init__(self, *, is_growing: bool) -> None:
        self.fake = FakeWatch(is_growing=is_growing)

    @property
    def objects(self) -> PythonObjectWatch:
        return self.fake  # type: ignore[return-value]

    def join_objects(self) -> None:
        """Does nothing: it has no heap."""


def test_censuses_are_more_frequent_where_something_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objectcounts, "_SHARE", 1e9)
    used = [100 << 20]
    budget = MemoryBudget(1 << 30, lambda: used[0])
    counts, one, two = (
        ObjectCounts(budget, Supervisor()),
        Counted(is_growing=True),
        Counted(is_growing=False),
    )
    for at_s in range(100, 160):
        counts.run_due([one, two], at_s * NS_PER_S)
        counts.turns.wait(10)
    assert 15 <= one.fake.looks <= 30
    assert 2 <= two.fake.looks <= 3
    assert one.fake.most_bytes == (924 << 20) // 4
    used[0] = 1 << 30
    budget.take_stage_message()
    before = one.fake.looks
    for at_s in range(160, 200):
        counts.run_due([one, two], at_s * NS_PER_S)
        counts.turns.wait(10)
    assert one.fake.looks == before
    counts.turns.close()
