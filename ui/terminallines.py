"""What a program writes to its terminal, as lines with colours.

Enough of ECMA-48 for logs and progress bars: select graphic rendition, carriage return,
backspace, tab, erase in line. Everything else is left out: none of it reaches our own
terminal.
"""

from __future__ import annotations

import codecs
import re
from collections import deque
from typing import Final

from rich.ansi import AnsiDecoder
from rich.style import Style
from rich.text import Text

_MOST_LINES: Final = 10_000
_LONGEST_LINE: Final = 4096
"""Characters; the rest of a line is dropped."""
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
    """Lines so far; the last one may go on."""

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
        """The lines, the oldest first. They don't change any more."""
        last = [_joined(self._cells)] if self._cells else []
        return [*self._finished, *last]

    def feed(self, data: bytes) -> None:
        """Takes in what was written."""
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
                # The decoder keeps the style from one piece to the next.
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
