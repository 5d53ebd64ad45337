"""Tables, and text cut and padded to a width in terminal cells.

Names from the target may contain any character: wide ones take two cells, combining ones
none. Drawing a name of ten thousand characters costs no more than its visible part.
Textual's DataTable copies and measures every cell; ``Table`` asks only for the cells of
the rows that it draws, so ten thousand rows cost as much as fifty.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from tracelloc.dataclass import dataclass, replace
from tracelloc.model.verdicts import Verdict
from tracelloc.show.tables import Column, Columns
from tracelloc.text import printable, signed_size
from tracelloc.ui.driver import HAS_FEW_COLOURS
from tracelloc.ui.lineview import COMPUTING, LineView, Piece, RowMessage, wrapped

if TYPE_CHECKING:
    from tracelloc.ui.view import Sorting

R = TypeVar("R")

_MOST_DRAWN: Final = 1000  # Cells that are remembered as they are drawn
LONGEST_NAME: Final = 2048  # Characters of a name that drawing considers: no terminal shows more
CUT: Final = "…"
# Fewest cells, arrow included, in which a truncated caller's name is still informative.
_WORTH: Final = 11
WIDE: Final = 150  # Width of a table from which columns of paths get more room
# Characters considered per available cell; any further ones would be combining ones.
_PER_CELL: Final = 4
# A shade of gray in place of red would be weaker than plain text.
GROWING: Final = "bold" if HAS_FEW_COLOURS else "bold red"
SHRINKING: Final = "green"
# Styles of verdicts; others are dim.
VERDICT_STYLES: Final = {
    Verdict.LEAKING: "bold reverse" if HAS_FEW_COLOURS else "bold red",
    Verdict.GROWING: "bold" if HAS_FEW_COLOURS else "yellow",
    Verdict.LOST: "bold" if HAS_FEW_COLOURS else "red",
}
_HARMLESS: Final = (Verdict.CACHE, Verdict.BUSY, Verdict.START_UP, Verdict.EARLIER)
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_LEVELS: Final = "▁▂▃▄▅▆▇█"


def crop(name: str, width: int) -> str:
    """Returns the printable text in at most ``width`` cells, with an ellipsis if it was cut."""
    if width <= 0:
        return ""
    most = _PER_CELL * width + _PER_CELL
    text = printable(name[:most])
    if len(name) <= most and cell_len(text) <= width:
        return text
    # If the cut would split a wide character, a blank takes its place.
    kept = set_cell_size(text[:most], min(width - 1, cell_len(text[:most])))
    return kept + CUT


def fit(name: str, width: int, *, to_right: bool = False) -> str:
    """Returns the text in exactly ``width`` cells."""
    text = crop(name, width)
    space = " " * (width - cell_len(text))
    return space + text if to_right else text + space


def bar(share: float, width: int) -> str:
    """Returns a horizontal bar in ``width`` cells, in eighths of a cell; at least one if not 0."""
    share = min(max(share, 0.0), 1.0)
    eighths = max(round(share * width * 8), 1 if share > 0 else 0)
    full, part = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[part] if part else "")).ljust(width)[:width]


def sparkline(values: Sequence[float], width: int) -> str:
    """Returns the newest values as vertical bars from 0 to the highest, padded on the left."""
    shown = values[-width:] if width > 0 else []
    highest = max(shown, default=0)
    if highest <= 0:
        return (_LEVELS[0] * len(shown)).rjust(width)
    top = len(_LEVELS) - 1
    marks = (_LEVELS[round(max(value, 0) / highest * top)] for value in shown)
    return "".join(marks).rjust(width)


def arrow(change: float) -> str:
    """Returns the direction as a character, readable without colors."""
    return "▲" if change > 0 else "▼" if change < 0 else "="


def clean(name: str) -> str:
    """Returns a name from the target as one printable line without control characters."""
    return printable(name[:LONGEST_NAME])


def short_count(count: float) -> str:
    """Returns a count in at most five cells: ``12``, ``9.21k``, ``104k``; tenths below ten."""
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


def growth_cell(bytes_per_min: int, verdict: Verdict | None = None) -> Text:
    """Returns ``+1.10 MiB ▲``, readable without color; dim with a harmless verdict."""
    style = GROWING if bytes_per_min > 0 else SHRINKING if bytes_per_min < 0 else "dim"
    if bytes_per_min > 0 and verdict in _HARMLESS:
        style = "dim"
    return Text(f"{signed_size(bytes_per_min)} {arrow(bytes_per_min)}", style)


def verdict_word(verdict: Verdict) -> str:
    """Returns a verdict as the screen has it."""
    return "before" if verdict is Verdict.EARLIER else verdict.value


def verdict_cell(verdict: Verdict | None) -> Text:
    """Returns the verdict in one word."""
    if verdict is None:
        return Text("-", "dim")
    word = verdict_word(verdict)
    is_leak = verdict is Verdict.LEAKING
    return Text(word.upper() if is_leak else word, VERDICT_STYLES.get(verdict, "dim"))


class Bar(float):
    """A cell with a bar; the number is its share of the column's width, 0 to 1."""


