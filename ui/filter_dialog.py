"""Groups of filters, on and off, and the rules that were added while this runs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Label

from tracelloc.filters import Rule
from tracelloc.ui.dialog import Dialog
from tracelloc.ui.figures import clean
from tracelloc.ui.table import Column, Rows, Table

if TYPE_CHECKING:
    from tracelloc.ui.state import State


@dataclass(frozen=True, slots=True)
class Group:
    """A group of rules."""

    name: str
    enabled: bool


class FilterDialog(Dialog[None]):
    """A line per group, then a line per added rule."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "switch_group", "Switch", tooltip="Switch the group", id="filters.space"),
        Binding("a", "all", "All", tooltip="All groups on, or off", id="filters.all"),
        Binding("d,delete", "drop", "Delete", tooltip="Delete the added rule", id="filters.drop"),
        Binding("w", "save", "Save", tooltip="Write added rules to your file", id="filters.save"),
        Binding("f,q", "close", "Close", tooltip="Close", id="filters.close"),
    ]

    def __init__(self, state: State, groups: Sequence[Group], added: Sequence[Rule]) -> None:
        super().__init__()
        self.state = state
        self._groups = {group.name: group.enabled for group in groups}
        self._added = list(added)

    def compose(self) -> ComposeResult:
        """The box."""
        with Vertical(classes="box") as box:
            box.border_title = "Filters: which frames are noise"
            yield Table([Column("name", "", 0, right=False)], id="groups")
            yield Label(
                "Enter/Space switches, a all, d deletes an added rule, w saves them\n"
                "x or c on a frame of a stack adds a rule; Esc closes",
                classes="note",
                markup=False,
            )

    def on_mount(self) -> None:
        """Fills the list."""
        self._redraw()

    def _redraw(self) -> None:
        found: dict[Hashable, str] = {
            name: f"[{'x' if on else ' '}] {clean(name)}" for name, on in self._groups.items()
        }
        for number, rule in enumerate(self._added):
            found[number] = f"    {rule.action.value} {clean(rule.pattern)}"
        rows = Rows(list(found), lambda key, _column: found[key])
        self.query_one(Table).show(rows, at_once=True)

    @on(Table.Chosen)
    def action_switch_group(self) -> None:
        """Switches the group under the cursor."""
        key = self.query_one(Table).key
        if isinstance(key, str):
            self._switch(key, not self._groups[key])
            self._redraw()

    def _switch(self, name: str, enabled: bool) -> None:
        self._groups[name] = enabled
        self.state.change_filters(lambda filters: filters.set_group(name, enabled))

    def action_all(self) -> None:
        """All on, unless they are."""
        enabled = not all(self._groups.values())
        for name in self._groups:
            self._switch(name, enabled)
        self._redraw()

    def action_drop(self) -> None:
        """Deletes the rule under the cursor."""
        key = self.query_one(Table).key
        if isinstance(key, int):
            rule = self._added.pop(key)
            self.state.change_filters(lambda filters: filters.remove(rule))
            self._redraw()

    def action_save(self) -> None:
        """Writes the added rules to the user's own file."""
        if self._added:
            self.state.save_rules(self._added)
