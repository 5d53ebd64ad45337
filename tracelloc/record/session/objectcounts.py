"""Counts the objects of the traced Python programs now and then, in the background.

The programs pay nothing for it. A census takes about 0.3 µs per object of our time, so there is a
pause after each; more of them are taken at first, until it is clear whether something grows.
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
"""From one census to the next, at least."""
_QUIET_NS: Final = 30 * NS_PER_S
"""From one to the next in programs in which no type grows."""
_JITTER: Final = 0.6180339887
"""Pauses differ by up to half: what comes and goes regularly must not look as if it grew."""
_SHARE: Final = 1 / 24
"""Most of this machine's time (of one processor) that censuses take."""
_MEMORY_SHARE: Final = 4
"""One part in so many of our memory that is left may be taken by one."""


class Counted(Protocol):
    """What is needed of a traced process."""

    process: Process

    @property
    def objects(self) -> ObjectWatch:
        """Counts the process's objects."""


class ObjectCounts:
    """The session's lock guards what is called ``look``."""

    def __init__(self, budget: MemoryBudget | None, supervisor: Supervisor) -> None:
        self._budget = budget
        self._number = 0
        self.turns = BackgroundTurns(CENSUS, _SHARE, supervisor)

    def look(self, processes: Sequence[Counted], now_ns: int) -> None:
        """Begins a census if one is due: of the process that has waited longest."""
        if self._budget is None or self._budget.stage is MemoryStage.WHOLE:
            self.turns.look(lambda: [self._turn(each) for each in processes], now_ns)

    def _turn(self, one: Counted) -> Turn:
        self._number += 1
        watch = one.objects
        pause_ns = _PAUSE_NS if watch.is_growing else _QUIET_NS
        jitter = 1 + self._number * _JITTER % 1 / 2
        return Turn(watch, one.process.pid, int(pause_ns * jitter), lambda: self._count(watch))

    def _count(self, watch: ObjectWatch) -> None:
        if self._budget is not None:
            watch.most_bytes = self._budget.left_bytes // _MEMORY_SHARE
        watch.look()
