"""Groups of filters, on and off, and the rules that were added while this runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Label, OptionList
from textual.widgets.option_list import Option

from tracelloc.filters import Rule
from tracelloc.ui.dialog import Dialog
from tracelloc.ui.figures import clean

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
            yield OptionList(*self._options(), id="groups", markup=False)
            yield Label(
                "Enter/Space switches, a all, d deletes an added rule, w saves them\n"
                "x or c on a frame of a stack adds a rule; Esc closes",
                classes="note",
                markup=False,
            )

    def _options(self) -> list[Option]:
        options = [
            Option(Text(f"[{'x' if on else ' '}] {clean(name)}"), id=f"group:{name}")
            for name, on in self._groups.items()
        ]
        options += [
            Option(Text(f"    {rule.action.value} {clean(rule.pattern)}"), id=f"rule:{number}")
            for number, rule in enumerate(self._added)
        ]
        return options

    def _redraw(self) -> None:
        choices = self.query_one("#groups", OptionList)
        at = choices.highlighted
        choices.clear_options()
        choices.add_options(self._options())
        if choices.option_count:
            choices.highlighted = min(at or 0, choices.option_count - 1)

    def _current(self) -> tuple[str, str]:
        choices = self.query_one("#groups", OptionList)
        if choices.highlighted is None:
            return "", ""
        kind, _, name = (choices.get_option_at_index(choices.highlighted).id or "").partition(":")
        return kind, name

    @on(OptionList.OptionSelected)
    def action_switch_group(self) -> None:
        """Switches the group under the cursor."""
        kind, name = self._current()
        if kind == "group":
            self._switch(name, not self._groups[name])
            self._redraw()

    def _switch(self, name: str, enabled: bool) -> None:
        self._groups[name] = enabled
        self.state.set_group(name, enabled)

    def action_all(self) -> None:
        """All on, unless they are."""
        enabled = not all(self._groups.values())
        for name in self._groups:
            self._switch(name, enabled)
        self._redraw()

    def action_drop(self) -> None:
        """Deletes the rule under the cursor."""
        kind, number = self._current()
        if kind == "rule":
            self.state.remove_rule(self._added.pop(int(number)))
            self._redraw()

    def action_save(self) -> None:
        """Writes the added rules to the user's own file."""
        if self._added:
            self.state.save_rules(self._added)
