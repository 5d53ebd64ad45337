"""Measures parts of a program's run, such as one test, and what a part or all of it has leaked."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from tracelloc.errors import TracellocError
from tracelloc.model.blocks import PartFigures
from tracelloc.model.lostmemory import ExitLeaks
from tracelloc.record.kernel.registers import ThreadRegisters
from tracelloc.record.reachability.lostblocks import find_leaks
from tracelloc.record.session.processes import Processes
from tracelloc.record.session.tracee import Tracee
from tracelloc.record.sources.eventsource import Sources
from tracelloc.record.tasks.supervision import reason_of

_MOST_DRAINS: Final = 50  # How often events are taken, if threads go on reporting some


class Parts:
    """Measures parts of a process's run (such as tests), one after the other."""

    def __init__(
        self,
        lock: threading.RLock,
        drain: Callable[[], object],
        sources: Sources,
        processes: Processes,
    ) -> None:
        """``lock`` guards the processes. ``drain`` applies events; its result is true if any."""
        self._lock, self._drain = lock, drain
        self._sources, self._processes = sources, processes

    def begin(self) -> None:
        """Begins a part: forgets the process's blocks and figures so far."""
        with self._lock:
            self.drain_reported()
            self._processes.root.begin_part(time.monotonic_ns())
            self._sources.set_hiding(False)

    def end(self) -> PartFigures:
        """Ends a part: returns its figures. No allocations are reported from now on."""
        with self._lock:
            self._sources.set_hiding(True)
            self.drain_reported()
            return self._processes.root.part()

    def find_leaks(self, checked: Tracee, threads: Sequence[ThreadRegisters]) -> ExitLeaks | None:
        """Finds blocks that nothing points to. All threads must be stopped.

        In parts, these are blocks of the last part. Returns None if a thread was stopped while it
        reported an event: later events are unknown.
        """
        with self._lock:
            self.drain_reported()
            link = checked.probes.link
            is_whole = link is not None and link.source.is_quiet
        return leaks_at_exit(checked, self._lock, threads) if is_whole else None

    def drain_reported(self) -> None:
        """Applies the events that have been reported by now."""
        for _ in range(_MOST_DRAINS):
            if not self._drain():
                break


def leaks_at_exit(
    checked: Tracee, lock: threading.RLock, threads: Sequence[ThreadRegisters]
) -> ExitLeaks:
    """Finds leaks of an ending process, or why not. All its events must have been applied.

    ``lock`` guards the process; ``threads``: see ``find_leaks``.
    """
    with lock:
        problem = checked.why_incomplete()
        blocks = checked.heap.table.raw_blocks()
    if problem:
        return ExitLeaks(problem=problem)
    try:
        return find_leaks(checked.process, blocks, threads, checked.forked_ns)
    except (TracellocError, OSError, MemoryError) as error:
        return ExitLeaks(problem=reason_of(error))
