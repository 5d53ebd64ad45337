"""Source files: read with a cache, coloured by Pygments, and opened in the user's editor."""

import os
import shlex
import subprocess
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, Final

from rich.text import Text
from textual.app import App, SuspendNotSupported

from tracelloc.system.syscalls import open_inside, open_regular
from tracelloc.ui.tableview import crop

_LARGEST_BYTES: Final = 4 << 20
# Most files in the cache. They are not read again if they change: the program is older.
_MOST: Final = 8
_LONGEST_LINE: Final = 500
_TAB: Final = 4
_BLOCK: Final = 200  # Lines that are coloured at once: a file may have a hundred thousand
_BEFORE: Final = 60  # Lines before a block that are read, too: a comment may have begun there


def read_source(pid: int | None, path: str) -> list[str] | OSError:
    """Returns the lines of a source file, or the error that prevents reading it."""
    last: OSError = FileNotFoundError(2, "No such file or directory")
    ways: list[Callable[[], int]] = [partial(open_regular, path)]
    if pid is not None:
        ways.insert(0, partial(open_inside, f"/proc/{pid}/root", path))
    for opened in ways:
        try:
            with open(opened(), "rb") as stream:
                return stream.read(_LARGEST_BYTES).decode(errors="replace").splitlines()
        except OSError as error:
            last = error
    return last


_cached = lru_cache(_MOST)(read_source)


def lines_of_file(pid: int | None, path: str) -> list[str]:
    """Returns a file's lines; the root directory of ``pid`` is tried first. Raises OSError."""
    found = _cached(pid, path)
    if isinstance(found, OSError):
        raise found
    return found


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


def open_editor(app: App[Any], file: str, line: int) -> None:
    """Runs ``$VISUAL``, ``$EDITOR`` or vi until it exits; errors appear on the screen."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    command = [*shlex.split(editor), f"+{line}", file]
    try:
        with app.suspend():
            status = subprocess.run(command, check=False).returncode
    except (OSError, SuspendNotSupported, ValueError) as error:
        app.notify(f"{crop(editor, 60)}: {error}", severity="error", markup=False)
        return
    if status:
        app.notify(f"{crop(editor, 60)} ended with status {status}", markup=False)
