"""Searches a process that is held at its end for the blocks that it leaked."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

from tracelloc.errors import TracellocError
from tracelloc.heap.heap import Heap
from tracelloc.model.exitleaks import ExitLeaks
from tracelloc.record.kernel.registers import ThreadRegisters
from tracelloc.record.process.procfs import Process
from tracelloc.record.reachability.exitleaks import find_leaks
from tracelloc.record.tasks.supervision import reason_of


class CheckedProcess(Protocol):
    """The parts of a traced process that the check needs."""

    process: Process
    heap: Heap

    def why_incomplete(self) -> str:
        """Returns why its table may lack blocks; empty if it has them all."""


def leaks_at_exit(
    checked: CheckedProcess,
    lock: threading.RLock,
    threads: Sequence[ThreadRegisters],
    ended: Sequence[int],
) -> ExitLeaks:
    """Returns the leaks, or why there was no search. All of its events must be applied.

    ``lock`` guards the process; ``threads`` and ``ended``: see ``find_leaks``.
    """
    with lock:
        problem = checked.why_incomplete()
        blocks = checked.heap.table.raw_blocks()
    if problem:
        return ExitLeaks(problem=problem)
    try:
        return find_leaks(checked.process, blocks, threads, ended)
    except (TracellocError, OSError, MemoryError) as error:
        return ExitLeaks(problem=reason_of(error))
