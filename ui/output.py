"""The views of text lines: the log, and the output of a started program, which takes input.

Of ECMA-48's control functions, those are interpreted that logs and progress bars need: select
graphic rendition, carriage return, backspace, tab, erase in line. All others are dropped; none
reaches the user's terminal.
"""

from __future__ import annotations

import codecs
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from rich.ansi import AnsiDecoder
from rich.cells import cell_len
from rich.style import Style
from rich.text import Text
from textual import events

from tracelloc.show.presentation.alerts import overhead_line
from tracelloc.show.presentation.facts import unseen_lines
from tracelloc.show.presentation.processfacts import losses_line, memory_lines
from tracelloc.text import NS_PER_S, format_duration, format_percent, format_size, plural, printable
from tracelloc.ui.header import target_name
from tracelloc.ui.lineview import LineView, Piece
from tracelloc.ui.tableview import short_count
from tracelloc.ui.view import Facts, Source, Terminal, View, ViewSelection

_MOST_LINES: Final = 10_000
_LONGEST_LINE: Final = 4096  # Longest line, in characters; the rest is dropped
_TAB: Final = 8
_PART: Final = re.compile(
    r"\x1b\[(?P<parameters>[0-?]*)[ -/]*(?P<final>[@-~])"  # control sequence
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\)"  # operating system command and other strings
    r"|\x1b[ -/]*[0-~]"  # other escapes
    r"|(?P<control>[\x00-\x1f\x7f-\x9f])"
    r"|(?P<text>[^\x00-\x1f\x7f-\x9f]+)",
    re.DOTALL,
)
_UNFINISHED: Final = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_](?:(?!\x1b\\)[^\x07]){0,4096}|[ -/]*)?$", re.DOTALL
)


class TerminalLines:
    """The program's lines so far; the last one may be incomplete."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._rest = ""
        self._ansi = AnsiDecoder()
        self._cells: list[tuple[str, Style]] = []
        self._column = 0
        self._finished: deque[Text] = deque(maxlen=_MOST_LINES)
        self.dropped = 0
        """Lines that there is no room for any more."""

    def all(self) -> list[Text]:
        """Returns the lines, the oldest first. Returned lines no longer change."""
        last = [_joined(self._cells)] if self._cells else []
        return [*self._finished, *last]

    def feed(self, data: bytes) -> None:
        """Adds the program's output."""
        text = self._rest + self._decode(data)
        cut = _UNFINISHED.search(text)
        end = len(text) if cut is None else cut.start()
        self._rest = text[end:]
        for part in _PART.finditer(text, 0, end):
            if part["text"]:
                self._put(part["text"])
            elif part["control"]:
                self._control(part["control"])
            elif part["final"] == "m":
                # The decoder carries the style over to the next piece.
                self._ansi.decode_line(part[0])
            elif part["final"] == "K" and part["parameters"] in ("", "0"):
                del self._cells[self._column :]

    def _put(self, text: str) -> None:
        style = self._ansi.style
        for character in text:
            if self._column >= _LONGEST_LINE:
                return
            if self._column > len(self._cells):
                missing = self._column - len(self._cells)
                self._cells += [(" ", Style.null())] * missing
            self._cells[self._column : self._column + 1] = [(character, style)]
            self._column += 1

    def _control(self, character: str) -> None:
        if character == "\n":
            self.dropped += len(self._finished) == _MOST_LINES
            self._finished.append(_joined(self._cells))
            self._cells = []
            self._column = 0
        elif character == "\r":
            self._column = 0
        elif character == "\b":
            self._column = max(0, self._column - 1)
        elif character == "\t":
            self._column += _TAB - self._column % _TAB


def _joined(cells: list[tuple[str, Style]]) -> Text:
    text = Text(no_wrap=True, end="")
    start = 0
    for end in range(1, len(cells) + 1):
        if end == len(cells) or cells[end][1] != cells[start][1]:
            text.append("".join(character for character, _ in cells[start:end]), cells[start][1])
            start = end
    return text


LEAVE_KEY: Final = "ctrl+right_square_bracket"
# Sequences that terminals send for keys without a character (xterm's ctlseqs).
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


@dataclass(frozen=True, slots=True)
class ProgramOutput:
    """The program's output, and its terminal."""

    lines: Sequence[Text]
    dropped: int  # Number of earlier lines
    terminal: Terminal


def content_maker(source: Source) -> Callable[[ViewSelection], ProgramOutput]:
    """Makes lines of the program's output; continues where it stopped reading."""
    lines, position = TerminalLines(), 0
    terminal = source.terminal
    assert terminal is not None

    def output(_selection: ViewSelection) -> ProgramOutput:
        nonlocal position
        position, data = terminal.written_since(position)
        lines.feed(data)
        return ProgramOutput(lines.all(), lines.dropped, terminal)

    return output


