"""Removes breakpoints from children that are not followed.

A forked child has a copy of its parent's code, including the probes' breakpoints. They report
nothing, but trap: 1 to 2 microseconds per pair of malloc and free, for as long as the child
lives. When a probe is removed, the kernel also removes its breakpoint from every address space
without such a probe (``register_for_each_vma()`` in kernel/events/uprobes.c). So tracelloc briefly
attaches idle probes at the same places in its own process. Perf events do not need this: the
kernel removes a child's breakpoints when the first is hit.
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
    """Sweeps the children of one process, in the background."""

    def __init__(self, process: Process, program: Callable[[str], int]) -> None:
        """``program`` returns the descriptor of a BPF program by name, loaded for links."""
        self._process = process
        self._program = program
        self._swept: set[int] = set()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="sweeper")
        self._sweeping: Future[None] | None = None

    def sweep_new_children(self, points: Iterable[ProbePoint]) -> None:
        """Sweeps if there are children that did not exist at the last call."""
        if self._sweeping is not None and not self._sweeping.done():
            return
        children = self._process.child_ids()
        if children - self._swept:
            self._sweeping = self._pool.submit(self._sweep, list(points))
        self._swept = children

    def _sweep(self, points: list[ProbePoint]) -> None:
        idle = {replace(point, program=IDLE_PROGRAM, cookie=0, returns=False) for point in points}
        # A breakpoint that stays costs time and nothing else.
        with suppress(TracellocError, OSError):
            Attachment(Method.MULTI, os.getpid(), list(idle), self._program).close()

    def close(self) -> None:
        """Waits until no BPF program is in use."""
        self._pool.shutdown()
