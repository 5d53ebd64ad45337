"""Accounts for the memory of the traced processes periodically, in the background.

Each time, the process's heap is walked (``record.heapwalk``), so that a snapshot can tell memory in
use from memory that was freed and is kept by the malloc library. The process pays nothing for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Protocol

from tracelloc.heap.heap import Heap
from tracelloc.model.figures import I64, U64
from tracelloc.model.heapusage import HeapUsage, StackClass
from tracelloc.record.heapwalk.measuring import measure_memory
from tracelloc.record.process.procfs import Process
from tracelloc.record.session.background import BackgroundTurns, Turn
from tracelloc.record.session.memorybudget import MemoryBudget, MemoryStage
from tracelloc.record.session.supervision import Supervisor
from tracelloc.text import NS_PER_S

MEMORY_ACCOUNT: Final = "accounting for memory"
_PAUSE_NS: Final = 10 * NS_PER_S
_CHANGED_PAUSE_NS: Final = 2 * NS_PER_S
"""Least time between accounts of a process whose memory has changed."""
_CHANGED: Final = 0.05
_SLOW_NS: Final = NS_PER_S // 2
"""CPU time of an account above which there is none at the end."""
_LAST_S: Final = 1.0
"""How long the end of a trace waits for accounts."""
_SHARE: Final = 1 / 64
"""Largest share of one processor's time that accounts take."""
_BYTES_A_BYTE: Final = 1 / 4
"""Memory for each byte of RSS at most: 8 bytes for blocks of 32."""


class Accounted(Protocol):
    """The parts of a traced process that an account needs."""

    process: Process
    image: int
    """Number of its memory image."""
    heap: Heap
    accounted_ns: int
    """When its memory was last accounted for; 0: not yet."""
    usage: HeapUsage | None
    """The last account."""

    def note_usage(self, usage: HeapUsage) -> None:
        """Stores an account."""


class MemoryAccounts:
    """Schedules accounts. Call ``run_due`` with the session's lock, ``close`` without it."""

    def __init__(
        self, lock: threading.RLock, supervisor: Supervisor, budget: MemoryBudget | None
    ) -> None:
        self._lock = lock
        self._supervisor = supervisor
        self._budget = budget
        self._slow: set[tuple[int, int]] = set()
        """PIDs and numbers of memory images of which an account takes long."""
        self.turns = BackgroundTurns(MEMORY_ACCOUNT, _SHARE, supervisor)

    def run_due(self, processes: Sequence[Accounted], now_ns: int) -> None:
        """Begins an account if one is due: of the process that has waited longest."""
        if self._budget is None or self._budget.stage is MemoryStage.WHOLE:
            self.turns.run_due(
                lambda: [self._turn(each) for each in processes if _is_due(each, now_ns)], now_ns
            )

    def _turn(self, one: Accounted) -> Turn:
        pid = one.process.pid
        return Turn((pid, one.image), pid, _CHANGED_PAUSE_NS, partial(self.update, one))

    def update_last(self, processes: Sequence[Accounted]) -> None:
        """Accounts for memory at the end, as far as that takes little time.

        Call it without the lock.
        """

        def work() -> None:
            for one in processes:
                pid = one.process.pid
                if not is_late.is_set() and (pid, one.image) not in self._slow:
                    self._supervisor.run(MEMORY_ACCOUNT, pid, partial(self.update, one))

        is_late = threading.Event()
        # Reading memory may wait for what another program does.
        thread = threading.Thread(target=work, name="last accounts", daemon=True)
        thread.start()
        thread.join(_LAST_S)
        is_late.set()

    def update(self, one: Accounted) -> None:
        """Accounts for the memory of a process now. Call it without the lock.

        Raises OSError, TargetError, PrivilegeError.
        """
        one.accounted_ns, began_ns = time.monotonic_ns(), time.thread_time_ns()
        image, rss_bytes = one.image, one.process.rss_bytes() or 0
        if self._budget is not None and self._budget.left_bytes < rss_bytes * _BYTES_A_BYTE:
            return

        def stacks_at(addresses: U64) -> I64:
            with self._lock:
                return one.heap.table.stacks_at(addresses)

        usage = measure_memory(one.process, stacks_at)
        if time.thread_time_ns() - began_ns > _SLOW_NS:
            self._slow.add((one.process.pid, image))
        with self._lock:
            if one.image == image:
                one.note_usage(replace(usage, stack_classes=_of_most(usage, one.heap)))


def _of_most(usage: HeapUsage, heap: Heap) -> tuple[StackClass, ...]:
    """The classes with which most blocks of a stack begin."""
    totals = heap.table.totals
    if totals.sample_bytes is not None:
        return ()
    live = totals.live_count
    return tuple(
        each
        for each in usage.stack_classes
        if each.stack < len(live) and 2 * each.count > live[each.stack]
    )


def _is_due(one: Accounted, now_ns: int) -> bool:
    """Whether its memory has changed much since the last account, or that is long ago."""
    age_ns = now_ns - one.accounted_ns
    if age_ns >= _PAUSE_NS or one.usage is None:
        return age_ns >= _CHANGED_PAUSE_NS
    before = one.usage.account.rss_bytes
    change = abs((one.process.rss_bytes() or 0) - before)
    return age_ns >= _CHANGED_PAUSE_NS and change > _CHANGED * before