class OutputView(LineView[ProgramOutput]):
    """The program's output; follows its end unless the user moves the cursor up."""

    header_lines = 1

    def __init__(self) -> None:
        super().__init__()
        self._content: ProgramOutput | None = None
        self._follows = True
        self.is_typing = False
        """Whether keys go to the program."""

    def show(self, content: ProgramOutput, *, at_once: bool = False) -> None:
        """Shows the output; existing lines only move by scrolling."""
        if self._content is None:
            self._resize(content.terminal)
        self._content = content
        self.rows_changed()
        if self._follows and content.lines:
            super().move_to(len(content.lines) - 1)

    def on_resize(self) -> None:
        """Gives the program's terminal the size of the view."""
        if self._content is not None:
            self._resize(self._content.terminal)

    def _resize(self, terminal: Terminal) -> None:
        if self.width and self.page_rows > 1:
            terminal.resize(self.page_rows, self.width)

    def move_to(self, row: int) -> None:
        """Moves the cursor to a row; on the last one, the view follows the output's end."""
        super().move_to(row)
        self._follows = row >= self.row_count() - 1

    def row_count(self) -> int:
        """Returns the number of lines."""
        return 0 if self._content is None else len(self._content.lines)

    def row(self, row: int, width: int) -> Iterable[Piece]:
        """Returns a line, cut to the width."""
        assert self._content is not None
        line = self._content.lines[row][:width]
        line.truncate(width)
        for segment in line.render(self.app.console):
            if segment.text:
                yield segment.text, segment.style

    def fixed(self, line: int, width: int) -> Iterable[Piece]:
        """Shows which program receives the keys."""
        where = (
            "typing into the program, Ctrl-]: stop"
            if self.is_typing
            else "Enter: type into the program"
        )
        dropped = 0 if self._content is None else self._content.dropped
        more = f"; {dropped:,} earlier lines dropped" if dropped else ""
        yield f" output of the program; {where}{more}"[:width], "lines--header"

    def empty_text(self) -> str:
        """Returns the text to show until there is output."""
        return "The program has written nothing yet."

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
    maker=content_maker,
    widget=OutputView,
    keeps=True,
    exists=lambda source: source.terminal is not None,
)


class TextLines(LineView[Sequence[str]]):
    """Lines of text that is printable already."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name for it
        super().__init__(id=id)
        self._lines: Sequence[str] = ()
        self._folded: list[str] = []

    def show(self, content: Sequence[str], *, at_once: bool = False) -> None:
        """Replaces the lines; the cursor stays where it is."""
        self._lines = content
        self.rows_changed()

    def rows_changed(self) -> None:
        """Wraps lines that are too long."""
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
        """Returns the number of lines, after wrapping."""
        return len(self._folded)

    def row(self, row: int, width: int) -> Iterable[Piece]:
        """Returns one line."""
        yield self._folded[row], None


def log_lines(selection: ViewSelection, facts: Facts) -> Iterator[str]:
    """Returns the log: the current figures, then the messages, the oldest first."""
    snapshot = selection.snapshot
    totals = snapshot.totals
    yield f"target     {target_name(snapshot)}"
    yield from _capture_lines(selection, facts)
    if snapshot.sample_bytes is not None:
        distance = format_size(snapshot.sample_bytes)
        yield f"sampled    one per {distance}: figures with ~ are estimates"
    for function in facts.functions:
        yield f"traced     {printable(function)}"
    for line in unseen_lines(snapshot.allocators):
        yield f"not probed {line}"
    for path, method in snapshot.stack_methods.items():
        yield f"stacks     through {printable(path)}: {method}"
    for line in memory_lines(snapshot):
        yield f"memory     {line}"
    yield f"cost       {overhead_line(snapshot)}"
    yield f"missed     {losses_line(snapshot)}"
    for cause, count in snapshot.losses.by_cause.items():
        if count:
            yield f"           {cause.replace('_', ' ')}: {count:,}"
    yield (
        f"seen       {snapshot.events:,} events, {plural(len(snapshot.stacks) - 1, 'stack')}, "
        f"{short_count(float(totals.allocated_count.sum()))} allocations, "
        f"{short_count(float(totals.freed_count.sum()))} frees"
    )
    yield f"           {plural(snapshot.broken_stacks, 'broken stack')}"
    journal = selection.journal
    for view, costs in list(journal.costs.items()):
        pairs = list(costs)
        worked, drawn = (1000 * median(column) for column in zip(*pairs, strict=True))
        most = 1000 * max(map(sum, pairs))
        yield (
            f"{'screen':<11}{view}: {worked:.1f} ms to compute in the background, "
            f"{drawn:.1f} ms to draw, {most:.1f} ms at most"
        )
    yield ""
    for message in list(journal.messages):
        yield printable(message)


def _capture_lines(selection: ViewSelection, facts: Facts) -> Iterator[str]:
    traced = format_duration(selection.snapshot.elapsed_ns // NS_PER_S)
    if not facts.ring_slots:
        yield f"recorded   {traced} up to this snapshot, by {facts.method}"
        return
    fill = f"at most {format_percent(selection.ring_share, 0)} full so far"
    yield f"attached   {traced} ago, by {facts.method}"
    yield f"ring       room for {plural(facts.ring_slots, 'event')}, {fill}"


LOG: Final = View(
    name="log",
    title="Log",
    key="8",
    maker=lambda source: lambda selection: list(log_lines(selection, source.facts)),
    widget=TextLines,
)
