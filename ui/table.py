"""A table that draws only the rows one sees, and whose cursor stays on its row.

Textual's DataTable keeps a copy of every cell and measures all of them; this one asks for
the cells of a row when it draws it. Ten thousand rows cost what fifty do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from tracelloc.ui.cells import fit, right

Cell = str | Text
"""Plain text, or text with styles; never markup."""

HOLD_S: Final = 0.5
"""How long after a key rows stay where they are: nobody is to press Enter on another row."""


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
    sorts: bool = True


@dataclass(frozen=True, slots=True)
class Rows:
    """What a table shows."""

    order: Sequence[Hashable]
    """A key per row, in the order of the rows."""
    cells: Callable[[Hashable, str], Cell]
    """What stands in the row of a key, in a column; asked for visible rows only."""
    sorted_by: str = ""
    descending: bool = True
    empty: str = ""
    """What to say if there are no rows."""


_NOTHING: Final = Rows((), lambda _key, _column: "")


class Table(ScrollView, can_focus=True):
    """Rows under a line of titles. See the module."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "table--titles",
        "table--sorted",
        "table--cursor",
        "table--unfocused",
        "table--empty",
    }
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Up", show=False, id="table.up"),
        Binding("down,j", "move(1)", "Down", show=False, id="table.down"),
        Binding("pageup", "page(-1)", "Page up", show=False, id="table.pageup"),
        Binding("pagedown", "page(1)", "Page down", show=False, id="table.pagedown"),
        Binding("home", "first", "First row, and stay there", show=False, id="table.home"),
        Binding("end", "last", "Last row", show=False, id="table.end"),
        Binding("enter", "open", "Details of the row", show=False, id="table.enter"),
    ]

    @dataclass
    class Opened(Message):
        """Enter, or a click on the row under the cursor."""

        table: Table
        key: Hashable

        @property
        def control(self) -> Table:
            """The table that sent it."""
            return self.table

    @dataclass
    class Moved(Message):
        """The cursor is on another row."""

        table: Table
        key: Hashable | None

        @property
        def control(self) -> Table:
            """The table that sent it."""
            return self.table

    @dataclass
    class SortAsked(Message):
        """A click on a column's title."""

        table: Table
        column: str

        @property
        def control(self) -> Table:
            """The table that sent it."""
            return self.table

    def __init__(
        self,
        columns: Sequence[Column],
        *,
        id: str | None = None,  # noqa: A002 - Textual's name for it
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(id=id)
        self.columns = tuple(columns)
        self._now_s = now_s
        self._rows = _NOTHING
        self._waiting: Rows | None = None
        self._cursor = 0
        self._key: Hashable | None = None
        self._at_top = True
        """The cursor has not been moved: it stays on the first row, whichever that is."""
        self._held_until_s = 0.0
        self._mouse_down = False

    # --- what it shows ---

    @property
    def cursor_key(self) -> Hashable | None:
        """The key of the row under the cursor; None if there are no rows."""
        return self._key

    @property
    def order(self) -> Sequence[Hashable]:
        """The keys in the order they are shown in."""
        return self._rows.order

    def show(self, rows: Rows, *, at_once: bool = False) -> None:
        """Shows these rows. Their order waits while someone is at it, unless ``at_once``."""
        if not at_once and len(self._rows.order) and self._is_held():
            self._waiting = rows
            order = self._rows.order
            self._rows = Rows(order, rows.cells, rows.sorted_by, rows.descending, rows.empty)
            self.refresh()
            return
        self._take(rows)

    def _is_held(self) -> bool:
        left_s = self._held_until_s - self._now_s()
        if left_s > 0:
            self.set_timer(left_s, self._release)
        return self._mouse_down or left_s > 0

    def _release(self) -> None:
        if self._waiting is not None and not self._is_held():
            self._take(self._waiting)

    def _take(self, rows: Rows) -> None:
        self._waiting = None
        offset = self._cursor - self.scroll_offset.y
        self._rows = rows
        key = self._key
        cursor = 0 if self._at_top or key is None else self._find(key)
        if cursor is None:
            # Its row is gone: the one that is there now.
            cursor = self._cursor
        self._cursor = max(0, min(cursor, len(rows.order) - 1))
        self.virtual_size = Size(self.size.width, len(rows.order) + 1)
        if not self._at_top and self._cursor != offset + self.scroll_offset.y:
            self.scroll_to(y=max(0, self._cursor - offset), animate=False)
        self._note_key()
        self.refresh()

    def _find(self, key: Hashable) -> int | None:
        try:
            return list(self._rows.order).index(key)
        except ValueError:
            return None

    def _note_key(self) -> None:
        order = self._rows.order
        key = order[self._cursor] if len(order) else None
        if key != self._key:
            self._key = key
            self.post_message(self.Moved(self, key))

    # --- keys and mouse ---

    def hold(self) -> None:
        """Rows stay where they are for a moment."""
        self._held_until_s = self._now_s() + HOLD_S

    def on_key(self, _event: events.Key) -> None:
        """Whoever presses keys is reading."""
        self.hold()

    def action_move(self, rows: int) -> None:
        """Moves the cursor by so many rows."""
        self.hold()
        self.move_to(self._cursor + rows)

    def action_page(self, pages: int) -> None:
        """Moves the cursor by what fits on the screen."""
        self.action_move(pages * max(1, self.size.height - 2))

    def action_first(self) -> None:
        """To the first row, and stays on whichever is first."""
        self.move_to(0)
        self._at_top = True

    def action_last(self) -> None:
        """To the last row."""
        self.move_to(len(self._rows.order) - 1)

    def action_open(self) -> None:
        """Says that the row under the cursor was chosen."""
        if self._key is not None:
            self.post_message(self.Opened(self, self._key))

    def move_to(self, row: int) -> None:
        """Puts the cursor on a row, and the row where one sees it."""
        if not len(self._rows.order):
            return
        self._at_top = False
        self._cursor = max(0, min(row, len(self._rows.order) - 1))
        self._note_key()
        self.scroll_to_region(
            Region(0, self._cursor, 1, 2), animate=False, force=True, x_axis=False
        )
        self.refresh()

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Rows stay while the button is down."""
        if event.button == 1:
            self._mouse_down = True

    def on_mouse_up(self, _event: events.MouseUp) -> None:
        """And for a moment after it."""
        self._mouse_down = False
        self.hold()
        self._release()

    def on_leave(self, _event: events.Leave) -> None:
        """A button that is let go elsewhere is not heard of."""
        self._mouse_down = False

    def on_click(self, event: events.Click) -> None:
        """A title sorts, a row is chosen, the chosen row opens."""
        if event.y == 0:
            key = self._column_at(event.x)
            if key:
                self.post_message(self.SortAsked(self, key))
            return
        row = self.scroll_offset.y + event.y - 1
        if row >= len(self._rows.order):
            return
        if row == self._cursor:
            self.action_open()
        else:
            self.move_to(row)

    def _column_at(self, x: int) -> str | None:
        left = 1
        for column, width in self._shown_columns():
            if left <= x < left + width:
                return column.key if column.sorts else None
            left += width + 2
        return None

    # --- drawing ---

    def on_resize(self) -> None:
        """The width is the widget's own: cells are cut, not scrolled to."""
        self.virtual_size = Size(self.size.width, len(self._rows.order) + 1)

    def _shown_columns(self) -> list[tuple[Column, int]]:
        inner = self.scrollable_content_region.width
        # What rows are sorted by is shown wherever there is room for anything.
        by = self._rows.sorted_by
        shown = [c for c in self.columns if inner >= c.from_width or c.key == by]
        fixed = sum(column.width for column in shown) + 2 * (len(shown) - 1) + 2
        return [(column, column.width or max(1, inner - fixed)) for column in shown]

    def render_line(self, y: int) -> Strip:
        """One line of the screen."""
        width = self.scrollable_content_region.width
        base = self.rich_style
        if y == 0:
            return self._titles(width)
        row = self.scroll_offset.y + y - 1
        if row >= len(self._rows.order):
            if y == 1 and not len(self._rows.order):
                style = self.get_component_rich_style("table--empty")
                return Strip([Segment(fit(f" {self._rows.empty}", width), style)], width)
            return Strip.blank(width, base)
        key = self._rows.order[row]
        if row == self._cursor:
            name = "table--cursor" if self.has_focus else "table--unfocused"
            base = self.get_component_rich_style(name)
        return self._line(
            "›" if row == self._cursor else " ",
            [(self._rows.cells(key, c.key), c, w) for c, w in self._shown_columns()],
            base,
            width,
        )

    def _titles(self, width: int) -> Strip:
        plain = self.get_component_rich_style("table--titles")
        marked = self.get_component_rich_style("table--sorted")
        cells: list[tuple[Cell, Column, int]] = []
        for column, room in self._shown_columns():
            title = Text(column.title)
            if column.key == self._rows.sorted_by:
                title = Text(f"{column.title} {'▼' if self._rows.descending else '▲'}", marked)
            cells.append((title, column, room))
        return self._line(" ", cells, plain, width)

    def _line(
        self, lead: str, cells: Sequence[tuple[Cell, Column, int]], base: Style, width: int
    ) -> Strip:
        segments = [Segment(lead, base)]
        for number, (cell, column, room) in enumerate(cells):
            if number:
                segments.append(Segment("  ", base))
            if isinstance(cell, str):
                segments.append(Segment((right if column.right else fit)(cell, room), base))
            else:
                segments.extend(_styled(cell, room, base, self.app.console, to_right=column.right))
        return Strip(segments).adjust_cell_length(width, base)


def _styled(
    text: Text, room: int, base: Style, console: Console, *, to_right: bool
) -> list[Segment]:
    """A cell with styles: cut and filled like a plain one."""
    shown = text.copy()
    if len(shown.plain) > 4 * room + 16:
        shown = shown[: 4 * room + 16]
    if shown.cell_len > room:
        shown.truncate(room, overflow="ellipsis")
    shown.align("right" if to_right else "left", room)
    return [
        Segment(segment.text, base + segment.style if segment.style else base)
        for segment in shown.render(console)
        if segment.text
    ]