class TitleCell(str):
    """A cell such as ``function (file:line) ← caller``; parts that don't fit are omitted."""

    __slots__ = ()

    def within(self, width: int) -> str:
        if len(self) <= width:
            return str(self)
        first, arrow, _ = self.partition(" ← ")
        function, _, _ = first.partition(" (")
        if arrow and len(first) + _WORTH <= width:
            return str(self)
        return first if len(first) <= width else function


class PathCell(str):
    """A cell that is cut at its beginning, such as a path."""

    __slots__ = ()

    def within(self, width: int) -> str:
        return str(self) if len(self) <= width else f"{CUT}{self[len(self) - width + 1 :]}"


class CommandCell(str):
    """A cell with a command line: where it is too long, words lose their directories."""

    __slots__ = ()

    def within(self, width: int) -> str:
        if len(self) <= width:
            return str(self)
        return " ".join(word.rpartition("/")[2] or word for word in self.split(" "))


class Heading(str):
    """The key and text of a row without cells, which can't be chosen."""

    __slots__ = ()


Cell = str | Text | Bar  # Plain text, or text with styles; never markup
# Lines of text below the rows, if it has as many, even where rows are out of sight for it.
_LEAST_TEXT_LINES: Final = 4


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows of a table: their order, cells and notes."""

    order: Sequence[Hashable]  # A key per row, in the order of the rows
    # Returns the content of a key's row in a column; called for visible rows only.
    cells: Callable[[Hashable, str], Cell]
    sorted_by: str = ""  # Key of the column that rows are sorted by
    descending: bool = True
    empty: str = ""  # Text that is shown if there are no rows
    without: Collection[str] = ()  # Keys of columns to leave out
    # Lines below the rows, computed from the key under the cursor.
    footer: Sequence[Callable[[Hashable | None], str | Text]] = ()
    # Sentences below the rows instead of a footer, which are wrapped.
    text: Callable[[Hashable | None], Sequence[str]] | None = None
    first: int = 0  # Number of the row where the cursor starts


def no_rows(why: str) -> TableRows:
    """Returns an empty table with a text on the reason."""
    return TableRows((), lambda _key, _column: "", empty=why)


def sorted_rows(
    items: Mapping[Any, R], columns: Columns[R], sorting: Sorting, most: int | None = None, *,
    find: Callable[[Any], R | None] | None = None, **more: Any,
) -> TableRows:  # fmt: skip
    """Returns ``most`` rows by key, stably sorted; ``find``: a row that was shown before."""
    value = next(column.value for column in columns if column.key == sorting.column)
    order = sorted(items, key=lambda key: value(items[key]), reverse=sorting.descending)[:most]
    shown = {"sorted_by": sorting.column, "descending": sorting.descending, **more}
    return rows_of(order, find or items.get, columns, **shown)


def rows_of(
    order: Sequence[Any], find: Callable[[Any], R | None], columns: Columns[R], **more: Any
) -> TableRows:
    """Returns rows by key, in their order. ``find``: the row of a key; ``more``: other fields."""
    by_key = {column.key: column for column in columns}

    def cell(key: Hashable, column: str) -> Cell:
        # The order of rows may be older than the rows; a new one comes soon.
        row = find(key)
        found: Cell = "" if row is None else by_key[column].cell(row)
        return found

    return TableRows(order, cell, **more)


class Table(LineView[TableRows]):
    """A table with a header line that draws only its visible rows."""

    class SortAsked(RowMessage):
        """The title of column ``key`` was clicked."""

    low = 8  # Height below which there is no footer: the rows need all lines

    def __init__(self, columns: Columns[Any], *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self.columns = tuple(columns)
        self.header_lines = int(any(column.title for column in columns))
        self._rows = no_rows(COMPUTING)
        # The rows, key and width that the wrapped text is of, and its lines
        self._wrapped: tuple[TableRows, Hashable | None, int, list[str]] | None = None
        self._key: Hashable | None = None
        self._at_top = True  # The cursor was not moved, so it stays on row `TableRows.first`
        self._drawn: dict[Hashable, list[Piece]] = {}  # Styled cells: most are drawn again

    @property
    def key(self) -> Hashable | None:
        """Key of the row under the cursor; None if that is a heading or there are no rows."""
        return None if isinstance(self._key, Heading) else self._key

    @property
    def without(self) -> Collection[str]:
        return self._rows.without

    @property
    def order(self) -> Sequence[Hashable]:
        return self._rows.order

    def show(self, content: TableRows, *, at_once: bool = False) -> None:
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
        # If the cursor's row is gone, the cursor stays at its position.
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
        self._note_key()

    def move_to(self, row: int) -> None:
        """Moves the cursor to a row; from now on it follows that row's key."""
        self._at_top = False
        super().move_to(row)

    def action_edge(self, step: int) -> None:
        super().action_edge(step)
        self._at_top = step < 0

    def header_clicked(self, line: int, x: int) -> None:
        left = 1
        for column, room in self._shown_columns(self.width):
            if left <= x < left + room and column.sorts:
                self.post_message(self.SortAsked(self, column.key))
            left += room + 2

    # --- drawing ---

    @property
    def footer_lines(self) -> int:
        """Lines below the rows, by the current size: Textual does not report all changes."""
        height, wanted = self.size.height, len(self._rows.footer)
        if height < self.low:
            return 0
        if self._rows.text is not None:
            room = height - self.header_lines - len(self.order)
            wanted = min(len(self._wrapped_text(self.width)), max(room, _LEAST_TEXT_LINES))
        return min(wanted, max(height - 2, 0))

    def row_count(self) -> int:
        return len(self.order)

    def empty_text(self) -> str:
        return self._rows.empty

    def _shown_columns(self, width: int) -> list[tuple[Column[Any], int]]:
        rows = self._rows
        # The sort column is always shown if any column fits.
        known = (column for column in self.columns if column.key not in rows.without)
        shown = [one for one in known if width >= one.from_width or one.key == rows.sorted_by]
        # The sort column's title is never cut.
        by = rows.sorted_by
        wide = width >= WIDE
        widths = [
            max(c.wide if wide and c.wide else c.width, len(c.title) + 2 if c.key == by else 0)
            for c in shown
        ]
        left = width - sum(widths) - 2 * len(shown) + 1
        pairs = zip(shown, widths, strict=True)
        return [(column, room if column.width else max(1, left + room)) for column, room in pairs]

    def fixed_line(self, line: int, width: int) -> Iterable[Piece]:
        if line < 0:
            shown = self._footer_line(line, width)
            if isinstance(shown, str):
                yield crop(shown, width), "lines--header"
            else:
                yield from self._styled(shown, width, to_right=False)
            return
        arrow = "▼" if self._rows.descending else "▲"
        for column, room in self._shown_columns(width):
            is_sorted = column.key == self._rows.sorted_by
            title = f"{column.title} {arrow}" if is_sorted else column.title
            space = max(room - len(title), 0)
            yield " " * (space + 1 if column.right else 1), "lines--header"
            yield crop(title, room), "lines--sorted" if is_sorted else "lines--header"
            yield " " * (1 if column.right else space + 1), "lines--header"

    def _footer_line(self, line: int, width: int) -> str | Text:
        if self._rows.text is None:
            return self._rows.footer[line + self.footer_lines](self._key)
        lines, at = self._wrapped_text(width), line + self.footer_lines
        return f" {lines[at]}" if at < len(lines) else ""

    def _wrapped_text(self, width: int) -> list[str]:
        rows, key, known = self._rows, self._key, self._wrapped
        if known is not None and known[0] is rows and known[1:3] == (key, width):
            return known[3]
        sentences = () if rows.text is None else rows.text(key)
        pieces = [piece for each in sentences for piece in wrapped(each, width - 1)]
        self._wrapped = rows, key, width, pieces
        return pieces

    def row(self, row: int, width: int) -> Iterable[Piece]:
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
            elif isinstance(cell, TitleCell | PathCell | CommandCell):
                yield fit(cell.within(room), room), None
            elif isinstance(cell, str):
                yield fit(cell, room, to_right=column.right), None
            else:
                yield from self._styled(cell, room, to_right=column.right)

    def _styled(self, text: Text, room: int, *, to_right: bool) -> list[Piece]:
        text = text[: 4 * room + 16] if len(text) > 4 * room + 16 else text
        key = text.plain, text.style, tuple(text.spans), room, to_right
        found = self._drawn.get(key)
        if found is None:
            if len(self._drawn) > _MOST_DRAWN:
                self._drawn.clear()
            found = self._drawn[key] = self._draw(text.copy(), room, to_right=to_right)
        return found

    def _draw(self, shown: Text, room: int, *, to_right: bool) -> list[Piece]:
        if shown.cell_len > room:
            shown.truncate(room, overflow="ellipsis")
        shown.align("right" if to_right else "left", room)
        # Rich leaves a text's own style out if no part of it has another one.
        own = self.app.console.get_style(shown.style)
        segments = shown.render(self.app.console)
        return [(segment.text, segment.style or own) for segment in segments if segment.text]
