"""The list widget of every view and dialog, which draws only visible rows."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, TypeVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.scrollbar import ScrollBar
from textual.strip import Strip
from textual.widget import Widget

from tracelloc.dataclass import dataclass
from tracelloc.text import printable

HOLD_S: Final = 0.5  # Time during which rows do not move after a key or a click
# Printable text cut to cells, and its style or component classes.
Piece = tuple[str, str | Style | None]
Content = TypeVar("Content")


_KEYS: Final = (Path(__file__).parent / "keys.txt").read_text()
# By action, other words that find it in the palette.
OTHER_WORDS: Final[dict[str, str]] = {}


def bindings(name: str) -> list[Binding]:
    """Returns the bindings of a screen or a widget, which ``keys.txt`` has."""
    found = []
    for line in _KEYS.partition(f"\n== {name}\n")[2].partition("\n\n")[0].splitlines():
        keys, action, words, sentence, *others = line.split(" | ")
        if others:
            OTHER_WORDS[action.removeprefix("app.")] = others[0]
        binding = Binding(
            keys.removeprefix("!"), action, words.strip("*-"), tooltip=sentence,
            show=words.startswith("*"), priority=keys.startswith("!"), id=f"{name}.{keys}",
        )  # fmt: skip
        found.append(binding)
    return found


LIST_KEYS: Final = bindings("list")


@dataclass
class RowMessage(Message):
    """A message about the cursor's row, of which ``key`` identifies the content."""

    view: LineView[Any]
    key: Hashable | None

    @property
    def control(self) -> LineView[Any]:
        return self.view


COMPUTING: Final = "counting blocks…"  # Text that is shown until the first picture is ready
_LONGEST_TEXT: Final = 2048


def wrapped(text: str, width: int) -> list[str]:
    """Returns the text as printable lines of at most this width."""
    return textwrap.wrap(printable(text[:_LONGEST_TEXT]), max(width, 8))


class FreelySized(Widget):
    """A widget whose size moves no other: Textual need not lay out the screen once more."""

    def _size_updated(
        self, size: Size, virtual_size: Size, container_size: Size, layout: bool = True
    ) -> bool:
        return super()._size_updated(size, virtual_size, container_size, layout=False)


class _Bar(ScrollBar, FreelySized):
    """The scroll bar of a list."""


