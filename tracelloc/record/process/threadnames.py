"""Names of a process's threads, those included that have ended since."""

from __future__ import annotations

from typing import Final

from tracelloc.heap.threads import I64
from tracelloc.record.process.procfs import Process

_MOST_AT_ONCE: Final = 64
"""Names that are asked for at a time."""


class ThreadNames:
    """Asked for as soon as a thread is seen, and kept. ``all`` may be called by any thread."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._names: dict[int, str] = {}
        self._seen = 0

    def see(self, tids: I64) -> None:
        """Asks for the names of new threads; ``tids`` only ever grows, at its end."""
        new = tids[self._seen : self._seen + _MOST_AT_ONCE].tolist()
        self._seen += len(new)
        for tid in new:
            name = self._process.thread_name(tid)
            if name is not None:
                self._names[tid] = name

    def forget_order(self) -> None:
        """The next ``tids`` are others than before."""
        self._seen = 0

    def all(self) -> dict[int, str]:
        """By id. Threads are asked again: they may have been renamed."""
        self._names.update(self._process.thread_names())
        return dict(self._names)
