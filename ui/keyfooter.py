"""The line at the bottom that shows the keys."""

from __future__ import annotations

from textual.screen import Screen
from textual.widgets import Footer


class KeyFooter(Footer):
    """Textual's footer, without what it has shown before.

    It makes its keys anew whenever some other ones work. Each key watches ``compact``, and the
    footer would keep those that were replaced until that changes: never.
    """

    def bindings_changed(self, screen: Screen[object]) -> None:
        """Creates the keys again, and drops those replaced earlier."""
        self.mutate_reactive(Footer.compact)
        super().bindings_changed(screen)
