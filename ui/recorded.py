"""The screen of a recording: a source that returns the snapshot chosen on its time line."""

import math
import time
from typing import Final

import numpy as np

from tracelloc.model.codefiles import base_name
from tracelloc.model.process import Target
from tracelloc.model.snapshotrequest import SnapshotRequest
from tracelloc.show.presentation.facts import found_lines
from tracelloc.show.presentation.naming import Namer, Namers
from tracelloc.show.recording.joined import AnyRecording, count_words
from tracelloc.snapshots.snapshot import Snapshot, TraceSnapshot
from tracelloc.system.invoker import invoker
from tracelloc.text import NS_PER_S
from tracelloc.ui.app import LiveApp
from tracelloc.ui.frames import lines_of_file
from tracelloc.ui.view import F64, Gaps, LastOutput, TimeLine, TraceFacts, TraceSource, find_gaps

_ROUNDING_S: Final = 1e-6
_NEWEST_S: Final = 2.0  # Time between two updates of a growing recording's curves


class RecordedSource(TraceSource):
    """A source whose snapshots come from a recording instead of a running process.

    Only the refresher's thread may use it, but any thread may call ``go_to`` and read ``line``.
    """

    writes_files = True  # True: quitting loses nothing, so the screen does not ask first
    last_output: LastOutput | None = None

    def __init__(self, recording: AnyRecording, namers: Namers, *, at: int | None = None) -> None:
        """``at``: number of the first snapshot to show; None: follow the newest one."""
        self._recording = recording
        self._namers = namers
        self.trace_as_of = recording.trace_as_of
        self._uptime_s = math.inf if at is None else recording.moments[at].uptime_s
        self._newest_due_s = 0.0
        # The gaps between snapshots, and the times that they were found in
        self._gaps: tuple[F64, Gaps] = np.zeros(0), ()
        self._newest = recording.trace_as_of(math.inf)
        # The recorded snapshot before the one returned last, for rates
        self.before: TraceSnapshot | None = None
        # All snapshots' times, and the number of the one returned last
        self.line = self._line(len(recording.moments) - 1)
        self.filters = namers.filters
        self.invoker = invoker()
        self.recorded = self
        self.has_python = any(one.objects is not None for one in self._newest.processes)
        self.has_many = self._newest.follow is not None or len(self._newest.processes) > 1
        self.facts = _facts_of(recording, self._newest.root)

    def go_to(self, uptime_s: float) -> None:
        """Selects the last snapshot up to an uptime in seconds. Any thread may call this."""
        self._uptime_s = uptime_s

    def namer(self, target: Target) -> Namer:
        return self._namers.namer_of(target)

    def take_snapshot(self, _wanted: SnapshotRequest) -> TraceSnapshot:
        recording, uptime_s = self._recording, self._uptime_s
        # The curves, which take long, are read at most every `_NEWEST_S`.
        self._recording.reload()
        now_s = time.monotonic()
        if self._recording.is_growing and now_s >= self._newest_due_s:
            self._newest = self._recording.trace_as_of(math.inf)
            self._newest_due_s = now_s + _NEWEST_S
        index = recording.find_uptime(uptime_s)
        before_s = recording.moments[index - 1].uptime_s if index else None
        self.before = None if before_s is None else recording.trace_as_of(before_s)
        # Names are those of the trace that was asked for last.
        trace = recording.trace_as_of(uptime_s)
        self.line = self._line(recording.find_uptime(trace.root.now_ns / NS_PER_S + _ROUNDING_S))
        return trace

    def _line(self, index: int) -> TimeLine:
        moments = self._recording.moments
        uptimes_s = np.array([moment.uptime_s for moment in moments])
        if not np.array_equal(uptimes_s, self._gaps[0]):
            self._gaps = uptimes_s, find_gaps(uptimes_s)
        return TimeLine(
            uptimes_s,
            np.array([moment.time_s for moment in moments]),
            index,
            self._newest,
            self._recording.is_growing,
            self._gaps[1],
        )

    def read_source(self, _target: Target, path: str) -> list[str]:
        """Returns the lines of a source file on this machine. Raises OSError."""
        return lines_of_file(None, path)


def _facts_of(recording: AnyRecording, root: Snapshot) -> TraceFacts:
    about = recording.about
    snapshots = count_words(recording)
    version, host = about.get("version", "?"), about.get("host", "?")
    if root.target.machine:
        host += f" ({root.target.machine})"
    tool = f"tracelloc {version}"
    return TraceFacts(
        allocators=tuple(dict.fromkeys(base_name(each.file) for each in root.allocators)),
        functions=tuple(found_lines(root.allocators)),
        method=f"{tool} on {host} in {recording.path}, {snapshots}",
        ring_slots=0,
    )


class RecordedApp(LiveApp):
    """The application that shows a recording; there is nothing to detach from."""

    def on_mount(self) -> None:
        self.quit_by_signals()
