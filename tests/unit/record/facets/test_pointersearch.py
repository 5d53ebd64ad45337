"""When processes' memory is searched for pointers, and what happens if it can't be."""

import errno
import os
import subprocess
import threading
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.unit.events import A, records
from tests.unit.inspected import Lab, Traced
from tracelloc.errors import PrivilegeError, TargetError
from tracelloc.model.blocks import Blocks
from tracelloc.record.facets import facet, pointers, schedule
from tracelloc.record.facets.pointers import PointersFacet
from tracelloc.record.process.procfs import Process
from tracelloc.record.tasks.memorybudget import MemoryBudget
from tracelloc.text import NS_PER_S


def ended() -> Process:
    """A process that has ended, and is not waited for."""
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    return Process(child.pid)


SomeBlocks = Callable[[], Iterable[Blocks]]


class Searches(Lab):
    """Searches that find what they are told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failure: Exception | None = None) -> None:
        super().__init__(PointersFacet, monkeypatch)
        self._failure = failure
        self.failing: dict[int, Exception] = {}
        """By process, if not all fail."""
        monkeypatch.setattr(pointers, "PointerSearch", self.search)

    def search(
        self, process: Process, some_blocks: SomeBlocks, *_how: object, **_more: object
    ) -> Any:
        self.asked.append(Blocks.concatenate(list(some_blocks())))
        if failure := self.failing.get(process.pid, self._failure):
            raise failure
        return SimpleNamespace(
            is_whole=True, swapped_bytes=0, are_reachable=lambda some: np.zeros(len(some), np.bool_)
        )


def test_when_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    lab, one = Searches(monkeypatch), Traced()
    times_ns = 1 * NS_PER_S, 20 * NS_PER_S
    one.heap.table.apply(records([(A, 0x10, 5, 1, 1), (A, 0x20, 5, 1, 1)], times_ns=times_ns))
    assert [lab.count_due(at_s, one) for at_s in (12, 17, 18, 26, 27, 37)] == [0, 1, 0, 0, 1, 1]
    # When the first one is due, there are blocks that are old.
    assert [blocks.address.tolist() for blocks in lab.asked] == [[0x10], [0x10], [0x10, 0x20]]
    assert len(one.heap.unreachable.blocks) == 1
    lab.schedule.close()
    assert lab.count_due(50, one) == 0
    lab, one = Searches(monkeypatch), Traced(is_growing=False)
    assert [lab.count_due(at_s, one) for at_s in (61, 72, 120, 133)] == [1, 1, 0, 1]
    lab, one, two = Searches(monkeypatch), Traced(), Traced()
    for at_s in (20, 21, 22, 31, 32):
        lab.count_due(at_s, one, two)
    assert one.heap.unreachable.searches == two.heap.unreachable.searches == 2


def test_refused_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = PrivilegeError("memory of process 1 may not be read")
    lab, one = Searches(monkeypatch, refusal), Traced()
    assert [lab.count_due(at_s, one) for at_s in (20, 31, 42)] == [1, 0, 0]
    assert one.heap.unreachable.is_refused
    (line,) = lab.said
    assert "pointer search of process 1 failed: memory of process 1 may not be read;" in line
    lab, one = Searches(monkeypatch), Traced(process=Process(os.getpid()))
    lab.context.memory = MemoryBudget(1 << 20, lambda: 0)
    assert lab.count_due(20, one) == 0
    assert one.heap.unreachable.is_refused
    (line,) = lab.said
    assert "failed: there is no memory left for it; " in line
    assert "--max-memory" in line
    lab, one = Searches(monkeypatch, TargetError("process has ended")), Traced(process=ended())
    assert [lab.count_due(at_s, one) for at_s in (20, 31)] == [1, 1]
    assert not lab.said
    assert not one.heap.unreachable.is_refused


def test_searches_that_fail_or_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    lab, one, two = Searches(monkeypatch), Traced(), Traced(process=Process(os.getpid()))
    lab.failing[os.getpid()] = OSError(errno.EFBIG, "its mappings have terabytes")
    for at_s in range(20, 60):
        lab.count_due(at_s, one, two)
    assert len(lab.asked) == 4 + 1
    assert [each.heap.unreachable.is_refused for each in (one, two)] == [False, True]
    (line,) = lab.said
    assert f"pointer search of process {os.getpid()} failed: its mappings have terabytes;" in line
    lab, one = Searches(monkeypatch), Traced()
    monkeypatch.setattr(facet, "_MOST_CPU_NS", 1)
    asked: list[bool] = []

    def search(_: object, __: object, may_go_on: Callable[[], bool], **_more: object) -> Any:
        asked.append(may_go_on())
        return SimpleNamespace(is_whole=False)

    monkeypatch.setattr(pointers, "PointerSearch", search)
    lab.run_due(20, one)
    assert asked == [False]
    assert one.heap.unreachable.is_refused
    assert len(lab.said) == 1
    assert lab.count_due(40, one) == 0


def test_a_search_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory may be such that reading it waits for the process: others are searched, we end."""
    lab, one, two = Searches(monkeypatch), Traced(), Traced(is_growing=False)
    for_ever, working = threading.Event(), lambda: lab.schedule._working
    monkeypatch.setattr(pointers, "PointerSearch", lambda *_, **__: for_ever.wait() and None)
    monkeypatch.setattr(schedule, "_LAST_S", 0.01)
    try:
        lab.schedule.run_due([lab.facet(one)], 20 * NS_PER_S)
        stuck = working()
        lab.schedule.run_due([lab.facet(one)], 619 * NS_PER_S)
        assert working() is stuck
        assert not lab.said
        lab.schedule.run_due([lab.facet(one), lab.facet(two)], 620 * NS_PER_S)
        assert working() is not stuck
        (said,) = lab.said
        assert "pointer search of process 1 failed: it takes more than 600 s" in said
        assert (one.heap.unreachable.is_refused, two.heap.unreachable.is_refused) == (True, False)
        lab.schedule.close()
        assert stuck is not None
    finally:
        for_ever.set()
    # What has begun late must not search in the next test.
    stuck[1].result(10)
    lab.schedule.wait(10)
