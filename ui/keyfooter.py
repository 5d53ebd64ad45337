"""The lines at the bottom: one shows the keys, and one searches."""

from typing import Any, ClassVar, Final, Generic, TypeVar

from rich.cells import cell_len
from rich.segment import Segment
from textual import events
from textual.binding import ActiveBinding, Binding, BindingType
from textual.keys import key_to_character
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input

from tracelloc.ui.lineview import LineView

# Keys that are shown if others have no room.
_ESSENTIAL: Final = frozenset({"question_mark", "q", "escape"})


class KeyFooter(Widget):
    """A line with the keys of what has the focus; the last ones are left out without room.

    Textual's footer makes a widget per key, all of them several times per key that is pressed.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {"keys--key"}
    _labels: tuple[tuple[ActiveBinding, str], ...] = ()  # Each key with its name

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self.on_resize)

    def on_resize(self, _: object = None) -> None:
        """Draws the line again if the keys differ."""
        actions: dict[str, tuple[ActiveBinding, str]] = {}
        focused = self.screen.focused
        for each in self.screen.active_bindings.values():
            binding = each.binding
            key = binding.key
            is_typed = focused and focused.check_consume_key(key, key_to_character(key))
            if binding.show and not is_typed:
                actions.setdefault(binding.action, (each, self.app.get_key_display(binding)))
        kept = list(actions.values())
        for one in reversed(kept.copy()):
            if sum(map(_room_of, kept)) - 1 <= self.app.size.width:
                break
            if one[0].binding.key not in _ESSENTIAL:
                kept.remove(one)
        if self._labels != tuple(kept):
            self._labels = tuple(kept)
            self.refresh()

    def render_line(self, y: int) -> Strip:
        base, style = self.rich_style, self.get_component_rich_style("keys--key")
        segments = []
        for each, name in self._labels:
            segments += [Segment(name, style), Segment(f" {each.binding.description} ", base)]
        return Strip(segments).adjust_cell_length(self.size.width, base)

    def _at(self, x: int) -> ActiveBinding | None:
        for label in self._labels:
            if (x := x - _room_of(label)) < 0:
                return label[0]
        return None

    def on_mouse_move(self, event: events.MouseMove) -> None:
        found = self._at(event.x)
        self.tooltip = found.tooltip if found else None

    def on_click(self, event: events.Click) -> None:
        if (found := self._at(event.x)) is not None:
            self.app.simulate_key(found.binding.key)


def _room_of(label: tuple[ActiveBinding, str]) -> int:
    return cell_len(label[1]) + len(label[0].binding.description) + 2


ResultT = TypeVar("ResultT")


class SearchLine(Input):
    """The input line for searches."""

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
        line = self.query_one(SearchLine)
        line.display = bool(line.value)
        self.set_focus(self.view)

    def clear_search(self) -> bool:
        line = self.query_one(SearchLine)
        if is_shown := line.display:
            line.value = ""
            self.on_input_submitted()
        return is_shown
