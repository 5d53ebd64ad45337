"""The view of what a started program writes to its terminal, which may be typed into."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rich.text import Text
from textual import events

from tracelloc.tracing.terminal import ProgramTerminal
from tracelloc.ui.lines import LineView, Piece
from tracelloc.ui.terminallines import TerminalLines
from tracelloc.ui.view import Selection, Source, View

LEAVE_KEY: Final = "ctrl+right_square_bracket"
_KEYS: Final = {
    "enter": b"\r",
    "backspace": b"\x7f",
    "tab": b"\t",
    "escape": b"\x1b",
    "up": b"\x1b[A",
    "down": b"\x1b[B",
    "right": b"\x1b[C",
    "left": b"\x1b[D",
    "home": b"\x1b[H",
    "end": b"\x1b[F",
    "delete": b"\x1b[3~",
    "pageup": b"\x1b[5~",
    "pagedown": b"\x1b[6~",
}
"""What terminals send for keys without a character of their own (xterm's, ctlseqs)."""


@dataclass(frozen=True, slots=True)
class Output:
    """What the view shows."""

    lines: Sequence[Text]
    dropped: int
    """Lines before these."""
    terminal: ProgramTerminal


def maker(source: Source) -> Callable[[Selection], Output]:
    """Makes lines of what was written; reads on where it stopped."""
    lines, position = TerminalLines(), 0
    terminal = source.terminal
    assert terminal is not None

    def output(_selection: Selection) -> Output:
        nonlocal position
        position, data = terminal.written_since(position)
        lines.feed(data)
        return Output(lines.all(), lines.dropped, terminal)

    return output


class OutputView(LineView[Output]):
    """Follows the end unless the cursor has been moved away from it."""

    header_lines = 1

    def __init__(self) -> None:
        super().__init__()
        self._content: Output | None = None
        self._follows = True
        self.is_typing = False
        """Whether keys go to the program."""

    def show(self, content: Output, *, at_once: bool = False) -> None:
        """Shows what was written; what stands there never moves but by scrolling."""
        if self._content is None:
            self._resize(content.terminal)
        self._content = content
        self.rows_changed()
        if self._follows and content.lines:
            super().move_to(len(content.lines) - 1)

    def on_resize(self) -> None:
        """The program's terminal is as large as the view."""
        if self._content is not None:
            self._resize(self._content.terminal)

    def _resize(self, terminal: ProgramTerminal) -> None:
        if self.width and self.page_rows > 1:
            terminal.resize(self.page_rows, self.width)

    def move_to(self, row: int) -> None:
        """Puts the cursor on a row; on the last one it stays at the end."""
        super().move_to(row)
        self._follows = row >= self.row_count() - 1

    def row_count(self) -> int:
        """Lines."""
        return 0 if self._content is None else len(self._content.lines)

    def row(self, row: int, width: int) -> Iterable[Piece]:
        """A line, as far as there is room."""
        assert self._content is not None
        line = self._content.lines[row][:width]
        line.truncate(width)
        for segment in line.render(self.app.console):
            if segment.text:
                yield segment.text, segment.style

    def fixed(self, line: int, width: int) -> Iterable[Piece]:
        """Where keys go."""
        where = "keys go to the program, Ctrl-] ends that" if self.is_typing else "Enter to type"
        dropped = 0 if self._content is None else self._content.dropped
        more = f"; {dropped:,} earlier lines dropped" if dropped else ""
        yield f" output of the program; {where}{more}"[:width], "lines--header"

    def empty_text(self) -> str:
        """Said until there is something."""
        return " the program has written nothing"

    async def _on_key(self, event: events.Key) -> None:
        if self._content is None or not (self.is_typing or event.key == "enter"):
            await super()._on_key(event)
            return
        event.stop()
        event.prevent_default()
        if not self.is_typing or event.key == LEAVE_KEY:
            self.is_typing = not self.is_typing
            self.refresh()
            return
        data = _KEYS.get(event.key)
        if data is None and event.character is not None:
            data = event.character.encode()
        if data is not None:
            self._content.terminal.type(data)


OUTPUT: Final = View(
    name="output",
    title="Output",
    key="0",
    maker=maker,
    widget=OutputView,
    keeps=True,
    exists=lambda source: source.terminal is not None,
)
