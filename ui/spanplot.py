"""The plot over time, where keys or the mouse select a span."""

import time
from collections.abc import Sequence
from typing import ClassVar, Final

from textual import events
from textual.binding import Binding, BindingType

from tracelloc.text import NS_PER_S, format_duration, format_size
from tracelloc.ui.plot import BEHIND, LABELS, Curve, Plot, column_ns
from tracelloc.ui.view import Settings, Span

_PAGE: Final = 10  # Columns that the cursor moves with shift


class SpanPlot(Plot, can_focus=False):
    """The plot of the main screen. It has the focus while keys select a span."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "step(-1)", "Earlier", tooltip="Earlier"),
        Binding("right", "step(1)", "Later", tooltip="Later"),
        Binding("shift+left,pageup", f"step(-{_PAGE})", show=False, tooltip="Much earlier"),
        Binding("shift+right,pagedown", f"step({_PAGE})", show=False, tooltip="Much later"),
        Binding("home,g", "step(-9999)", show=False, tooltip="To the start of tracing"),
        Binding("end,G", "step(9999)", show=False, tooltip="To now"),
        Binding("enter,space", "choose", "Set", tooltip="Set the start, then the end"),
        Binding("escape,q", "leave", "Cancel", tooltip="Cancel"),
    ]

    _curves: Sequence[Curve] = ()
    _flags: Sequence[tuple[str, int]] = ()
    _start_ns = _end_ns = 0
    _cursor_ns: int | None = None  # Position of the cursor while keys select a span
    _begin_ns: int | None = None  # Start of the span, once it is set
    _dragged_from: int | None = None  # The column where the mouse button was pressed

    def show(
        self, curves: Sequence[Curve], flags: Sequence[tuple[str, int]], start_ns: int, end_ns: int
    ) -> None:
        self._curves, self._flags = curves, flags
        self._start_ns, self._end_ns = start_ns, max(end_ns, start_ns + NS_PER_S)
        self._draw_again()

    def _draw_again(self) -> None:
        chosen = [(f"[ {self._ago(self._begin_ns)}", self._begin_ns)] if self._begin_ns else []
        if self._cursor_ns is not None:
            what = "start" if self._begin_ns is None else "end"
            words = f"{self._ago(self._cursor_ns)} set {what}: ← → Enter, Esc"
            chosen.append((words, self._cursor_ns))
        super().show(self._curves, [*self._flags, *chosen], self._start_ns, self._end_ns)

    def _ago(self, time_ns: int) -> str:
        if self.clock is not None:
            return self.clock(time_ns)
        return f"-{format_duration((self._end_ns - time_ns) / NS_PER_S)}"

    # --- by keys ---

    def begin(self, at_ns: int | None) -> bool:
        """Lets keys select a span, from ``at_ns`` or the end on. Returns False without room."""
        if not self.display or self._columns < 1:
            return False
        self._cursor_ns, self._begin_ns = self._end_ns if at_ns is None else at_ns, None
        self.can_focus = True
        self.focus()
        self._draw_again()
        return True

    def action_step(self, columns: int) -> None:
        if self._cursor_ns is not None:
            moved = self._cursor_ns + columns * self._column_ns
            self._cursor_ns = round(min(max(moved, self._start_ns), self._end_ns))
            self._draw_again()

    def action_choose(self) -> None:
        if self._begin_ns is None:
            self._begin_ns = self._cursor_ns
            self._draw_again()
        elif self._cursor_ns is not None:
            first, last = sorted((self._begin_ns, self._cursor_ns))
            self._end(*((first, last) if first < last else ()))

    def action_leave(self) -> None:
        self._end()

    def on_blur(self) -> None:
        if self._cursor_ns is not None:
            self._forget()

    def _end(self, *span: int) -> None:
        """Reports the selected span to the screen; nothing: the selection was cancelled."""
        self._forget()
        self.call_later(self.run_action, f"screen.choose_span{span}")

    def _forget(self) -> None:
        self._cursor_ns = self._begin_ns = self._dragged_from = None
        self.can_focus = False
        self._draw_again()

    # --- by mouse ---

    @property
    def _columns(self) -> int:
        return max(0, self.size.width - LABELS - BEHIND)

    @property
    def _column_ns(self) -> float:
        length_ns = self._end_ns - self._start_ns
        return column_ns(length_ns, self._columns, fits=self.clock is not None)

    def _edge_ns(self, column: int) -> int:
        inside = min(max(column, 0), self._columns)
        return min(self._start_ns + round(inside * self._column_ns), self._end_ns)

    def on_mouse_down(self, event: events.MouseDown) -> None:
        if event.button == 1 and self._end_ns:
            self._dragged_from = event.x - LABELS
            self.capture_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self._dragged_from is not None:
            self._begin_ns, self._cursor_ns = self._dragged_to(event.x - LABELS)
            self._draw_again()

    def on_mouse_up(self, event: events.MouseUp) -> None:
        """Selects the columns that were dragged over; a mere click selects a time."""
        if self._dragged_from is None:
            return
        self.release_mouse()
        first, last = self._dragged_to(event.x - LABELS)
        is_click = self._dragged_from == event.x - LABELS
        if is_click:
            self._forget()
            self.call_later(self.run_action, f"screen.go_to({first})")
        else:
            self._end(first, last)

    def _dragged_to(self, column: int) -> tuple[int, int]:
        assert self._dragged_from is not None
        first, last = sorted((self._dragged_from, column))
        return self._edge_ns(first), self._edge_ns(last + 1)


def plot_flags(settings: Settings) -> list[tuple[str, int]]:
    """Returns the flags on the plot: marks, the baseline, and the selected span."""
    flags = [(mark.name, mark.now_ns) for mark in settings.marks]
    if settings.baseline is not None:
        flags.append(("b", settings.baseline.now_ns))
    if settings.span is not None:
        flags += [("[", settings.span.begin_ns), ("]", settings.span.end_ns)]
    return flags


def span_note(span: Span, live_bytes: int) -> str:
    """Returns ``span 12:03:05–12:04:10 3.00 MiB (x)``: clock times, and the span's live bytes."""
    ahead_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    first, last = (
        time.strftime("%H:%M:%S", time.localtime((moment + ahead_ns) / NS_PER_S)) for moment in span
    )
    return f"span {first}–{last} {format_size(live_bytes)} (x)"
