"""Counts the objects of the traced Python programs periodically, in the background.

The programs pay nothing for it. A census takes tracelloc about 0.3 µs per object, so it pauses
after each. Censuses are more frequent at first, until it is clear whether something grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from tracelloc.record.process.procfs import Process
from tracelloc.record.runtimes.seam import ObjectWatch
from tracelloc.record.session.background import BackgroundTurns, Turn
from tracelloc.record.session.memorybudget import MemoryBudget, MemoryStage
from tracelloc.record.session.outside import CENSUS
from tracelloc.record.session.supervision import Supervisor
from tracelloc.text import NS_PER_S

_PAUSE_NS: Final = 2 * NS_PER_S
"""Least time from one census to the next."""
_QUIET_NS: Final = 30 * NS_PER_S
"""Time between censuses of programs in which no type grows."""
_JITTER: Final = 0.6180339887
"""Varies pauses by up to half, so that periodic changes do not look like growth."""
_SHARE: Final = 1 / 24
"""Largest share of one processor's time that censuses take."""
_MEMORY_SHARE: Final = 4
"""One census may use this fraction (1/n) of tracelloc's remaining memory."""


class Counted(Protocol):
    """The parts of a traced process that a census needs."""

    process: Process

    @property
    def objects(self) -> ObjectWatch:
        """Counts the process's objects."""

    def join_objects(self) -> None:
        """Joins what was found with call stacks."""


class ObjectCounts:
    """Schedules censuses. Call ``run_due`` with the session's lock held."""

    def __init__(self, budget: MemoryBudget | None, supervisor: Supervisor) -> None:
        self._budget = budget
        self._number = 0
        self.turns = BackgroundTurns(CENSUS, _SHARE, supervisor)

    def run_due(self, processes: Sequence[Counted], now_ns: int) -> None:
        """Begins a census if one is due: of the process that has waited longest."""
        for each in processes:
            each.join_objects()
        if self._budget is None or self._budget.stage is MemoryStage.WHOLE:
            self.turns.run_due(lambda: [self._turn(each) for each in processes], now_ns)

    def _turn(self, one: Counted) -> Turn:
        self._number += 1
        watch = one.objects
        pause_ns = _PAUSE_NS if watch.is_growing else _QUIET_NS
        jitter = 1 + self._number * _JITTER % 1 / 2
        return Turn(watch, one.process.pid, int(pause_ns * jitter), lambda: self._count(watch))

    def _count(self, watch: ObjectWatch) -> None:
        if self._budget is not None:
            watch.most_bytes = self._budget.left_bytes // _MEMORY_SHARE
        watch.update_findings()
