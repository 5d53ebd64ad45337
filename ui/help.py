"""All keys, made from the bindings themselves."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, cast

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.dom import DOMNode
from textual.screen import Screen

from tracelloc.ui.dialog import Dialog
from tracelloc.ui.table import Cell, Column, Heading, Rows, Table


def key_lines(nodes: list[DOMNode], key_name: Any) -> Iterator[tuple[str, str]]:
    """(keys, what they do), those of the innermost node first; keys of one action together."""
    seen: set[str] = set()
    for node in nodes:
        actions: dict[str, tuple[list[str], Binding]] = {}
        for binding in node._bindings.key_to_bindings.values():
            for one in binding:
                # Textual's own, such as the keys that scroll, need no mention.
                if one.key in seen or one.system or not (one.tooltip or one.id):
                    continue
                text = one.tooltip or one.description
                actions.setdefault(text, ([], one))[0].append(one.key)
        for text, (keys, one) in actions.items():
            seen.update(keys)
            yield " ".join(key_name(replace_key(one, key)) for key in keys), text


def replace_key(binding: Binding, key: str) -> Binding:
    """The same binding on another key."""
    from dataclasses import replace  # noqa: PLC0415 - one use

    return replace(binding, key=key, key_display=None)


class HelpScreen(Dialog[None]):
    """Lists the keys of the focused widget, its screen and the application."""

    BINDINGS = [("question_mark,q", "close", "Close")]  # noqa: RUF012 - as Textual has it

    def __init__(self, screen: Screen[Any]) -> None:
        super().__init__()
        self._of = screen

    def compose(self) -> ComposeResult:
        """The box."""
        focused = self._of.focused
        nodes: list[DOMNode] = [] if focused is None else [focused]
        nodes += [self._of, self.app]
        self._lines: list[Hashable] = list(key_lines(nodes, self.app.get_key_display))
        self._lines += [
            Heading(""),
            Heading("click: a title sorts, a row is chosen, twice opens it; a tab, a key below"),
            Heading("Letters are memray's where it has them. Rows wait after a key."),
        ]
        width = max(len(line[0]) for line in self._lines if isinstance(line, tuple))
        columns = Column("keys", "", width), Column("what", "", 0, right=False)
        with Vertical(classes="box") as box:
            box.border_title = "Keys (Esc closes)"
            yield Table(columns)

    def on_mount(self) -> None:
        """Fills the list."""

        def cell(key: Hashable, column: str) -> Cell:
            keys, what = cast(tuple[str, str], key)
            return Text(keys, "bold") if column == "keys" else what

        self.query_one(Table).show(Rows(self._lines, cell))
