"""One line with the names of the views and, at its right, what narrows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from rich.segment import Segment
from textual import events
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from tracelloc.snapshots.analysis import Limits
from tracelloc.ui.cells import crop
from tracelloc.ui.picture import Picture
from tracelloc.ui.view import View
from tracelloc.units import NS_PER_S, format_duration, format_size
from tracelloc.views.metrics import Metric


class TabLine(Widget):
    """Tabs that take one line. At narrow widths the others show their numbers only."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"tabs--active", "tabs--note"}

    class Chosen(Message):
        """A tab was clicked."""

        def __init__(self, view: View[Any]) -> None:
            super().__init__()
            self.view = view

    def __init__(self, views: Sequence[View[Any]], *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._views = views
        self._active = views[0]
        self._notes = ""

    def show(self, active: View[Any], notes: str) -> None:
        """Which tab is on top, and what is to be said at the right."""
        if (active, notes) != (self._active, self._notes):
            self._active, self._notes = active, notes
            self.refresh()

    def _labels(self, width: int) -> list[tuple[View[Any], str]]:
        """As much of the titles as leaves room for the notes."""
        full = [(view, f" {view.key} {view.title} ") for view in self._views]
        tight = [(view, label if view is self._active else label[:-1]) for view, label in full]
        bare = [(view, label if view is self._active else f" {view.key} ") for view, label in full]
        room = width - min(len(self._notes) + 3, 40) if self._notes else width
        for labels in (full, tight):
            if sum(len(label) for _, label in labels) <= room:
                return labels
        return bare

    def render_line(self, y: int) -> Strip:
        """The line."""
        width = self.size.width
        base = self.rich_style
        if y:
            return Strip.blank(width, base)
        active = self.get_component_rich_style("tabs--active")
        labels = self._labels(width)
        segments = [
            Segment(label, active if view is self._active else base) for view, label in labels
        ]
        room = width - sum(len(label) for _, label in labels) - 2
        if self._notes and room >= 8:
            notes = crop(self._notes, room)
            style = self.get_component_rich_style("tabs--note")
            space = Strip([Segment(notes)]).cell_length
            segments.append(Segment(" " * (room - space + 1), base))
            segments.append(Segment(notes, style))
        return Strip(segments).adjust_cell_length(width, base)

    def on_click(self, event: events.Click) -> None:
        """Chooses the tab under the pointer."""
        left = 0
        for view, label in self._labels(self.size.width):
            left += len(label)
            if event.x < left:
                self.post_message(self.Chosen(view))
                return


def notes_of(picture: Picture) -> str:
    """For the line of the tabs."""
    settings = picture.settings
    notes = _limits(settings.limits)
    if settings.view.by_metric and settings.metric is not Metric.BYTES:
        notes.append(f"by {settings.metric.value} (w)")
    if settings.baseline is not None:
        notes.append("since baseline (b)")
    if settings.difference is not None:
        notes.append(f"change {settings.difference.title} (d)")
    if settings.verdicts:
        notes.append(f"only {' or '.join(v.value for v in settings.verdicts)} (V)")
    if settings.search:
        notes.append(f"/{settings.search}: {picture.found:,}")
    if not settings.filters_on:
        notes.append("filters off (n)")
    if picture.names_pending:
        notes.append(f"naming {picture.names_pending:,} more")
    return "  ".join(notes)


def _limits(limits: Limits) -> list[str]:
    """In words: ``age ≥ 5m``, ``size ≤ 4.00 KiB``."""
    ages = ("≥", limits.min_age_ns or None), ("≤", limits.max_age_ns)
    sizes = ("≥", limits.min_size_bytes or None), ("≤", limits.max_size_bytes)
    words = [f"age {sign} {format_duration(n / NS_PER_S)}" for sign, n in ages if n is not None]
    words += [f"size {sign} {format_size(n)}" for sign, n in sizes if n is not None]
    return words if limits.tid is None else [*words, f"thread {limits.tid}"]
