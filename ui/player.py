"""Navigation in a recording by keys, and its playback."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from textual.timer import Timer

from tracelloc.text import NS_PER_S
from tracelloc.ui.dialogs import TimeDialog
from tracelloc.ui.lineview import bindings
from tracelloc.ui.refresher import Refresher
from tracelloc.ui.view import Difference, Span, TimeLine

if TYPE_CHECKING:
    from tracelloc.ui.recorded import RecordedSource
    from tracelloc.ui.state import State

PLAY_S: Final = 0.5  # Time between two snapshots during playback
_PLAYED: Final = 120  # Number of steps of a long recording's playback, which takes a minute
_PAGES: Final = 20  # Number of pages of a recording

# fmt: off
PLAYER_KEYS: Final = bindings(
    "recording",
    (
        ("left_square_bracket", "app.play('step', -1)", "Earlier", "Go to the previous snapshot"),
        ("right_square_bracket", "app.play('step', 1)", "Later", "Go to the next snapshot"),
        ("left_curly_bracket", "app.play('page', -1)", "Page back",
         "Go back by a twentieth of the recording"),
        ("right_curly_bracket", "app.play('page', 1)", "Page forward",
         "Go forward by a twentieth of the recording"),
        ("home,left_parenthesis", "app.play('edge', -1)", "First", "Go to the first snapshot"),
        ("end,right_parenthesis", "app.play('edge', 1)", "Last",
         "Go to the last snapshot and follow new ones"),
        ("at", "app.play('ask_time')", "Go to", "Go to a time: 03:15, +90m, -5m"),
        ("space", "app.play('toggle')", "Play", "Play the recording in a minute, or stop"),
        ("x", "app.ask('choose_span')", "Compare",
         "Choose two times on the chart and show what changed between them"),
    ),
    shown={"left_square_bracket", "right_square_bracket", "space", "x"},
    first=("home,left_parenthesis", "end,right_parenthesis"),
)
# fmt: on
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
        """The times of all snapshots, and which one was shown last."""
        return self._recorded.line

    def condition(self) -> str:
        """Returns the header's text on the shown snapshot."""
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
        self._uptime_s = math.inf if is_last else float(line.uptimes_s[index])
        self._recorded.go_to(self._uptime_s)
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
        """Goes to the snapshot nearest to a time (CLOCK_MONOTONIC)."""
        self._go(self._nearest(time_ns / NS_PER_S))

    def _nearest(self, uptime_s: float) -> int:
        uptimes_s = self.line.uptimes_s
        at = self.line.find(uptime_s)
        after = min(at + 1, len(uptimes_s) - 1)
        return at if uptime_s - uptimes_s[at] <= uptimes_s[after] - uptime_s else after

    def ask_time(self) -> None:
        def go_to_time(time_s: float | None) -> None:
            if time_s is not None:
                self._go(self.line.find_time(time_s))

        times_s = self.line.times_s
        dialog = TimeDialog(float(times_s[0]), float(times_s[-1]))
        self._state.app.push_screen(dialog, go_to_time)

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
        """Goes to the end of a span and shows the changes within it."""
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
