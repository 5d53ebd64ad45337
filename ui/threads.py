"""Threads: what they hold, what they have done, and what goes from one to another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from textual.binding import Binding, BindingType
from textual.message import Message

from tracelloc.snapshots.activity import ThreadActivity, ThreadFlow
from tracelloc.ui.cells import bar, crop, fit, percent, right, signed_size, trend
from tracelloc.ui.lines import LineView, Piece
from tracelloc.units import format_size
from tracelloc.views.threads import ThreadRow, flows_of


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    width: int
    key: Callable[[ThreadRow], Any]
    """What rows are sorted by, smallest first."""
    text: Callable[[ThreadRow, str], str]
    """What is shown; the string goes before estimates."""
    from_width: int = 0
    """Cells of the whole line from which on there is room for it."""


def _growth(row: ThreadRow, _about: str) -> str:
    per_min = row.held.bytes_per_min
    return "" if per_min is None else f"{signed_size(per_min)} {trend(per_min)}"


def _size(
    title: str, width: int, size_bytes: Callable[[ThreadRow], int], from_width: int
) -> _Column:
    return _Column(
        title,
        width,
        lambda row: -size_bytes(row),
        lambda row, about: about + format_size(size_bytes(row)),
        from_width,
    )


ENDED: Final = "[ended]"
UNKNOWN: Final = "[unknown]"
"""The name of what can't be assigned to a thread."""
_COLUMNS: Final = (
    _size("outstanding", 14, lambda row: row.held.live_bytes, 0),
    _Column("growth/min", 15, lambda row: -(row.held.bytes_per_min or 0), _growth),
    _Column("thread", 9, lambda row: row.tid, lambda row, _: str(row.tid)),
    _Column("share", 8, lambda row: -row.held.share, lambda row, _: percent(row.held.share), 76),
    _Column(
        "blocks",
        12,
        lambda row: -row.held.live_count,
        lambda row, about: f"{about}{row.held.live_count:,}",
        76,
    ),
    _size("allocated", 12, lambda row: row.work.allocated_bytes, 100),
    _size("freed", 11, lambda row: row.work.freed_bytes, 100),
    _size("of others", 11, lambda row: row.work.remote_freed_bytes, 119),
    _size("handed on", 11, lambda row: row.work.handed_bytes, 119),
)
"""Those that need more room stand behind those that need less."""
_FLOWS: Final = 3
"""Shown of each kind."""
_LOW: Final = 8
"""Below so many lines the rows need all of them."""


def _columns(width: int) -> tuple[_Column, ...]:
    return tuple(column for column in _COLUMNS if width >= column.from_width)


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
        self._threads: list[ThreadRow] = []
        self._activity: ThreadActivity | None = None
        self._about = ""
        self._sort = 0

    def show(
        self,
        threads: Sequence[ThreadRow],
        activity: ThreadActivity | None = None,
        *,
        about: str = "",
        at_once: bool = False,
    ) -> None:
        """Takes what ``views.threads.thread_rows`` gives. The cursor stays on its thread.

        ``about`` is ``~`` if figures are estimates. While somebody presses keys, later,
        unless ``at_once``.
        """
        self.when_free(lambda: self._take(threads, activity, about), at_once=at_once)

    def _take(
        self, threads: Sequence[ThreadRow], activity: ThreadActivity | None, about: str
    ) -> None:
        tid = self.current_tid
        self._threads, self._activity, self._about = list(threads), activity, about
        self._order(tid)

    def rows_changed(self) -> None:
        """There may be room for the lines below, or none any more."""
        there = self._activity is not None and self.size.height >= _LOW
        self.footer_lines = 2 if there else 0
        super().rows_changed()

    @property
    def current_tid(self) -> int | None:
        """Of the cursor's row."""
        return self._threads[self.cursor].tid if self.cursor < len(self._threads) else None

    @property
    def sort_title(self) -> str:
        """The title of the column that rows are sorted by."""
        return _COLUMNS[self._sort].title

    def _order(self, tid: int | None) -> None:
        column = _COLUMNS[self._sort]
        self._threads.sort(key=lambda thread: (column.key(thread), thread.tid))
        for row, thread in enumerate(self._threads):
            if thread.tid == tid:
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
        return len(self._threads)

    def empty_text(self) -> str:
        """No thread holds anything."""
        return " No thread holds a block within the limits."

    def fixed(self, line: int, width: int) -> Iterable[Piece]:
        """Above the titles; below who frees whose blocks, in all and of the cursor's thread."""
        if line < 0:
            yield crop(self._sharing() if line == -2 else self._flows(), width), "lines--header"
            return
        titles = (
            right(column.title + (" ▼" if number == self._sort else ""), column.width)
            for number, column in enumerate(_columns(width))
        )
        yield "".join(titles) + "  name", "lines--header"

    def row(self, row: int, width: int) -> Iterable[Piece]:
        """A thread."""
        thread = self._threads[row]
        growth = thread.held.bytes_per_min
        for column in _columns(width):
            style = None
            if column.title == "growth/min" and growth:
                style = "lines--grown" if growth > 0 else "lines--shrunk"
            yield right(column.text(thread, self._about), column.width), style
        room = width - sum(column.width for column in _columns(width)) - 2
        name = 16 if room > 24 else room
        named = _name(thread.tid, thread.name)
        yield "  " + fit(named, name), None if thread.name is not None else "lines--dim"
        if room > name + 2:
            yield " " + bar(thread.held.share, room - name - 2), "lines--bar"

    def _sharing(self) -> str:
        assert self._activity is not None
        found = self._activity
        moved = self._amount(found.remote_freed_bytes, found.remote_freed_count)
        share = percent(found.remote_share)
        return f" freed by other threads: {moved}, {share} of all that were freed"

    def _flows(self) -> str:
        """The largest of the cursor's thread, as many as there is room for."""
        tid = self.current_tid
        if self._activity is None or tid is None:
            return ""
        given, taken = flows_of(self._activity, tid)
        parts = [f"{self._size_of(f)} to {self._named(f.ender_tid)}" for f in given[:_FLOWS]]
        parts += [f"{self._size_of(f)} from {self._named(f.maker_tid)}" for f in taken[:_FLOWS]]
        left = len(given) + len(taken) - len(parts)
        more = f", {left} more" if left else ""
        return f" {self._named(tid)}: {', '.join(parts) or 'no blocks to or from others'}{more}"

    def _amount(self, size_bytes: int, count: int) -> str:
        return f"{self._about}{format_size(size_bytes)} in {self._about}{count:,} blocks"

    def _size_of(self, flow: ThreadFlow) -> str:
        return self._about + format_size(flow.size_bytes)

    def _named(self, tid: int) -> str:
        """``13 worker``."""
        assert self._activity is not None
        name = _name(tid, self._activity.names.get(tid))
        return f"{tid} {crop(name, 16)}" if tid else name

    def chosen(self) -> None:
        """Tells which thread it was."""
        tid = self.current_tid
        if tid:
            self.post_message(self.Chosen(self, tid))


def _name(tid: int, name: str | None) -> str:
    if name is not None:
        return name
    return ENDED if tid else UNKNOWN
