"""The lines at the bottom: one shows the keys, and one searches.

``/`` shows the search line, Enter keeps the search, Esc clears it.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Final, Generic, TypeVar

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.keys import key_to_character
from textual.screen import Screen
from textual.widgets import Footer, Input
from textual.widgets._footer import FooterKey

from tracelloc.ui.lineview import LineView

# Each key with whether it does something, and what pointing at it says.
Shown = tuple[tuple[Binding, bool, str], ...]
# Keys that are shown if others have no room.
_ESSENTIAL: Final = frozenset({"question_mark", "q", "escape"})


class KeyFooter(Footer):
    """Textual's footer, without its leak of replaced keys and without needless replacing.

    Textual creates the footer's keys again each time it looks for active bindings, several times
    per key that is pressed, which takes longer than anything else that follows. Each key watches
    ``compact``, and these watchers would keep replaced keys until ``compact`` changes, which it
    never does. No key is cut: those without room are left out.
    """

    # Width and the keys shown. None: they are not known before it is composed.
    _composed: tuple[int, Shown] | None = None

    def _shown(self) -> tuple[int, Shown]:
        actions: dict[str, tuple[Binding, bool, str]] = {}
        focused = self.screen.focused
        for each in self.screen.active_bindings.values():
            key = each.binding.key
            is_typed = focused and focused.check_consume_key(key, key_to_character(key))
            if each.binding.show and not is_typed:
                one = each.binding, each.enabled, each.tooltip
                actions.setdefault(each.binding.action, one)
        return self.app.size.width, tuple(actions.values())

    def compose(self) -> ComposeResult:
        if not self._bindings_ready:
            return
        self._composed = width, shown = self._shown()
        for binding, enabled, tooltip in self._fitting(shown, width):
            yield FooterKey(
                binding.key,
                self.app.get_key_display(binding),
                binding.description,
                binding.action,
                disabled=not enabled,
                tooltip=tooltip,
            ).data_bind(compact=Footer.compact)

    def _fitting(self, shown: Shown, width: int) -> Sequence[tuple[Binding, bool, str]]:
        """Returns the bindings that fit: the last ones are omitted, but not those that close."""
        gap = 2 if self.compact else 3
        kept = list(shown)

        def length(one: tuple[Binding, bool, str]) -> int:
            return cell_len(self.app.get_key_display(one[0])) + len(one[0].description) + gap

        for one in reversed(shown):
            if sum(map(length, kept)) - 1 <= width:
                break
            if one[0].key not in _ESSENTIAL:
                kept.remove(one)
        return kept

    def on_resize(self) -> None:
        if self._bindings_ready:
            self.bindings_changed(self.screen)

    def bindings_changed(self, screen: Screen[object]) -> None:
        """Creates the keys again if the bindings differ, and drops replaced keys' watchers."""
        is_ours = self.is_attached and screen is self.screen and screen.app.app_focus
        if is_ours and self._bindings_ready and self._composed in (None, self._shown()):
            return
        if is_ours:
            self._composed = None
        self.mutate_reactive(Footer.compact)
        super().bindings_changed(screen)


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
