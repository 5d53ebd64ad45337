"""Takes breakpoints out of children that nobody follows.

A forked child has a copy of its parent's code with our breakpoints in it. They report
nothing, but trap: 1 to 2 microseconds per pair of malloc and free, for as long as the child
lives. The kernel takes them out of every address space that no probe asks for whenever a
probe at their place goes (``register_for_each_vma()`` in kernel/events/uprobes.c): so
probes that do nothing are put there for a moment, on our own process. Perf events need none
of this: they have a child's breakpoints removed when the first is hit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

from tracelloc.errors import TracellocError
from tracelloc.record.kernel.attach import Attachment
from tracelloc.record.kernel.child import IDLE_PROGRAM
from tracelloc.record.kernel.method import Method
from tracelloc.record.probe_points.placement import ProbePoint
from tracelloc.record.process.procfs import Process


class Sweeper:
    """Looks after the children of one process, in the background."""

    def __init__(self, process: Process, program: Callable[[str], int]) -> None:
        """``program`` gives the descriptor of a BPF program by name, loaded for links."""
        self._process = process
        self._program = program
        self._swept: set[int] = set()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="sweeper")
        self._sweeping: Future[None] | None = None

    def look(self, points: Iterable[ProbePoint]) -> None:
        """Sweeps if there are children that were not there the last time."""
        if self._sweeping is not None and not self._sweeping.done():
            return
        children = self._process.child_ids()
        if children - self._swept:
            self._sweeping = self._pool.submit(self._sweep, list(points))
        self._swept = children

    def _sweep(self, points: list[ProbePoint]) -> None:
        idle = {replace(point, program=IDLE_PROGRAM, cookie=0, returns=False) for point in points}
        # What could not be swept costs time and nothing else.
        with suppress(TracellocError, OSError):
            Attachment(Method.MULTI, os.getpid(), list(idle), self._program).close()

    def close(self) -> None:
        """Waits until no program is in use."""
        self._pool.shutdown()
