"""Tables, and text in terminal cells: cut and filled so that columns stay where they are.

Names from the target may hold anything; wide characters take two cells, combining ones
none, and ten thousand characters must cost no more than what is shown of them. Textual's
DataTable keeps a copy of every cell and measures all of them; this one asks for the cells
of a row when it draws it. Ten thousand rows cost what fifty do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from tracelloc.text import format_size, printable
from tracelloc.ui.lineview import COMPUTING, LineView, Piece, RowMessage

LONGEST_NAME: Final = 2048
"""Characters of a name that are looked at for drawing: no terminal shows more."""
CUT: Final = "…"
_WORTH: Final = 11
"""Cells that a caller needs, arrow included, for a cut name to say anything."""
WIDE: Final = 150
"""From so many cells on, columns of paths have more room."""
_PER_CELL: Final = 4
"""Characters looked at for each cell that there is; more would be combining ones."""
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_LEVELS: Final = "▁▂▃▄▅▆▇█"


def crop(name: str, width: int) -> str:
    """Crops text to at most ``width`` cells, all harmless, with an ellipsis where cut."""
    if width <= 0:
        return ""
    most = _PER_CELL * width + _PER_CELL
    text = printable(name[:most])
    if len(name) <= most and cell_len(text) <= width:
        return text
    # A wide character may have to go as a whole: a blank stands for its half.
    kept = set_cell_size(text[:most], min(width - 1, cell_len(text[:most])))
    return kept + CUT


def fit(name: str, width: int) -> str:
    """Fits text to exactly ``width`` cells, left-aligned."""
    text = crop(name, width)
    return text + " " * (width - cell_len(text))


def right(name: str, width: int) -> str:
    """Fits text to exactly ``width`` cells, right-aligned."""
    text = crop(name, width)
    return " " * (width - cell_len(text)) + text


def bar(share: float, width: int) -> str:
    """A horizontal bar of ``width`` cells, in steps of an eighth; something, if not zero."""
    share = min(max(share, 0.0), 1.0)
    eighths = round(share * width * 8)
    if share > 0:
        eighths = max(eighths, 1)
    full, part = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[part] if part else "")).ljust(width)[:width]


def sparkline(values: Sequence[float], width: int) -> str:
    """The newest values as columns from nothing to the highest; blanks where there are none."""
    shown = values[-width:] if width > 0 else []
    highest = max(shown, default=0)
    if highest <= 0:
        return (_LEVELS[0] * len(shown)).rjust(width)
    top = len(_LEVELS) - 1
    marks = (_LEVELS[round(max(value, 0) / highest * top)] for value in shown)
    return "".join(marks).rjust(width)


def signed_size(size_bytes: int) -> str:
    """Formats a size with its sign: ``+1.10 MiB``, ``-3 B``; zero has none."""
    return f"+{format_size(size_bytes)}" if size_bytes > 0 else format_size(size_bytes)


def trend(change: float) -> str:
    """Returns the direction as a character, readable without colours."""
    return "▲" if change > 0 else "▼" if change < 0 else "="


def clean(name: str) -> str:
    """A name of the target as it may be drawn: one line, nothing that steers a terminal."""
    return printable(name[:LONGEST_NAME])


def short_count(count: float) -> str:
    """Formats a count in five cells at most: ``12``, ``9.21k``, ``104k``; below ten a tenth."""
    if count < 0:
        return "-" + short_count(-count)
    if count < 9.95 and count != int(count):
        return f"{count:.1f}"
    for letter in ("", "k", "M", "G", "T", "P"):
        if count < 999.5 or letter == "P":
            digits = 0 if not letter or count >= 99.95 else 1 if count >= 9.995 else 2
            return f"{count:.{digits}f}{letter}"
        count /= 1000
    raise AssertionError


def gauge(share: float, width: int) -> str:
    """Draws a share of 0 to 1: ``▓▓▓▓░░``."""
    full = round(width * min(1.0, max(0.0, share)))
    return "▓" * full + "░" * (width - full)


class Bar(float):
    """A cell that is a bar as long as this share of its column."""


class TitleCell(str):
    """A cell such as ``function (file:line) ← caller``: what does not fit is left out whole."""

    __slots__ = ()

    def within(self, width: int) -> str:
        """The longest beginning of the title that is worth its room."""
        if len(self) <= width:
            return str(self)
        first, arrow, _ = self.partition(" ← ")
        function, _, _ = first.partition(" (")
        if arrow and len(first) + _WORTH <= width:
            return str(self)
        return first if len(first) <= width else function


class PathCell(str):
    """A cell whose end says most, such as a path: it is cut at its beginning."""

    __slots__ = ()

    def within(self, width: int) -> str:
        """The last ``width`` characters."""
        return str(self) if len(self) <= width else f"{CUT}{self[len(self) - width + 1 :]}"


class Heading(str):
    """The key of a row that has no cells: it is drawn as it stands and can't be chosen."""

    __slots__ = ()


