"""The plot over time in which a span can be chosen, by keys or by dragging the mouse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from textual.binding import Binding, BindingType
from textual.message import Message

from tracelloc.text import NS_PER_S
from tracelloc.ui.plot import Curve, Plot
from tracelloc.ui.view import Span

_PAGE: Final = 10
"""Columns that the cursor moves by with shift."""


class SpanPlot(Plot, can_focus=False):
    """The plot of the main screen. It has the focus while a span is chosen by keys."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "step(-1)", show=False, tooltip="Earlier"),
        Binding("right,l", "step(1)", show=False, tooltip="Later"),
        Binding("shift+left,pageup,H", f"step(-{_PAGE})", show=False, tooltip="Much earlier"),
        Binding("shift+right,pagedown,L", f"step({_PAGE})", show=False, tooltip="Much later"),
        Binding("home,g", "step(-9999)", show=False, tooltip="To where tracing began"),
        Binding("end,G", "step(9999)", show=False, tooltip="To now"),
        Binding("enter,space", "choose", show=False, tooltip="Begin the span here; end it here"),
        Binding("escape,q", "leave", show=False, tooltip="Choose no span"),
    ]

    class Chosen(Message):
        """A span was chosen; None: none."""

        def __init__(self, span: Span | None) -> None:
            super().__init__()
            self.span = span

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name for it
        super().__init__(id=id)
        self._curves: Sequence[Curve] = ()
        self._flags: Sequence[tuple[str, int]] = ()
        self._start_ns = self._end_ns = 0
        self._cursor_ns: int | None = None
        """Where the cursor is while keys choose."""
        self._begin_ns: int | None = None
        """Where the span begins, once that is chosen."""
        self._dragged_from: int | None = None
        """The column that the mouse was pressed in."""

    def show(
        self, curves: Sequence[Curve], flags: Sequence[tuple[str, int]], start_ns: int, end_ns: int
    ) -> None:
        """Draws these, and what is being chosen."""
        self._curves, self._flags = curves, flags
        self._start_ns, self._end_ns = start_ns, max(end_ns, start_ns + NS_PER_S)
        self._draw_again()

    def _draw_again(self) -> None:
        chosen = [(f"[ {self._ago(self._begin_ns)}", self._begin_ns)] if self._begin_ns else []
        if self._cursor_ns is not None:
            what = "begin" if self._begin_ns is None else "end"
            words = f"{self._ago(self._cursor_ns)}: {what} here? ← → Enter, Esc"
            chosen.append((words, self._cursor_ns))
        super().show(self._curves, [*self._flags, *chosen], self._start_ns, self._end_ns)
