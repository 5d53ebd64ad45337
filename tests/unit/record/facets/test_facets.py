"""Facets are inspected in turn, within bounds; a new one reaches snapshots and recordings."""

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.blockholders import KEPT
from tests.pythonobjects import growing
from tests.unit.inspected import Lab, Traced
from tracelloc.model.blocks import SuspectHolders
from tracelloc.model.heapusage import HeapUsage, HeapUsages
from tracelloc.model.objects import ObjectFindings
from tracelloc.record.facets import objects, schedule
from tracelloc.record.facets.facet import Facet, InspectionBudget
from tracelloc.record.facets.objects import ObjectsFacet
from tracelloc.record.tasks.memorybudget import MemoryBudget
from tracelloc.show.recording.parts import facets_of, to_plain
from tracelloc.snapshots.snapshot import FACET_RESULTS
from tracelloc.text import NS_PER_S


@dataclass(frozen=True, slots=True)
class Weather:
    """The result of a facet that exists in these tests only."""

    sky: str
    degrees: tuple[int, ...]


class WeatherFacet(Facet[Weather]):
    """Looks out of the window."""

    name, task, share = "weather", "weather report", 1e9
    pause_s = 2.0
    work: Any = None
    looks = 0

    def pause_ns(self, _now_ns: int) -> int | None:
        return int(self.pause_s * NS_PER_S)

    def inspect(self, budget: InspectionBudget) -> Weather | None:
        self.looks += 1
        if self.work is not None:
            self.work(budget)
        return Weather("clear", (20, self.looks))


def test_who_is_next(monkeypatch: pytest.MonkeyPatch) -> None:
    lab, often, rarely = Lab(WeatherFacet, monkeypatch), Traced(), Traced()
    lab.facet(rarely).pause_s = 8.0  # type: ignore[attr-defined]
    done: list[str] = []
    for name, one in (("often", often), ("rarely", rarely)):
        lab.facet(one).work = lambda _, name=name: done.append(name)  # type: ignore[attr-defined]
    for at_s in range(10, 22):
        lab.run_due(at_s, often, rarely)
    assert done == ["often", "rarely", *["often"] * 4, "rarely", "often"]
    lab.schedule.close()
    lab.run_due(100, often)
    assert len(done) == 8
    lab, every = Lab(WeatherFacet, monkeypatch), [Traced() for _ in range(3)]
    done: list[int] = []
    for number, one in enumerate(every):
        facet = lab.facet(one)
        facet.pause_s = 1.0  # type: ignore[attr-defined]
        facet.work = lambda _, number=number: done.append(number)  # type: ignore[attr-defined]
    for at_s in range(10, 16):
        lab.run_due(at_s, *every)
    assert done == [0, 1, 2, 0, 1, 2]
    lab, one = Lab(WeatherFacet, monkeypatch), Traced()
    facet = lab.facet(one)
    with lab.context.large_heap:
        lab.run_due(10, one)
        monkeypatch.setattr(schedule, "LARGE_HEAP_BYTES", 0)
        lab.run_due(12, one)
        assert facet.looks == 1  # type: ignore[attr-defined]
    facet.work = lambda _: done.append(lab.context.large_heap.locked())  # type: ignore[attr-defined]
    done: list[bool] = []
    lab.run_due(16, one)
    lab.run_due(18, one)
    assert done == [True, True]


def test_what_takes_long_or_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    lab, one = Lab(WeatherFacet, monkeypatch), Traced()
    monkeypatch.setattr(WeatherFacet, "share", 1 / 1000)
    facet = lab.facet(one)

    def work(budget: InspectionBudget) -> None:
        while budget.used_ns < 10_000_000:
            pass

    facet.pause_s, facet.work = 0, work  # type: ignore[attr-defined]
    for at_s in (10, 10.5, 11.5):
        lab.run_due(at_s, one)
    # Ten milliseconds of work are ten seconds of pause.
    assert facet.looks == 1  # type: ignore[attr-defined]
    lab.run_due(1000, one)
    assert facet.looks == 2  # type: ignore[attr-defined]
    lab, one = Lab(WeatherFacet, monkeypatch), Traced()
    now_s = [0.0]
    lab.context.supervisor._clock_s = lambda: now_s[0]
    ends: list[str] = []
    facet = lab.facet(one)
    facet.work, facet.give_up = lambda _: [][0], lambda: ends.append("given up")  # type: ignore
    for n in range(10):
        now_s[0] += 1000
        lab.run_due(14 + 2 * n, one)
    assert lab.context.supervisor.failures == {"weather report": 3}
    (line,) = lab.said
    assert "weather report of process 1 failed: IndexError: list index out of range;" in line
    assert ends == ["given up"]


class FakeWatch:
    """Counts looks."""

    most_bytes: int | None = None
    findings: ObjectFindings | None = None
    looks = 0

    def __init__(self, *, is_growing: bool) -> None:
        self.is_growing = is_growing

    def update_findings(self) -> None:
        self.looks += 1


def test_censuses_are_more_frequent_where_something_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    used = [100 << 20]
    budget = MemoryBudget(1 << 30, lambda: used[0])
    fakes = [FakeWatch(is_growing=True), FakeWatch(is_growing=False)]
    waiting = iter(fakes)
    monkeypatch.setattr(objects, "watch_objects", lambda *_: [next(waiting)])
    lab = Lab(ObjectsFacet, monkeypatch, budget)
    space: Any = SimpleNamespace(files=SimpleNamespace(runtime_frames=None))
    both = [Traced(space=space), Traced(space=space)]
    for at_s in range(100, 160):
        lab.run_due(at_s, *both)
    assert 15 <= fakes[0].looks <= 30
    assert 2 <= fakes[1].looks <= 3
    assert fakes[0].most_bytes == (924 << 20) // 4
    used[0] = 1 << 30
    budget.take_stage_message()
    before = fakes[0].looks
    for at_s in range(160, 200):
        lab.run_due(at_s, *both)
    assert fakes[0].looks == before


def test_results_of_recordings() -> None:
    """Those of pointers are in the findings."""
    assert {kind.name for kind in schedule.FACETS} - {"pointers"} == set(FACET_RESULTS)
    usage = HeapUsage(7.0, ())
    found = growing(1.0)
    facts = {"usage": to_plain(usage), "first_usage": None, "objects": to_plain(found)}
    facts["holders"] = to_plain({3: KEPT})
    both, kept = HeapUsages(usage, usage), SuspectHolders({3: KEPT})
    assert facets_of(facts) == {"heap": both, "holders": kept, "objects": found}
    first = to_plain(replace(usage, time_s=1.0))
    assert facets_of(facts | {"first_usage": first})["heap"].first.time_s == 1.0
    assert facets_of({"usage": None, "first_usage": None, "holders": [], "objects": None}) == {}
