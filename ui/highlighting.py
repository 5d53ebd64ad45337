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


def numbered_lines(
    path: str, text: Sequence[str], first: int, last: int
) -> Iterator[tuple[int, Text]]:
    """Yields the lines of a source file from ``first`` to ``last``, safe to show."""
    for number in range(first, last + 1):
        yield number, source_line(path, text, number)


def source_line(path: str, text: Sequence[str], number: int) -> Text:
    """Returns one line of a source file. Raises IndexError if the file has no such line."""
    begin = (number - 1) // _BLOCK * _BLOCK
    first = max(begin - _BEFORE, 0)
    shown = (crop(line.expandtabs(_TAB), _LONGEST_LINE) for line in text[first : begin + _BLOCK])
    return _coloured(path.rpartition("/")[2], "\n".join(shown))[number - 1 - first].copy()


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
