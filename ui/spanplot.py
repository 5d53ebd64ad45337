"""The plot over time, where keys or the mouse select a span."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import BindingType
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from tracelloc.text import NS_PER_S, format_duration
from tracelloc.ui.lineview import bindings
from tracelloc.ui.plot import BEHIND, LABELS, Curve, Drawing, column_ns, draw_plot, styled_runs


class SpanPlot(Widget, can_focus=False):
    """The widget of the plot. On the main screen it has the focus while keys select a span."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "plot--axis", "plot--heap", "plot--kept", "plot--leak", "plot--limit", "plot--mark",
        "plot--objects", "plot--rss",
    }  # fmt: skip

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("span")]

    clock: Callable[[int], str] | None = None  # Time of day; None: times are told from now
    _curves: Sequence[Curve] = ()
    _flags: Sequence[tuple[str, int]] = ()
    _drawing: Drawing = []  # noqa: RUF012 - never changed
    _start_ns = _end_ns = 0
    _cursor_ns: int | None = None  # Position of the cursor while keys select a span
    _begin_ns: int | None = None  # Start of the span, once it is set
    _dragged_from: int | None = None  # The column where the mouse button was pressed

    def show(
        self, curves: Sequence[Curve], flags: Sequence[tuple[str, int]], start_ns: int, end_ns: int
    ) -> None:
        self._curves, self._flags = curves, flags
        self._start_ns, self._end_ns = start_ns, max(end_ns, start_ns + NS_PER_S)
        self.on_resize()

    def on_resize(self) -> None:
        """Draws again; only what has changed is sent to the terminal."""
        if not self._end_ns:
            return
        flags = list(self._flags)
        if self._begin_ns:
            flags.append((f"[ {self._ago(self._begin_ns)}", self._begin_ns))
        if self._cursor_ns is not None:
            what = "start" if self._begin_ns is None else "end"
            words = f"{self._ago(self._cursor_ns)} set {what}: ← → Enter, Esc"
            flags.append((words, self._cursor_ns))
        before, (width, height) = self._drawing, self.size
        self._drawing = now = draw_plot(
            self._curves, flags, self._start_ns, self._end_ns,
            width=width, height=height, clock=self.clock,
        )  # fmt: skip
        is_equal = [len(line) for line in before] == [len(line) for line in now]
        for y, line in enumerate(now):
            found = [x for x, cell in enumerate(line) if not is_equal or cell != before[y][x]]
            if found:
                self.refresh(Region(found[0], y, found[-1] - found[0] + 1, 1))

    def render_line(self, y: int) -> Strip:
        if y >= len(self._drawing):
            return Strip.blank(self.size.width, self.rich_style)
        segments = []
        for text, name in styled_runs(self._drawing[y]):
            found = [self.get_component_rich_style(part) for part in name.split()]
            style, *behind = found or [self.rich_style]
            if behind and getattr(self.app, "is_colourless", False):
                text = "█" * len(text)  # noqa: PLW2901 - a part of a cell would look like a gap
            colour = Style(bgcolor=behind[0].color) if behind else Style.null()
            segments.append(Segment(text, style + colour))
        return Strip(segments, len(self._drawing[y]))

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
        self.on_resize()
        return True

    def action_step(self, columns: int) -> None:
        if self._cursor_ns is not None:
            moved = self._cursor_ns + columns * self._column_ns
            self._cursor_ns = round(min(max(moved, self._start_ns), self._end_ns))
            self.on_resize()

    def action_choose(self) -> None:
        if self._begin_ns is None:
            self._begin_ns = self._cursor_ns
            self.on_resize()
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
        self.on_resize()

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
        if event.button == 1 and self._end_ns and self.id == "plot":
            self._dragged_from = event.x - LABELS
            self.capture_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self._dragged_from is not None:
            self._begin_ns, self._cursor_ns = self._dragged_to(event.x - LABELS)
            self.on_resize()

    def on_mouse_up(self, event: events.MouseUp) -> None:
        if self._dragged_from is None:
            return
        self.release_mouse()
        first, last = self._dragged_to(event.x - LABELS)
        if self._dragged_from == event.x - LABELS:
            self._forget()
            self.call_later(self.run_action, f"screen.go_to({first})")
        else:
            self._end(first, last)

    def _dragged_to(self, column: int) -> tuple[int, int]:
        assert self._dragged_from is not None
        first, last = sorted((self._dragged_from, column))
        return self._edge_ns(first), self._edge_ns(last + 1)
