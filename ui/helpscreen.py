"""The help screen: all keys by purpose, then the meaning of verdicts and terms."""

from __future__ import annotations

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
from textual.widgets import Input

from tracelloc.show.manual import text_of
from tracelloc.show.tables import Column, Columns
from tracelloc.ui.dialogs import Dialog
from tracelloc.ui.lineview import wrapped
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
        yield Heading("Lists and the rest")
    yield from rest


_WRAPPED_AT: Final = 86
_TABLE_ROW: Final = re.compile(r"\| (?!term |verdict |---)([^|]+) \| ([^|]+) \|")


def _terms(markdown: str, width: int) -> Iterator[list[Hashable]]:
    """Yields the rows of each term in a topic's first table, wrapped; no two rows are equal."""
    for match in _TABLE_ROW.finditer(markdown):
        term, meaning = (text.replace("`", "") for text in match.groups())
        lines = wrapped(meaning, _WRAPPED_AT - width)
        rows: list[Hashable] = []
        if len(term) > width:
            rows.append(Heading(term))
            term = ""
        rows += [(" " * number or term, line) for number, line in enumerate(lines)]
        yield rows
        if not match.string.startswith("\n| ", match.end()):
            return


class HelpScreen(Dialog[None]):
    """Lists the keys of the focused widget, its screen and the application."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark,q", "dismiss", "Close", tooltip="Close the help"),
        Binding("slash", "find", "Search", tooltip="Search the help"),
        Binding("escape", "back", "Close", tooltip="Show all again, or close the help"),
    ]

    def __init__(self, screen: Screen[Any], words: str = "") -> None:
        """``words``: the first search; empty: all lines are shown."""
        super().__init__()
        self._of = screen
        self._words = words

    def compose(self) -> ComposeResult:
        focused = self._of.focused
        nodes: list[DOMNode] = [] if focused is None else [focused]
        nodes += [self._of, self.app]
        found = list(key_lines(nodes, self.app.get_key_display))
        lines: list[Hashable] = list(_grouped(found, getattr(self._of, "KEY_GROUPS", {})))
        lines += [
            Heading(""),
            Heading("Mouse: click a column title to sort, a row to select it, again to open it"),
            Heading("A click on a word of the header: what it means."),
            Heading("Rows stay where they are for half a second after a key."),
        ]
        width = max(len(line[0]) for line in lines if isinstance(line, tuple))
        self._entries = [[line] for line in lines]
        for title, topic in (("Verdicts", "verdicts"), ("Glossary", "glossary")):
            self._entries += [[Heading("")], [Heading(title)], *_terms(text_of(topic), width)]
        columns: Columns[Any] = Column("keys", "", width), Column("what", "")
        with Vertical(classes="box") as box:
            box.border_title = "Keys, then verdicts and glossary (/ search, End, Esc close)"
            yield Table(columns)
            yield Input(placeholder="words of keys and terms (Esc shows all)", id="find")

    def on_mount(self) -> None:
        """Shows all lines, or those with the words that were asked for."""
        self._show(self._words.lower())
        if self._words:
            self.action_find()
            self.query_one("#find", Input).value = self._words
            self.query_one(Table).focus()

    def action_find(self) -> None:
        line = self.query_one("#find", Input)
        line.display = True
        line.focus()

    def action_back(self) -> None:
        """Shows all lines again; closes the help if it does so already."""
        line = self.query_one("#find", Input)
        if not line.display:
            self.dismiss()
        line.value, line.display = "", False
        self.query_one(Table).focus()

    @on(Input.Submitted)
    def _keep_search(self) -> None:
        self.query_one(Table).focus()

    @on(Input.Changed)
    def _find(self, message: Input.Changed) -> None:
        self._show(message.value.lower())

    def _show(self, words: str) -> None:

        def is_found(entry: list[Hashable]) -> bool:
            return any(words in str(line).lower() for line in entry)

        def cell(key: Hashable, column: str) -> Cell:
            keys, what = cast(tuple[str, str], key)
            return Text(keys, "bold") if column == "keys" else what

        found = [line for entry in self._entries if is_found(entry) for line in entry]
        rows = TableRows(found, cell, empty="nothing has these words (Esc shows all)")
        self.query_one(Table).show(rows, at_once=True)
