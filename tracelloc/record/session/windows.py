"""Windows: the probes come off where they cost more than they may, and go on again later.

While they are off, frees are not seen: what was live when a window ended may be dead when the next
one begins. So each window is a trace of its own, which begins with an empty table. Snapshots show
the last whole window until the one that goes on has lasted as long.
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
        """``drain_rest`` applies what the probes had reported before they came off."""
        self._capture = capture
        self._processes = processes
        self._limit = limit
        self._drain_rest = drain_rest
        self._clock_ns = clock_ns
        self._supervisor = supervisor
        self._is_paused = False
        self._has_paused = False

    def set_paused(self, *, paused: bool) -> None:
        """Has the probes off, or on."""
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
                "probes come off in between, and figures are of one window of time each"
            )
        # What happens from here on is not seen, in no particular order any more.
        self._capture.pause()
        ended_ns = self._clock_ns()
        for tracee in self._processes.living:
            pause = tracee.probes.pause
            self._supervisor.run("detaching", tracee.process.pid, pause, gives_up=False)
        # Nothing runs any more that could report.
        self._drain_rest()
        for tracee in self._processes.living:
            if not tracee.is_paused:
                tracee.end_window(ended_ns)
            # Those that were under way end unseen.
            self._capture.forget_window(tracee.process.pid)

    def _begin(self) -> None:
        resumed = []
        for tracee in self._processes.living:
            resume = partial(_resumed, tracee)
            # One that can't be probed again has its last window, until the next time.
            if self._supervisor.run("reattaching", tracee.process.pid, resume, gives_up=False):
                resumed.append(tracee)
        now_ns = self._clock_ns()
        for tracee in resumed:
            tracee.begin_window(now_ns)
        self._capture.set_live(True)
        self._is_paused = False


def _resumed(tracee: Tracee) -> bool:
    """Puts a process's probes in again. Returns True; raises TracellocError."""
    tracee.probes.resume()
    return True
