"""A recording as the screen's source, navigation in it by keys, and its playback."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final

import numpy as np
from textual.timer import Timer

from tracelloc.model.codefiles import base_name
from tracelloc.model.process import Target
from tracelloc.model.snapshotrequest import SnapshotRequest
from tracelloc.show.presentation.facts import found_lines
from tracelloc.show.presentation.naming import Namer, Namers
from tracelloc.show.recording.joined import AnyRecording, count_words
from tracelloc.snapshots.snapshot import Snapshot, TraceSnapshot
from tracelloc.system.invoker import invoker
from tracelloc.text import NS_PER_S
from tracelloc.ui import view
from tracelloc.ui.dialogs import TimeDialog
from tracelloc.ui.frames import lines_of_file
from tracelloc.ui.lineview import bindings
from tracelloc.ui.refresher import Refresher
from tracelloc.ui.view import Difference, Span, TimeLine, TraceFacts, TraceSource

if TYPE_CHECKING:
    from tracelloc.ui.state import State

PLAY_S: Final = 0.5  # Time between two snapshots during playback
_PLAYED: Final = 120  # Number of steps of a long recording's playback, which takes a minute
_PAGES: Final = 20  # Number of pages of a recording

PLAYER_KEYS: Final = bindings("recording")
# Keys that need a live trace.
LIVE_ONLY: Final = frozenset(
    {"b", "m", "P", "L", "A", "space", "x", "greater_than_sign", "less_than_sign"}
)


class Player:
    """Moves the screen to other snapshots. Only for the drawing thread."""

    def __init__(self, state: State, recorded: RecordedSource, refresher: Refresher) -> None:
        self._state = state
        self._recorded = recorded
        self._refresher = refresher
        # The time that was requested last; its snapshot may not be shown yet
        self._uptime_s: float | None = None
        self._timer: Timer | None = None

    @property
    def line(self) -> TimeLine:
        return self._recorded.line

    def condition(self) -> str:
        line = self.line if self._state.picture is None else self._state.picture.line
        assert line is not None
        clock = line.clock(round(float(line.uptimes_s[line.index]) * NS_PER_S))
        if self._timer is not None:
            return f"▶ {clock}"
        if not line.is_at_end:
            return f"at {clock}"
        return f"newest, {clock}" if line.is_growing else f"end, {clock}"

    @property
    def _index(self) -> int:
        line = self.line
        return line.index if self._uptime_s is None else line.find(self._uptime_s)

    def _go(self, index: int) -> None:
        line = self.line
        index = min(max(index, 0), len(line.uptimes_s) - 1)
        is_last = index == len(line.uptimes_s) - 1
        # After the last snapshot, new ones are followed.
        uptime_s = math.inf if is_last else float(line.uptimes_s[index])
        self._uptime_s = self._recorded.uptime_s = uptime_s
        self._refresher.ask(self._state.settings, tick=True)

    def step(self, count: int) -> None:
        self._go(self._index + count)

    def page(self, sign: int) -> None:
        self._go(self._moved(self._index, sign, _PAGES))

    def _moved(self, index: int, sign: int, parts: int) -> int:
        """Returns the snapshot that is 1/``parts`` of the total time away, at least the next."""
        uptimes_s = self.line.uptimes_s
        part_s = float(uptimes_s[-1] - uptimes_s[0]) / parts
        found = self._nearest(float(uptimes_s[index]) + sign * part_s)
        return max(found, index + 1) if sign > 0 else min(found, index - 1)

    def edge(self, sign: int) -> None:
        self._go(0 if sign < 0 else len(self.line.uptimes_s) - 1)

    def go_to_ns(self, time_ns: int) -> None:
        self._go(self._nearest(time_ns / NS_PER_S))

    def _nearest(self, uptime_s: float) -> int:
        uptimes_s = self.line.uptimes_s
        at = self.line.find(uptime_s)
        after = min(at + 1, len(uptimes_s) - 1)
        return at if uptime_s - uptimes_s[at] <= uptimes_s[after] - uptime_s else after

    def ask_time(self) -> None:
        times_s = self.line.times_s
        dialog = TimeDialog(float(times_s[0]), float(times_s[-1]))
        self._state.ask(dialog, lambda time_s: self._go(self.line.find_time(time_s)))

    def toggle(self) -> None:
        if self._timer is not None:
            self._stop()
            self._refresher.ask(self._state.settings, tick=True)
            return
        if self._index == len(self.line.uptimes_s) - 1:
            self.edge(-1)
        self._timer = self._state.app.set_interval(PLAY_S, self._play_on)

    def _play_on(self) -> None:
        if self._index == len(self.line.uptimes_s) - 1:
            self._stop()
        self._go(self._moved(self._index, 1, _PLAYED))

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.stop()
        self._timer = None

    def compare(self, span: Span) -> None:
        state, line = self._state, self.line
        ends = [self._nearest(time_ns / NS_PER_S) for time_ns in span]
        if ends[0] == ends[1]:
            state.app.notify("The span has only one snapshot: nothing to compare", timeout=3)
            return
        uptimes_s = [float(line.uptimes_s[index]) for index in ends]
        names = [line.clock(round(uptime_s * NS_PER_S)) for uptime_s in uptimes_s]
        settings = state.settings

        def job() -> None:
            before, after = (
                self._refresher.pictures.mark(self._recorded.trace_as_of(uptime_s), settings, name)
                for uptime_s, name in zip(uptimes_s, names, strict=True)
            )
            state.app.call_later(state.change, difference=Difference(before, after))

        self._go(ends[1])
        self._refresher.run_job(job)


_ROUNDING_S: Final = 1e-6
_NEWEST_S: Final = 2.0  # Time between two updates of a growing recording's curves


class RecordedSource(TraceSource):
    """A source of recorded snapshots. Any thread may set ``uptime_s`` and read ``line``."""

    writes_files = True  # True: quitting loses nothing, so the screen does not ask first
    last_output: view.LastOutput | None = None

    def __init__(self, recording: AnyRecording, namers: Namers, *, at: int | None = None) -> None:
        """``at``: number of the first snapshot to show; None: follow the newest one."""
        self._recording = recording
        self._namers = namers
        self.trace_as_of = recording.trace_as_of
        # The last snapshot up to this uptime is shown
        self.uptime_s = math.inf if at is None else recording.moments[at].uptime_s
        self._newest_due_s = 0.0
        # The gaps between snapshots, and the times that they were found in
        self._gaps: tuple[view.F64, view.Gaps] = np.zeros(0), ()
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

    def namer(self, target: Target) -> Namer:
        return self._namers.namer_of(target)

    def take_snapshot(self, _wanted: SnapshotRequest) -> TraceSnapshot:
        recording, uptime_s = self._recording, self.uptime_s
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
            self._gaps = uptimes_s, view.find_gaps(uptimes_s)
        times_s = np.array([each.time_s for each in moments])
        is_growing = self._recording.is_growing
        return TimeLine(uptimes_s, times_s, index, self._newest, is_growing, self._gaps[1])

    def read_source(self, _target: Target, path: str) -> list[str]:
        return lines_of_file(None, path)


def _facts_of(recording: AnyRecording, root: Snapshot) -> TraceFacts:
    about = recording.about
    host = about.get("host", "?") + (f" ({root.target.machine})" if root.target.machine else "")
    tool = f"tracelloc {about.get('version', '?')}"
    method = f"{tool} on {host} in {recording.path}, {count_words(recording)}"
    files = tuple(dict.fromkeys(base_name(each.file) for each in root.allocators))
    return TraceFacts(files, tuple(found_lines(root.allocators)), method, ring_slots=0)