Cell = str | Text | Bar
"""Plain text, or text with styles; never markup."""
_LOW: Final = 8
"""Below so many lines the rows need all of them."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    key: str
    title: str
    width: int
    """In cells; 0: whatever is left."""
    right: bool = True
    from_width: int = 0
    """Shown where the table has at least this many cells."""
    wide: int = 0
    """Width where the table has ``WIDE`` cells or more; 0: the usual one."""
    sorts: bool = True
    descending: bool = True
    """The order that is asked for first."""


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows of a table: their order, cells and notes."""

    order: Sequence[Hashable]
    """A key per row, in the order of the rows."""
    cells: Callable[[Hashable, str], Cell]
    """Returns the content of a key's row in a column; called for visible rows only."""
    sorted_by: str = ""
    descending: bool = True
    empty: str = ""
    """Text for no rows."""
    without: Collection[str] = ()
    """Columns to leave out."""
    footer: Sequence[Callable[[Hashable | None], str]] = ()
    """Lines below the rows, about the key under the cursor."""
    first: int = 0
    """Number of the row that the cursor begins on."""


class Table(LineView[TableRows]):
    """Rows under a line of titles. See the module."""

    class SortAsked(RowMessage):
        """A click on the title of a column: ``key``."""

    def __init__(self, columns: Sequence[Column], *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self.columns = tuple(columns)
        self.header_lines = int(any(column.title for column in columns))
        self._rows = TableRows((), lambda _key, _column: "", empty=COMPUTING)
        self._key: Hashable | None = None
        self._at_top = True
        """The cursor has not been moved: it stays on the first row that is of interest."""

    @property
    def key(self) -> Hashable | None:
        """Key of the row under the cursor; None on a heading and without rows."""
        return None if isinstance(self._key, Heading) else self._key

    @property
    def without(self) -> Collection[str]:
        """Keys of columns that are left out."""
        return self._rows.without

    @property
    def order(self) -> Sequence[Hashable]:
        """The keys in the order they are shown in."""
        return self._rows.order

    def show(self, content: TableRows, *, at_once: bool = False) -> None:
        """Shows these rows. Their order waits while someone is at it, unless ``at_once``."""
        at_once = at_once or not len(self.order)
        if not at_once and self.is_held:
            self._rows = replace(content, order=self.order)
            self.refresh()
        self.when_free(lambda: self._take(content), at_once=at_once)

    def _take(self, rows: TableRows) -> None:
        offset = self.cursor - round(self.scroll_target_y)
        self._rows = rows
        if self._at_top or self._key is None:
            self.cursor = rows.first
        elif self._key in rows.order:
            self.cursor = rows.order.index(self._key)
        # Else its row is gone: the one that is there now.
        self.rows_changed()
        if not self._at_top and self.cursor != offset + round(self.scroll_target_y):
            self._scroll_rows(max(0, self.cursor - offset))
        self._note_key()

    def _note_key(self) -> None:
        key = self.order[self.cursor] if len(self.order) else None
        if key != self._key:
            self._key = key
            super().moved()

    def moved(self) -> None:
        """The cursor belongs to another row."""
        self._note_key()

    def move_to(self, row: int) -> None:
        """Puts the cursor on a row, in view; there it stays with what the row stands for."""
        self._at_top = False
        super().move_to(row)

    def action_edge(self, step: int) -> None:
        """Moves to the last row, or to the first and stays on whichever is first."""
        super().action_edge(step)
        self._at_top = step < 0

    def header_clicked(self, line: int, x: int) -> None:
        """Asks for the rows in the order of a column."""
        left = 1
        for column, room in self._shown_columns(self.width):
            if left <= x < left + room and column.sorts:
                self.post_message(self.SortAsked(self, column.key))
            left += room + 2

    # --- drawing ---

    def rows_changed(self) -> None:
        """There may be room for the lines below, or none any more."""
        self.footer_lines = len(self._rows.footer) if self.size.height >= _LOW else 0
        super().rows_changed()

    def row_count(self) -> int:
        """Number of rows."""
        return len(self.order)

    def empty_text(self) -> str:
        """Text for a table without rows."""
        return self._rows.empty

    def _shown_columns(self, width: int) -> list[tuple[Column, int]]:
        rows = self._rows
        # The sort column is always shown if any column fits.
        shown = [
            column
            for column in self.columns
            if column.key not in rows.without
            and (width >= column.from_width or column.key == rows.sorted_by)
        ]
        # The title of what they are sorted by is seen whole.
        by = rows.sorted_by
        wide = width >= WIDE
        widths = [
            max(c.wide if wide and c.wide else c.width, len(c.title) + 2 if c.key == by else 0)
            for c in shown
        ]
        left = width - sum(widths) - 2 * len(shown) + 1
        return [
            (column, room if column.width else max(1, left + room))
            for column, room in zip(shown, widths, strict=True)
        ]

    def fixed(self, line: int, width: int) -> Iterable[Piece]:
        """Above the titles, below what the rows say."""
        if line < 0:
            yield crop(self._rows.footer[line](self._key), width), "lines--header"
            return
        arrow = "▼" if self._rows.descending else "▲"
        for column, room in self._shown_columns(width):
            is_sorted = column.key == self._rows.sorted_by
            title = f"{column.title} {arrow}" if is_sorted else column.title
            space = max(room - len(title), 0)
            yield " " * (space + 1 if column.right else 1), "lines--header"
            yield crop(title, room), "lines--sorted" if is_sorted else "lines--header"
            yield " " * (1 if column.right else space + 1), "lines--header"

    def row(self, row: int, width: int) -> Iterable[Piece]:
        """The cells of a row."""
        key = self.order[row]
        yield "›" if row == self.cursor and self.row_cursor and self.is_active else " ", None
        if isinstance(key, Heading):
            yield crop(key, width - 1), "lines--header"
            return
        for number, (column, room) in enumerate(self._shown_columns(width)):
            if number:
                yield "  ", None
            cell = self._rows.cells(key, column.key)
            if isinstance(cell, Bar):
                yield bar(cell, room), "lines--bar"
            elif isinstance(cell, TitleCell | PathCell):
                yield fit(cell.within(room), room), None
            elif isinstance(cell, str):
                yield (right if column.right else fit)(cell, room), None
            else:
                yield from self._styled(cell, room, to_right=column.right)

    def _styled(self, text: Text, room: int, *, to_right: bool) -> Iterable[Piece]:
        """A cell with styles: cut and filled like a plain one."""
        shown = text[: 4 * room + 16]
        if shown.cell_len > room:
            shown.truncate(room, overflow="ellipsis")
        shown.align("right" if to_right else "left", room)
        for segment in shown.render(self.app.console):
            if segment.text:
                yield segment.text, segment.style
