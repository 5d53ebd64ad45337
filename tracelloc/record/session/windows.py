"""Windows: probes are detached when they cost more than allowed, and reattached later.

While they are detached, frees are not seen: blocks live at the end of a window may be dead at the
start of the next. So each window is a separate trace with an empty table. Snapshots show the last
whole window until the current one has lasted as long.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tracelloc.record.kernel.bpf import Capture
from tracelloc.record.kernel.overheadlimit import OverheadLimit
from tracelloc.record.session.processes import Processes
from tracelloc.record.session.supervision import Supervisor
from tracelloc.record.session.tracee import Tracee
from tracelloc.text import format_percent


class Windows:
    """Ends and begins windows. The session's lock guards it."""

    def __init__(
        self,
        capture: Capture,
        processes: Processes,
        limit: OverheadLimit,
        drain_rest: Callable[[], None],
        *,
        clock_ns: Callable[[], int],
        supervisor: Supervisor,
    ) -> None:
        """``drain_rest`` applies the events that the probes reported before they were detached."""
        self._capture = capture
        self._processes = processes
        self._limit = limit
        self._drain_rest = drain_rest
        self._clock_ns = clock_ns
        self._supervisor = supervisor
        self._is_paused = False
        self._has_paused = False

    def set_paused(self, *, paused: bool) -> None:
        """Detaches the probes, or attaches them again."""
        if paused == self._is_paused:
            return
        if paused:
            self._end()
        else:
            self._begin()

    def _end(self) -> None:
        self._is_paused = True
        if not self._has_paused:
            self._has_paused = True
            self._supervisor.say(
                f"tracing costs more than --max-overhead {format_percent(self._limit.share)}: the "
                "probes are detached in between, and figures are of one window of time each"
            )
        # From here on, events are missed, in no particular order.
        self._capture.pause()
        ended_ns = self._clock_ns()
        for tracee in self._processes.living:
            pause = tracee.probes.pause
            self._supervisor.run("detaching", tracee.process.pid, pause, gives_up=False)
        # No probe is left that could report events.
        self._drain_rest()
        for tracee in self._processes.living:
            if not tracee.is_paused:
                tracee.end_window(ended_ns)
            # Calls that are under way end unseen.
            self._capture.forget_window(tracee.process.pid)

    def _begin(self) -> None:
        resumed = []
        for tracee in self._processes.living:
            resume = partial(_resumed, tracee)
            # A process that can't be probed again keeps its last window until the next attempt.
            if self._supervisor.run("reattaching", tracee.process.pid, resume, gives_up=False):
                resumed.append(tracee)
        now_ns = self._clock_ns()
        for tracee in resumed:
            tracee.begin_window(now_ns)
        self._capture.set_live(True)
        self._is_paused = False


def _resumed(tracee: Tracee) -> bool:
    """Reattaches a process's probes. Returns True; raises TracellocError."""
    tracee.probes.resume()
    return True
