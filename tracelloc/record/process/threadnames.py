"""Names of a process's threads, including those that have ended."""

from __future__ import annotations

from typing import Final

from tracelloc.model.figures import I64
from tracelloc.record.process.procfs import Process

_MOST_AT_ONCE: Final = 64  # Most names read at a time


class ThreadNames:
    """Thread names, read as soon as a thread is seen. ``all`` may be called by any thread."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._names: dict[int, str] = {}
        self._seen = 0

    def see(self, tids: I64) -> None:
        """Reads the names of new threads; ``tids`` only grows, at its end."""
        new = tids[self._seen : self._seen + _MOST_AT_ONCE].tolist()
        self._seen += len(new)
        for tid in new:
            name = self._process.thread_name(tid)
            if name is not None:
                self._names[tid] = name

    def forget_order(self) -> None:
        """Makes the next ``see`` read from the start, as its ``tids`` are new."""
        self._seen = 0

    def all(self) -> dict[int, str]:
        """Returns names by id. Reads current threads again: they may have been renamed."""
        self._names.update(self._process.thread_names())
        return dict(self._names)