class LineView(Generic[Content], ScrollView, can_focus=True):
    """A list of rows by number, from 0, with a cursor that is on a row if there is any."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "lines--header", "lines--sorted", "lines--cursor", "lines--unfocused", "lines--dim",
        "lines--bar", "lines--grown", "lines--shrunk", "lines--match", "lines--note",
    }  # fmt: skip
    BINDINGS: ClassVar[list[BindingType]] = [*LIST_KEYS]
    header_lines = 0
    row_cursor = True  # Whether the cursor highlights its whole row

    class Chosen(RowMessage):
        """A row was chosen by Enter or a double click."""

    class Moved(RowMessage):
        """The cursor is on another row."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name for it
        super().__init__(id=id)
        self.cursor = 0
        self.now_s: Callable[[], float] = time.monotonic
        self._held_until_s = 0.0
        self._mouse_down = False
        self._pending: Callable[[], None] | None = None
        self._base = Style.null()

    # To be defined by subclasses.

    @property
    def footer_lines(self) -> int:
        return 0

    def show(self, content: Content, *, at_once: bool = False) -> None:
        """Replaces the rows; while the user presses keys, their order waits, unless ``at_once``."""
        raise NotImplementedError

    @property
    def key(self) -> Hashable | None:
        """Key of the cursor's row; None if the row can't be chosen."""
        return None

    def row_count(self) -> int:
        raise NotImplementedError

    def row(self, row: int, width: int) -> Iterable[Piece]:
        raise NotImplementedError

    def fixed_line(self, line: int, width: int) -> Iterable[Piece]:
        """Returns a line above the rows (0, 1 …) or below them (-1 is the last one)."""
        return ()

    def empty_text(self) -> str:
        return ""

    def moved(self) -> None:
        self.post_message(self.Moved(self, self.key))

    def chosen(self) -> None:
        if self.key is not None:
            self.post_message(self.Chosen(self, self.key))

    def header_clicked(self, line: int, x: int) -> None:
        """Handles a click on a fixed line above the rows."""

    def name_enter(self, word: str) -> None:
        enter = Binding("enter", "choose", word, tooltip="Open the row")
        self._bindings.key_to_bindings["enter"] = [enter]

    # To be used by subclasses.

    @property
    def width(self) -> int:
        return int(self.scrollable_content_region.width)

    @property
    def page_rows(self) -> int:
        return max(1, self.size.height - self.header_lines - self.footer_lines)

    def when_free(self, show: Callable[[], None], *, at_once: bool = False) -> None:
        """Calls now, or as soon as rows may move; a newer callback replaces a waiting one."""
        if at_once or not self.is_held:
            self._pending = None
            show()
            return
        if self._pending is None:
            self.set_timer(HOLD_S / 2, self._release)
        self._pending = show

    def _release(self) -> None:
        show, self._pending = self._pending, None
        if show is not None:
            self.when_free(show)

    def hold(self) -> None:
        self._held_until_s = self.now_s() + HOLD_S

    @property
    def is_held(self) -> bool:
        """Whether rows may not move: a key was just pressed, or the mouse button is down."""
        return self._mouse_down or self.now_s() < self._held_until_s

    @property
    def is_active(self) -> bool:
        return self.has_focus or not self.can_focus

    def on_key(self) -> None:
        self.hold()

    def on_mouse_down(self) -> None:
        self._mouse_down = True

    def on_mouse_up(self) -> None:
        self._mouse_down = False
        self.hold()

    def on_leave(self) -> None:
        """Treats the button as released: a release outside the widget is not reported."""
        self._mouse_down = False

    def rows_changed(self) -> None:
        """Updates the widget; to be called when the rows or their content may have changed."""
        rows = self.row_count()
        self.cursor = min(max(self.cursor, 0), max(rows - 1, 0))
        height = rows + self.header_lines + self.footer_lines
        self._set_virtual_size(Size(self.width, height))
        if self.scroll_offset.y > (most := max(height - self.size.height, 0)):
            self._scroll_rows(most)
        self.refresh()

    def _set_virtual_size(self, size: Size) -> None:
        """Sets the size of all rows, which scroll bars and automatic heights depend on."""
        if self.styles.auto_dimensions:
            self.virtual_size = size
        elif size != self.virtual_size:
            # No other widget's place depends on it: unlike Textual, we do not lay out the screen
            # again, unless a scroll bar comes or goes.
            self.set_reactive(LineView.virtual_size, size)
            self._scroll_update(size)

    @property
    def vertical_scrollbar(self) -> ScrollBar:
        """The scroll bar, which is made when it is needed first."""
        if self._vertical_scrollbar is None:
            width = self.scrollbar_size_vertical
            bar = self._vertical_scrollbar = _Bar(vertical=True, name="vertical", thickness=width)
            bar.display = False
            self.app._start_widget(self, bar)
        return self._vertical_scrollbar

    def set_height(self, height: int) -> None:
        """Sets the height and the scroll bar at once: Textual would lay out the screen twice."""
        self.styles.height = height
        shown = self.virtual_size.height > height - self.gutter.height
        self.show_vertical_scrollbar = self.vertical_scrollbar.display = shown

    def move_to(self, row: int) -> None:
        row = min(max(row, 0), max(self.row_count() - 1, 0))
        if row != self.cursor:
            self.cursor = row
            self.moved()
        self.show_cursor()
        self.refresh()

    def show_cursor(self) -> None:
        """Scrolls just as far as necessary to make the cursor visible."""
        top = round(self.scroll_target_y)
        if self.cursor < top:
            self._scroll_rows(self.cursor)
        elif self.cursor >= top + self.page_rows:
            self._scroll_rows(self.cursor - self.page_rows + 1)

    def center_cursor(self) -> None:
        self._scroll_rows(max(0, self.cursor - self.page_rows // 2))

    def _scroll_rows(self, top: int) -> None:
        # Immediately; otherwise the effect of a key would be drawn one refresh late.
        self.scroll_to(y=top, animate=False, force=True, immediate=True)

    def watch_show_vertical_scrollbar(self, shown: bool) -> None:
        """Sets the position of a scroll bar that appears after the rows were scrolled."""
        if shown:
            self.vertical_scrollbar.position = self.scroll_y

    def row_at(self, y: int) -> int | None:
        if not self.header_lines <= y < self.size.height - self.footer_lines:
            return None
        row = y - self.header_lines + self.scroll_offset.y
        return row if row < self.row_count() else None

    def _segment(self, text: str, style: str | Style | None, base: Style, over: Style) -> Segment:
        if isinstance(style, Style):
            base += style
        elif style is not None:
            for part in style.split():
                base += self.get_component_rich_style(part, partial=True)
        return Segment(text, base + over)

    def render_lines(self, crop: Region) -> list[Strip]:
        # Textual computes this property on each access.
        self._base = self.rich_style
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        width, base = self.width, self._base
        over = Style.null()
        pieces: Iterable[Piece] = ()
        row = self.row_at(y)
        if y < self.header_lines:
            pieces = self.fixed_line(y, width)
        elif y >= self.size.height - self.footer_lines:
            pieces = self.fixed_line(y - self.size.height, width)
        elif row is not None:
            pieces = self.row(row, width)
            if row == self.cursor and self.row_cursor:
                name = "cursor" if self.is_active else "unfocused"
                over = self.get_component_rich_style(f"lines--{name}", partial=True)
        elif y >= self.header_lines and not self.row_count():
            lines = wrapped(self.empty_text(), width - 2)
            if y - self.header_lines < len(lines):
                pieces = [(f" {lines[y - self.header_lines]}", "lines--note")]
        segments = [self._segment(text, style, base, over) for text, style in pieces]
        return Strip(segments).adjust_cell_length(width, base + over)

    def on_resize(self) -> None:
        self.rows_changed()
        self.show_cursor()

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is not None and offset.y < self.header_lines:
            self.header_clicked(offset.y, offset.x)
        elif offset is not None and (row := self.row_at(offset.y)) is not None:
            self.clicked(row, offset.x)
            if event.chain == 2:
                self.chosen()

    def clicked(self, row: int, x: int) -> None:
        self.move_to(row)

    def action_cursor(self, step: int) -> None:
        self.move_to(self.cursor + step)

    def action_page(self, step: int) -> None:
        self.move_to(self.cursor + step * self.page_rows)

    def action_edge(self, step: int) -> None:
        self.move_to(0 if step < 0 else self.row_count() - 1)

    def action_choose(self) -> None:
        if self.row_count():
            self.chosen()
