"""The line at the bottom that shows the keys."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.screen import Screen
from textual.widgets import Footer

Shown = tuple[tuple[Binding, bool, str], ...]
"""Each key with whether it does something, and what pointing at it says."""


class KeyFooter(Footer):
    """Textual's footer, without its leak of replaced keys and without needless replacing.

    Textual creates the footer's keys again each time it looks for active bindings, several times
    per key that is pressed, which takes longer than anything else that follows. Each key watches
    ``compact``, and these watchers would keep replaced keys until ``compact`` changes, which it
    never does.
    """

    _composed: Shown | None = None
    """What it shows. None: what it will show is not known before it is composed."""

    def _shown(self) -> Shown:
        active = self.screen.active_bindings.values()
        return tuple(
            (each.binding, each.enabled, each.tooltip) for each in active if each.binding.show
        )

    def compose(self) -> ComposeResult:
        """Notes what it shows."""
        if self._bindings_ready:
            self._composed = self._shown()
        yield from super().compose()

    def bindings_changed(self, screen: Screen[object]) -> None:
        """Creates the keys again if they are others, and drops the watchers of replaced ones."""
        is_ours = self.is_attached and screen is self.screen and screen.app.app_focus
        if is_ours and self._bindings_ready and self._composed in (None, self._shown()):
            return
        if is_ours:
            self._composed = None
        self.mutate_reactive(Footer.compact)
        super().bindings_changed(screen)
