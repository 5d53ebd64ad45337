"""The line at the bottom that shows the keys."""

from __future__ import annotations

from textual.screen import Screen
from textual.widgets import Footer


class KeyFooter(Footer):
    """Textual's footer, without its leak of replaced keys.

    Textual creates the footer's keys again whenever the active bindings change. Each key watches
    ``compact``, and these watchers would keep replaced keys until ``compact`` changes, which it
    never does.
    """

    def bindings_changed(self, screen: Screen[object]) -> None:
        """Creates the keys again, and drops the watchers of replaced ones."""
        self.mutate_reactive(Footer.compact)
        super().bindings_changed(screen)
