"""Threads and what the blocks hold that they have allocated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from textual.binding import Binding, BindingType
from textual.message import Message

from tracelloc.snapshots.spread import ThreadStat
from tracelloc.ui.cells import bar, fit, percent, right, signed_size, trend
from tracelloc.ui.lines import LineView, Piece
from tracelloc.units import format_size


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    width: int
    key: Callable[[ThreadStat], Any]
    """What rows are sorted by, smallest first."""
    text: Callable[[ThreadStat], str]


def _growth(stat: ThreadStat) -> str:
    if stat.bytes_per_min is None:
        return ""
    return f"{signed_size(stat.bytes_per_min)} {trend(stat.bytes_per_min)}"


ENDED: Final = "[ended]"
_WIDE: Final = 76
"""Cells from which on there is room for all columns."""
_COLUMNS: Final = (
    _Column("outstanding", 14, lambda s: -s.live_bytes, lambda s: format_size(s.live_bytes)),
    _Column("growth/min", 15, lambda s: -(s.bytes_per_min or 0), _growth),
    _Column("thread", 9, lambda s: s.tid, lambda s: str(s.tid)),
    _Column("share", 8, lambda s: -s.share, lambda s: percent(s.share)),
    _Column("blocks", 12, lambda s: -s.live_count, lambda s: f"{s.live_count:,}"),
)
_NARROW: Final = _COLUMNS[:3]


def _columns(width: int) -> tuple[_Column, ...]:
    return _COLUMNS if width >= _WIDE else _NARROW


class ThreadsView(LineView):
    """One row per thread."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "next_sort", "Sort", tooltip="Sort threads by the next column"),
    ]
    header_lines = 1

    class Chosen(Message):
        """The user wants to see only what this thread allocated."""

        def __init__(self, view: ThreadsView, tid: int) -> None:
            super().__init__()
            self.view = view
            self.tid = tid

        @property
        def control(self) -> ThreadsView:
            """The view that sent it."""
            return self.view

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id, classes=classes)
        self._stats: list[ThreadStat] = []
        self._sort = 0

    def show(self, stats: Sequence[ThreadStat], *, at_once: bool = False) -> None:
        """Takes what ``spread.threads_of`` gives. The cursor stays on its thread.

        While somebody presses keys, later, unless ``at_once``.
        """
        self.when_free(lambda: self._take(stats), at_once=at_once)

    def _take(self, stats: Sequence[ThreadStat]) -> None:
        tid = self.current_tid
        self._stats = list(stats)
        self._order(tid)

    @property
    def current_tid(self) -> int | None:
        """Of the cursor's row."""
        return self._stats[self.cursor].tid if self.cursor < len(self._stats) else None

    @property
    def sort_title(self) -> str:
        """The title of the column that rows are sorted by."""
        return _COLUMNS[self._sort].title

    def _order(self, tid: int | None) -> None:
        column = _COLUMNS[self._sort]
        self._stats.sort(key=lambda stat: (column.key(stat), stat.tid))
        for row, stat in enumerate(self._stats):
            if stat.tid == tid:
                self.cursor = row
        self.rows_changed()

    def sort_by(self, column: int) -> None:
        """By the column with this number."""
        tid = self.current_tid
        self._sort = column % len(_columns(self.width))
        self._order(tid)
        self.show_cursor()

    def action_next_sort(self) -> None:
        """By the next column."""
        self.sort_by(self._sort + 1)

    def header_clicked(self, line: int, x: int) -> None:
        """By the column that was clicked."""
        end = 0
        for number, column in enumerate(_columns(self.width)):
            end += column.width
            if x < end:
                self.sort_by(number)
                return

    def row_count(self) -> int:
        """Threads."""
        return len(self._stats)

    def empty_text(self) -> str:
        """No thread holds anything."""
        return " No thread holds a block within the limits."

    def fixed(self, line: int, width: int) -> Iterable[Piece]:
        """The titles."""
        titles = (
            right(column.title + (" ▼" if number == self._sort else ""), column.width)
            for number, column in enumerate(_columns(width))
        )
        yield "".join(titles) + "  name", "lines--header"

    def row(self, row: int, width: int) -> Iterable[Piece]:
        """A thread."""
        stat = self._stats[row]
        for column in _columns(width):
            style = None
            if column.title == "growth/min" and stat.bytes_per_min:
                style = "lines--grown" if stat.bytes_per_min > 0 else "lines--shrunk"
            yield right(column.text(stat), column.width), style
        room = width - sum(column.width for column in _columns(width)) - 2
        name = 16 if room > 24 else room
        named = stat.name if stat.name is not None else ENDED
        yield "  " + fit(named, name), None if stat.name is not None else "lines--dim"
        if room > name + 2:
            yield " " + bar(stat.share, room - name - 2), "lines--bar"

    def chosen(self) -> None:
        """Tells which thread it was."""
        tid = self.current_tid
        if tid is not None:
            self.post_message(self.Chosen(self, tid))
