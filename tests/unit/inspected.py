"""A process of which nothing is real, for facets that inspect it."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from tracelloc.heap.heap import Heap
from tracelloc.model.blocks import Blocks
from tracelloc.model.figures import I64, U64
from tracelloc.model.verdicts import Findings
from tracelloc.record.facets.facet import Facet, FacetContext
from tracelloc.record.facets.schedule import Schedule
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.tasks.memorybudget import MemoryBudget
from tracelloc.record.tasks.supervision import Supervisor
from tracelloc.text import NS_PER_S


@dataclass(eq=False)
class Traced:
    """An ``InspectedProcess``."""

    heap: Heap = field(default_factory=lambda: Heap(0))
    process: Process = field(default_factory=lambda: Process(1))
    space: AddressSpace = field(default_factory=lambda: cast("AddressSpace", None))
    findings: Findings | None = None
    is_growing: bool = True
    at_once: int = 8192

    def old_blocks(self, born_by_ns: int) -> Iterator[Blocks]:
        at: int | None = 0
        while at is not None:
            at, some = self.heap.table.some_blocks(at, born_by_ns, self.at_once)
            yield some

    def stacks_at(self, addresses: U64) -> I64:
        return self.heap.table.stacks_at(addresses)

    def is_interpreter(self, _address: int) -> bool:
        return False


class Lab:
    """Inspects one facet of such processes, as often as its pauses allow."""

    def __init__(
        self,
        kind: type[Facet[Any]],
        monkeypatch: pytest.MonkeyPatch,
        budget: MemoryBudget | None = None,
    ) -> None:
        self.said: list[str] = []
        self.asked: list[Any] = []  # Of what it searches, each time
        monkeypatch.setattr(kind, "share", 1e9)
        self.context = FacetContext(Supervisor(self.said.append), budget)
        self.schedule = Schedule(kind, self.context, threading.RLock())
        self._facets: dict[Traced, Facet[Any]] = {}

    def facet(self, one: Traced) -> Facet[Any]:
        if one not in self._facets:
            self._facets[one] = self.schedule.kind(one, self.context)
        return self._facets[one]

    def run_due(self, at_s: float, *processes: Traced) -> None:
        """Lets a second of a trace pass."""
        self.schedule.run_due([self.facet(one) for one in processes], int(at_s * NS_PER_S))
        self.schedule.wait(10)

    def count_due(self, at_s: float, *processes: Traced) -> int:
        """How many searches a second of a trace has made, of those ``asked`` for."""
        before = len(self.asked)
        self.run_due(at_s, *processes)
        return len(self.asked) - before
