"""Schedules inspections of one facet, of one process at a time, on a separate thread.

Each inspection is bounded in CPU time, and all of them in their share of a processor's.
"""

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from typing import Any, Final

from tracelloc.record.facets.facet import (
    LARGE_HEAP_BYTES,
    Facet,
    FacetContext,
    InspectionBudget,
)
from tracelloc.record.facets.heap import HeapFacet
from tracelloc.record.facets.holders import HoldersFacet
from tracelloc.record.facets.objects import ObjectsFacet
from tracelloc.record.facets.pointers import PointersFacet
from tracelloc.record.tasks.memorybudget import MemoryStage, return_freed_memory
from tracelloc.text import NS_PER_S

# In the order in which they begin when several are due.
FACETS: Final[tuple[type[Facet[Any]], ...]] = (
    PointersFacet,
    ObjectsFacet,
    HeapFacet,
    HoldersFacet,
)


_LOOK_NS: Final = NS_PER_S  # How often `run_due` checks whether an inspection is due
_LONGEST_NS: Final = 600 * NS_PER_S  # Wall clock: memory may wait for others (userfaultfd(2), FUSE)
_LAST_S: Final = 2.0  # How long `close` waits for work in progress


class Schedule:
    """Inspects one facet of all processes. Call ``run_due`` with the lock, the rest without."""

    def __init__(
        self, kind: type[Facet[Any]], context: FacetContext, lock: threading.RLock
    ) -> None:
        self.kind = kind
        self._context, self._supervisor, self._lock = context, context.supervisor, lock
        self._working: tuple[Facet[Any], Future[None]] | None = None
        self._not_before_ns = 0
        self.is_over = False  # True if no more work begins; work in progress should end soon

    def run_due(self, facets: Iterable[Facet[Any]], now_ns: int) -> None:
        """Begins an inspection of the process that has waited longest, if one is due."""
        memory = self._context.memory
        is_scarce = memory is not None and memory.stage is not MemoryStage.WHOLE
        if self.is_over or now_ns < self._not_before_ns or (is_scarce and self.kind.needs_memory):
            return
        if self._working is not None:
            facet, done = self._working
            if not done.done():
                if now_ns - facet.began_ns < _LONGEST_NS:
                    return
                # The thread is abandoned: nothing can end it.
                self._fail(facet, TimeoutError(f"it takes more than {_LONGEST_NS // NS_PER_S} s"))
                facet.give_up()
                self._context.large_heap = threading.Lock()
            self._working = None
        self._not_before_ns = now_ns + _LOOK_NS
        due = [facet for facet in facets if self._is_due(facet, now_ns)]
        if due:
            self._begin(min(due, key=lambda facet: facet.began_ns), now_ns)

    def _is_due(self, facet: Facet[Any], now_ns: int) -> bool:
        pid, pause_ns = facet.process.process.pid, facet.pause_ns(now_ns)
        has_waited = pause_ns is not None and now_ns - facet.began_ns >= pause_ns
        return has_waited and not self._supervisor.has_given_up(self.kind.task, pid)

    def _begin(self, facet: Facet[Any], now_ns: int) -> None:
        done: Future[None] = Future()
        turn = self._context.large_heap
        is_large = (facet.process.process.rss_bytes() or 0) >= LARGE_HEAP_BYTES
        if is_large and not turn.acquire(blocking=False):
            return
        facet.begin(now_ns)
        self._working = facet, done

        def work() -> None:
            try:
                pid, is_over = facet.process.process.pid, lambda: self.is_over
                self._supervisor.run(self.kind.task, pid, partial(self._inspect, facet, is_over))
                if self._supervisor.has_given_up(self.kind.task, pid):
                    facet.give_up()
            finally:
                return_freed_memory()
                if is_large:
                    turn.release()
                done.set_result(None)

        threading.Thread(target=work, name=self.kind.task, daemon=True).start()

    def inspect_now(self, facet: Facet[Any]) -> None:
        """Inspects on the calling thread, even at a trace's end. Raises errors that may go away."""
        facet.begin(time.monotonic_ns())
        self._inspect(facet, lambda: False)

    def _inspect(self, facet: Facet[Any], is_over: Callable[[], bool]) -> None:
        memory, began_ns = self._context.memory, facet.began_ns
        budget = InspectionBudget(is_over, began_ns, None if memory is None else memory.left_bytes)
        with suppress(InterruptedError):
            try:
                found = facet.inspect(budget)
            except facet.final_errors as error:
                if isinstance(error, InterruptedError):
                    raise
                self._fail(facet, error)
                return
            if found is not None:
                with self._lock:
                    facet.accept(found)
        facet.took_ns = budget.used_ns
        pause_ns = int(facet.took_ns / self.kind.share)
        self._not_before_ns = max(self._not_before_ns, began_ns + pause_ns)

    def _fail(self, facet: Facet[Any], error: Exception) -> None:
        pid = facet.process.process.pid
        self._supervisor.note_failure(self.kind.task, pid, error, is_final=True)

    def wait(self, timeout_s: float | None = None) -> None:
        if self._working is not None:
            self._working[1].result(timeout_s)

    def close(self) -> None:
        """Begins no more inspections, and waits up to 2 s for one in progress."""
        self.is_over = True
        if self._working is not None:
            wait([self._working[1]], _LAST_S)
