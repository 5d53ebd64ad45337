"""The help screen: all keys by purpose, then the meaning of verdicts and terms."""

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final, cast

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.dom import DOMNode
from textual.screen import Screen

from tracelloc.show.manual import text_of
from tracelloc.show.tables import Column, Columns
from tracelloc.ui.dialogs import Dialog
from tracelloc.ui.keyfooter import SearchableScreen, SearchLine
from tracelloc.ui.lineview import bindings, wrapped
from tracelloc.ui.tableview import Cell, Heading, Table, TableRows


def key_lines(nodes: list[DOMNode], key_name: Any) -> Iterator[tuple[str, str]]:
    """Returns (keys, description) per action, the innermost widget's first."""
    seen: set[str] = set()
    for node in nodes:
        actions: dict[str, tuple[list[str], Binding]] = {}
        for binding in node._bindings.key_to_bindings.values():
            for one in binding:
                # Textual's own keys, such as those for scrolling, are not listed.
                if one.key in seen or one.system or not (one.tooltip or one.id):
                    continue
                text = one.tooltip or one.description
                actions.setdefault(text, ([], one))[0].append(one.key)
        for text, (keys, one) in actions.items():
            seen.update(keys)
            same = [replace(one, key=key, key_display=None) for key in keys]
            yield " ".join(map(key_name, same)), text


def _grouped(
    lines: Sequence[tuple[str, str]], groups: Mapping[str, Sequence[str]]
) -> Iterator[Hashable]:
    """Returns the lines under headings; ``groups``: for each heading, how its lines begin."""
    rest = list(lines)
    for title, beginnings in groups.items():
        mine = [line for line in rest if line[1].startswith(tuple(beginnings))]
        if mine:
            yield Heading(title)
            yield from mine
            rest = [line for line in rest if line not in mine]
    if groups and rest:
        yield Heading("The rest")
    yield from rest


_WIDTH: Final = 90  # Of the box, at most
_FRAMING: Final = 9  # Cells of a line that are no text: border, padding, scroll bar, gaps
_TABLE_ROW: Final = re.compile(r"\| (?!term |verdict |---)([^|]+) \| ([^|]+) \|")


def _terms(markdown: str) -> Iterator[tuple[str, str]]:
    for match in _TABLE_ROW.finditer(markdown):
        term, meaning = (text.replace("`", "") for text in match.groups())
        yield term, meaning
        if not match.string.startswith("\n| ", match.end()):
            return


def _rows_of(line: Hashable, width: int, room: int) -> Iterator[Hashable]:
    """Yields the rows of a line, wrapped; ``width``: of its keys. No two rows are equal."""
    if not isinstance(line, tuple):
        yield from map(Heading, wrapped(str(line), width + room) or [""])
        return
    term, meaning = line
    if len(term) > width:
        yield from map(Heading, wrapped(term, width + room))
        term = ""
    for number, text in enumerate(wrapped(meaning, room)):
        yield " " * number or term, text


class HelpScreen(Dialog[None], SearchableScreen[None]):
    """Lists the keys of the focused widget, its screen and the application."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("help")]

    def __init__(self, screen: Screen[Any], words: str = "") -> None:
        super().__init__()
        self._of = screen
        self._words = words

    def compose(self) -> ComposeResult:
        focused, key_name = self._of.focused, self.app.get_key_display
        nodes: list[DOMNode] = [] if focused is None else [focused]
        here = list(key_lines(nodes, key_name))
        found = list(key_lines([*nodes, self._of, self.app], key_name))[len(here) :]
        lines: list[Hashable] = [Heading("In this list"), *here] if here else []
        lines += _grouped(found, getattr(self._of, "KEY_GROUPS", {}))
        lines += [
            Heading(""),
            Heading("Mouse: click a column title to sort, a row to select it, again to open it"),
            Heading("A click on a word of the header: what it means."),
            Heading("Rows stay where they are for half a second after a key."),
        ]
        self._width = max(len(line[0]) for line in lines if isinstance(line, tuple))
        for title, topic in (("Verdicts", "verdicts"), ("Glossary", "glossary")):
            lines += [Heading(""), Heading(title), *_terms(text_of(topic))]
        self._lines = lines
        columns: Columns[Any] = Column("keys", "", self._width), Column("what", "")
        with Vertical(classes="box") as box:
            box.border_title = "Help (/ search, Esc close)"
            yield Table(columns)
            yield SearchLine(placeholder="words of keys and terms (Esc shows all)")

    def on_mount(self) -> None:
        self._show()
        if self._words:
            self.query_one(SearchLine).value = self._words
            self.on_input_submitted()

    def action_back(self) -> None:
        if not self.clear_search():
            self.dismiss()

    def on_resize(self) -> None:
        self._show()

    @on(SearchLine.Changed)
    def _show(self) -> None:
        words = self.query_one(SearchLine).value.lower()
        room = max(16, min(_WIDTH, self.app.size.width * 96 // 100) - _FRAMING - self._width)

        def cell(key: Hashable, column: str) -> Cell:
            keys, what = cast(tuple[str, str], key)
            return Text(keys, "bold") if column == "keys" else what

        lines = (line for line in self._lines if words in str(line).lower())
        found = [row for line in lines for row in _rows_of(line, self._width, room)]
        rows = TableRows(found, cell, empty="nothing has these words (Esc shows all)")
        self.query_one(Table).show(rows, at_once=True)
