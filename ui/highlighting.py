"""Source lines in the colours of their language, by Pygments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

from rich.text import Text

from tracelloc.ui.tableview import crop

_LONGEST_LINE: Final = 500
_TAB: Final = 4
_BLOCK: Final = 200
"""Lines that are coloured at once: a file may have a hundred thousand."""
_BEFORE: Final = 60
"""Lines before a block that are read, too: a comment may have begun there."""


class ColouredSource:
    """The lines of one source file, safe to show; coloured a block at a time, when needed."""

    def __init__(self, path: str, text: Sequence[str]) -> None:
        self._name = path.rpartition("/")[2]
        self._text = text
        self._blocks: dict[int, Sequence[Text]] = {}

    def line(self, number: int) -> Text:
        """Returns one line, from 1. Raises IndexError if the file has no such line."""
        if not 1 <= number <= len(self._text):
            raise IndexError(number)
        begin = (number - 1) // _BLOCK * _BLOCK
        first = max(begin - _BEFORE, 0)
        if begin not in self._blocks:
            block = self._text[first : begin + _BLOCK]
            shown = (crop(line.expandtabs(_TAB), _LONGEST_LINE) for line in block)
            self._blocks[begin] = _coloured(self._name, "\n".join(shown))
        return self._blocks[begin][number - 1 - first].copy()

    def lines(self, first: int, last: int) -> Iterator[tuple[int, Text]]:
        """Yields the lines from ``first`` to ``last`` with their numbers."""
        for number in range(first, last + 1):
            yield number, self.line(number)


@lru_cache(16)
def _coloured(name: str, code: str) -> Sequence[Text]:
    from rich.syntax import Syntax  # noqa: PLC0415 - the first screen does without it

    plain = code.split("\n")
    lexer = Syntax.guess_lexer(name, code)
    text = Syntax(code, lexer, theme="ansi_dark").highlight(code)
    coloured = list(text.split("\n", allow_blank=True))
    for line in coloured:
        # The rest of the row has its own background.
        line.style = ""
    is_whole = [line.plain for line in coloured[: len(plain)]] == plain
    return coloured if is_whole else [Text(line) for line in plain]
