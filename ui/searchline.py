"""The search line of several screens: ``/`` shows it, Enter keeps the search, Esc clears it."""

from typing import Any, ClassVar, Generic, TypeVar

from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Input

from tracelloc.ui.lineview import LineView

ResultT = TypeVar("ResultT")


class SearchLine(Input):
    """The input line for searches."""

    DEFAULT_CSS = """
    SearchLine, SearchLine:focus { height: 1; border: none; padding: 0 1; }
    SearchLine { background: $surface; display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "submit", "Keep the search"),
        Binding("escape", "screen.back", "Clear it"),
    ]


class SearchableScreen(Screen[ResultT], Generic[ResultT]):
    """A screen with a list, and with a search line that is shown when it is needed."""

    @property
    def view(self) -> LineView[Any]:
        return self.query_one(LineView)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "search":
            return not isinstance(self.focused, Input)
        return super().check_action(action, parameters)

    def action_search(self) -> None:
        line = self.query_one(SearchLine)
        # Immediately, not at Textual's next style update: keys may already be queued.
        line.display = True
        self.set_focus(line)

    def on_input_submitted(self) -> None:
        """Gives the list the keys again."""
        line = self.query_one(SearchLine)
        line.display = bool(line.value)
        self.set_focus(self.view)

    def clear_search(self) -> bool:
        """Clears and hides the line; returns whether it was shown."""
        line = self.query_one(SearchLine)
        if is_shown := line.display:
            line.value = ""
            self.on_input_submitted()
        return is_shown
