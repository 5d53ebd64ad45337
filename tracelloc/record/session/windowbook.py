"""Windows of a process's tracing: the current one, and the one that snapshots show."""

from __future__ import annotations

from dataclasses import dataclass

from tracelloc.heap.heap import Heap
from tracelloc.heap.series import Series
from tracelloc.model.process import TracedWindow
from tracelloc.model.verdicts import Findings
from tracelloc.record.kernel.overheadlimit import OverheadLimit


@dataclass(frozen=True, slots=True)
class ShownWindow:
    """A window with its heap and findings."""

    number: int
    """Counted from 1."""
    started_ns: int
    """CLOCK_MONOTONIC."""
    ended_ns: int | None
    """None while the window goes on."""
    heap: Heap
    series: Series
    findings: Findings | None


class WindowBook:
    """Not thread safe: the session's lock guards it. Times are CLOCK_MONOTONIC.

    Without a limit there is one window, which never ends.
    """

    def __init__(self, now_ns: int, limit: OverheadLimit | None) -> None:
        self.number = 1
        self.started_ns = now_ns
        """When the last window began."""
        self.ended_ns: int | None = None
        """When the probes were detached; None: they are in place."""
        self.last: ShownWindow | None = None
        """The window to show until the current one has lasted as long."""
        self._limit = limit
        self._first_ns = now_ns
        self._traced_before_ns = 0
        """Total length of the ended windows."""

    def restart(self, now_ns: int) -> None:
        """Restarts the first window now."""
        self.started_ns = self._first_ns = now_ns

    def end(self, now_ns: int) -> None:
        """Ends the window; the probes were detached then."""
        self.ended_ns = now_ns
        self._traced_before_ns += now_ns - self.started_ns

    def begin(self, now_ns: int, last: ShownWindow) -> None:
        """Begins a window; the probes are in place again. ``last``: the window before."""
        self.last = last
        self.number += 1
        self.started_ns, self.ended_ns = now_ns, None

    def run_due(self, now_ns: int) -> None:
        """Drops the last window when it is time to show the next; call it periodically."""
        if self.last is None or self.last.ended_ns is None:
            return
        length_ns = self.last.ended_ns - self.last.started_ns
        if self.ended_ns is not None or now_ns - self.started_ns >= length_ns:
            self.last = None

    def facts(self, shown: ShownWindow, now_ns: int) -> TracedWindow | None:
        """Facts about the shown window; None: all of the time was traced."""
        if self._limit is None or (self.number == 1 and self.ended_ns is None):
            return None
        open_ns = now_ns - self.started_ns if self.ended_ns is None else 0
        return TracedWindow(
            shown.number,
            self._limit.share,
            None if shown.ended_ns is None else now_ns - shown.ended_ns,
            self.ended_ns is None,
            self._traced_before_ns + open_ns,
            now_ns - self._first_ns,
        )
