"""Text in a list: lines of any length, folded to the width."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.text import Text

from tracelloc.ui.lines import LineView, Piece


class TextLines(LineView[Sequence[str]]):
    """Shows lines that are harmless already."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name for it
        super().__init__(id=id)
        self._lines: Sequence[str] = ()
        self._folded: list[str] = []

    def show(self, content: Sequence[str], *, at_once: bool = False) -> None:
        """Replaces the lines; nothing moves but what is new."""
        self._lines = content
        self.rows_changed()

    def rows_changed(self) -> None:
        """Folds what is too long."""
        width = max(self.width, 1)
        self._folded = []
        for line in self._lines:
            if cell_len(line) <= width:
                self._folded.append(line)
            else:
                parts = Text(line).wrap(self.app.console, width)
                self._folded += [part.plain for part in parts]
        super().rows_changed()

    def row_count(self) -> int:
        """Lines on the screen."""
        return len(self._folded)

    def row(self, row: int, width: int) -> Iterable[Piece]:
        """One line."""
        yield self._folded[row], None
