"""The screen of a function's source: live bytes and blocks beside each line."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.screen import Screen
from textual.widgets import Static

from tracelloc.show.presentation.calltree import ListedFunction, SourceListing
from tracelloc.show.tables import Column, Columns
from tracelloc.text import about_of, format_size, plural
from tracelloc.ui.frames import ColouredSource, open_editor
from tracelloc.ui.keyfooter import KeyFooter
from tracelloc.ui.lineview import bindings
from tracelloc.ui.picture import Picture
from tracelloc.ui.tableview import Cell, Table, clean, crop, rows_of, short_count

if TYPE_CHECKING:
    from tracelloc.ui.state import State


def _columns(about: str = "", source: Callable[[int], Cell] = str) -> Columns[Any]:
    """Returns the columns of rows (number, figures or None). ``about``: the mark of estimates."""

    def figure(name: str, write: Callable[[int], str]) -> Callable[[Any], str]:
        def draw(row: tuple[int, Any]) -> str:
            value = 0 if row[1] is None else getattr(row[1], name)
            return about + write(value) if value else ""

        return draw

    return (
        Column("own", "own", 11, draw=figure("own_bytes", format_size), sorts=False),
        Column("bytes", "own + callees", 13, draw=figure("bytes", format_size), sorts=False),
        Column("count", "blocks", 8, draw=figure("count", short_count), from_width=70, sorts=False),
        Column("line", "line", 6, lambda row: row[0], sorts=False),
        Column("source", "source", 0, lambda row: row[0], source, sorts=False),
    )


class SourceScreen(Screen[None]):
    """The screen of one function's source. The cursor starts on the heaviest line."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("source")]
    AUTO_FOCUS = "#listing"

    def __init__(self, state: State, function: ListedFunction) -> None:
        super().__init__()
        self.state = state
        self.function = function
        self._listing: SourceListing | None = None
        self._source: Sequence[str] = ()
        self._coloured = ColouredSource("", ())
        self._trouble = ""  # Why there is no source
        self._numbers: Sequence[int] = ()  # Line numbers by row

    def compose(self) -> ComposeResult:
        yield Static("", id="title", markup=False)
        lines = Table(_columns(), id="listing")
        lines.name_enter("Stack")
        yield lines
        yield KeyFooter()

    def on_mount(self) -> None:
        if self.state.picture is not None:
            self.show(self.state.picture)

    def on_screen_resume(self) -> None:
        self.state.change(listed_function=self.function)

    def on_unmount(self) -> None:
        """Stops requesting the listing, unless another one has been requested meanwhile."""
        if self.state.settings.listed_function is self.function:
            self.state.change(listed_function=None)

    def show(self, picture: Picture) -> None:
        listing = picture.listing
        if listing is None or listing.function != self.function:
            return
        is_first = self._listing is None or self._listing.file != listing.file
        self._listing = listing
        if is_first:
            self._read(picture)
        last = max([len(self._source), *(listing.lines if self._trouble else ())])
        self._numbers = range(1, last + 1) if self._source else sorted(listing.lines)
        table = self.query_one(Table)
        with self.app.batch_update():
            self.query_one("#title", Static).update(self._title(picture))
            about = about_of(picture.snapshot.sample_bytes)
            first = bisect.bisect_left(self._numbers, listing.heaviest_line)
            columns = _columns(about, self._source_cell)
            rows = rows_of(
                self._numbers, lambda number: (number, listing.lines.get(number)), columns,
                first=min(first, max(len(self._numbers) - 1, 0)),
                empty=self._trouble or "no live block was allocated through this function",
            )  # fmt: skip
            table.show(rows, at_once=is_first)
            if is_first:
                table.center_cursor()

    def _read(self, picture: Picture) -> None:
        assert self._listing is not None
        self._source, self._trouble = (), ""
        if self._listing.file is None:
            self._trouble = "no source lines known for this function (Enter on a stack: why)"
            return
        try:
            target = picture.snapshot.target
            self._source = self.state.source.read_source(target, self._listing.file)
            self._coloured = ColouredSource(self._listing.file, self._source)
        except OSError as error:
            self._trouble = f"cannot read source: {error.strerror} (--sources OLD=NEW)"
            return
        last = max(self._listing.lines, default=0)
        if last > len(self._source):
            have = plural(len(self._source), "line")
            self._trouble = f"the file has only {have}: it is a different version"

    def _title(self, picture: Picture) -> Text:
        assert self._listing is not None
        listing, width = self._listing, self.size.width
        about = about_of(picture.snapshot.sample_bytes)
        figures = listing.figures
        blocks = "block" if figures.count == 1 else "blocks"
        name = Text(f" {crop(listing.function.step.name, width - 2)}", "bold")
        amounts = (
            f" {about}{format_size(figures.own_bytes)} allocated in it, "
            f"{about}{format_size(figures.bytes)} with its callees, "
            f"{about}{figures.count:,} {blocks}"
        )
        where = f" {clean(listing.file)}" if listing.file is not None else ""
        note = f" {self._trouble}" if self._trouble else ""
        lines = [name, Text(amounts), Text(where, "dim"), Text(note, "italic")]
        for line in lines:
            line.truncate(max(1, width), overflow="ellipsis")
        return Text("\n").join(line for line in lines if line.plain)

    def _source_cell(self, number: int) -> Cell:
        if number > len(self._source) or self._listing is None:
            return ""
        text = self._coloured.line(number)
        text.stylize("bold" if number in self._listing.lines else "dim")
        return text

    # --- keys ---

    @property
    def _line(self) -> int | None:
        key = self.query_one(Table).key
        return key if isinstance(key, int) else None

    def action_next_line(self, step: int) -> None:
        lines = sorted(self._listing.lines) if self._listing is not None else []
        now = self._line
        if not lines or now is None:
            return
        at = bisect.bisect_right(lines, now) if step > 0 else bisect.bisect_left(lines, now) - 1
        table = self.query_one(Table)
        table.move_to(bisect.bisect_left(self._numbers, lines[at % len(lines)]))
        table.center_cursor()

    @on(Table.Chosen, "#listing")
    def action_open_stack(self) -> None:
        line = self._line
        figures = None if self._listing is None or line is None else self._listing.lines.get(line)
        if figures is None:
            self.app.notify("No live block was allocated through this line", timeout=2)
        else:
            self.state.open_details(figures.stack)

    def action_edit(self) -> None:
        if self._listing is None or self._listing.file is None:
            self.app.notify("No source file", timeout=2)
        else:
            open_editor(self.app, self._listing.file, self._line or 1)
