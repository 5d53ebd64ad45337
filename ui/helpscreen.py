"""The help screen: all keys by purpose, then the meaning of verdicts and terms."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.dom import DOMNode
from textual.screen import Screen

from tracelloc.show.manual import text_of
from tracelloc.ui.dialogs import Dialog
from tracelloc.ui.lineview import wrapped
from tracelloc.ui.tableview import Cell, Column, Heading, Table, TableRows


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


def _terms(markdown: str, width: int) -> Iterator[tuple[str, str]]:
    """Returns the terms and wrapped meanings in a topic's first table; no two rows are equal."""
    for match in _TABLE_ROW.finditer(markdown):
        term, meaning = (text.replace("`", "") for text in match.groups())
        lines = wrapped(meaning, _WRAPPED_AT - width)
        if len(term) > width:
            yield term, ""
            term = ""
        for number, line in enumerate(lines):
            yield term if not number else " " * number, line
        if not match.string.startswith("\n| ", match.end()):
            return


class HelpScreen(Dialog[None]):
    """Lists the keys of the focused widget, its screen and the application."""

    BINDINGS = [("question_mark,q", "dismiss", "Close")]  # noqa: RUF012 - as Textual has it

    def __init__(self, screen: Screen[Any]) -> None:
        super().__init__()
        self._of = screen

    def compose(self) -> ComposeResult:
        """Adds the box."""
        focused = self._of.focused
        nodes: list[DOMNode] = [] if focused is None else [focused]
        nodes += [self._of, self.app]
        found = list(key_lines(nodes, self.app.get_key_display))
        self._lines: list[Hashable] = list(_grouped(found, getattr(self._of, "KEY_GROUPS", {})))
        self._lines += [
            Heading(""),
            Heading("Mouse: click a column title to sort, a row to select it, again to open it"),
            Heading("Rows stay where they are for half a second after a key."),
        ]
        width = max(len(line[0]) for line in self._lines if isinstance(line, tuple))
        for title, topic in (("Verdicts", "verdicts"), ("Glossary", "glossary")):
            self._lines += [Heading(""), Heading(title), *_terms(text_of(topic), width)]
        columns = Column("keys", "", width), Column("what", "", 0, right=False)
        with Vertical(classes="box") as box:
            box.border_title = "Keys, then verdicts and glossary (End; Esc close)"
            yield Table(columns)

    def on_mount(self) -> None:
        """Fills the list."""

        def cell(key: Hashable, column: str) -> Cell:
            keys, what = cast(tuple[str, str], key)
            return Text(keys, "bold") if column == "keys" else what

        self.query_one(Table).show(TableRows(self._lines, cell))
