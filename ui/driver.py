"""Textual's driver for Linux: it writes changes only, and survives the loss of its terminal.

Textual writes all lines of a widget that was refreshed, changed or not: 18 KB a second for a few
figures. Its pictures consist of cursor movements, and of text with styles (ECMA-48: CUP and SGR);
anything else passes as it is.

Textual writes from a thread that a write error ends. The drawing thread would then wait for it
forever, and tracelloc would neither detach nor write its files.
"""

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from typing import Any, ClassVar, Final, TextIO

from rich.cells import get_character_cell_size
from textual._xterm_parser import XTermParser
from textual.drivers import linux_driver
from textual.drivers.linux_driver import LinuxDriver
from textual.geometry import Size
from textual.message import Message

from tracelloc.ui.terminal import ASCII, first_theme, keep_theme, wants_ascii

# A movement to (line, column), and what is written there.
_PIECE: Final = re.compile(r"\x1b\[(\d+);(\d+)H((?:\x1b\[[\d;]*m|[^\x00-\x1f\x7f])*)(?:\r?\n)?")
_WORD: Final = re.compile(r"(\x1b\[[\d;]*m)|([^\x1b]+)")
_SYNCHRONIZED: Final = "\x1b[?2026"  # Begins and ends a picture (DEC mode 2026); changes no cell
_PLAIN: Final = "\x1b[0m"
_NEAR: Final = 10  # Equal cells between two changed ones that are cheaper to write than to skip
# Everything is written again this often: another program may have written over it.
_REPAINT_S: Final = 30.0

Cell = tuple[str, str]  # (style, character)


class ScreenChanges:
    """The known content of the screen, by which output is reduced to changes."""

    def __init__(self) -> None:
        self._lines: dict[int, dict[int, Cell]] = {}
        # The last piece of each line, (column, content): most are written again unchanged
        self._latest: dict[int, tuple[int, str]] = {}
        self._painted_s = time.monotonic()

    def forget(self) -> None:
        self._lines.clear()
        self._latest.clear()
        self._painted_s = time.monotonic()

    def reduce(self, output: str) -> str:
        """Returns shorter output that leads to the same content of the screen."""
        if output.startswith(_SYNCHRONIZED):
            return output
        if time.monotonic() - self._painted_s > _REPAINT_S:
            self.forget()
        kept: list[str] = []
        at = 0
        while at < len(output):
            piece = _PIECE.match(output, at)
            if piece is None:
                self.forget()
                return output
            kept.append(self._changed(int(piece[1]), int(piece[2]), piece[3]))
            at = piece.end()
        return "".join(kept)

    def _changed(self, line: int, column: int, content: str) -> str:
        if not content:
            return _move(line, column)
        if self._latest.get(line) == (column, content):
            return ""
        self._latest[line] = column, content
        cells = _cells(content)
        if cells is None:
            # How wide the terminal takes these characters for is not certain.
            del self._latest[line]
            self._lines.pop(line, None)
            return _move(line, column) + content
        known = self._lines.setdefault(line, {})
        changed = [n for n, cell in enumerate(cells) if known.get(column + n) != cell]
        known.update(enumerate(cells, column))
        return "".join(
            _move(line, column + first) + _styled(cells[first:end]) for first, end in _runs(changed)
        )


def _move(line: int, column: int) -> str:
    return f"\x1b[{line};{column}H"


def _cells(content: str) -> list[Cell] | None:
    """Returns a cell per character; None if one may take more or less than a cell."""
    cells: list[Cell] = []
    style = ""
    for word in _WORD.finditer(content):
        if word[1]:
            style = "" if word[1] == _PLAIN else style + word[1]
        elif word[2].isascii() or all(get_character_cell_size(c) == 1 for c in word[2]):
            cells += [(style, character) for character in word[2]]
        else:
            return None
    return cells


def _runs(changed: list[int]) -> list[tuple[int, int]]:
    """Returns (first, end) of changed cells that are near each other."""
    runs: list[tuple[int, int]] = []
    for n in changed:
        if runs and n - runs[-1][1] <= _NEAR:
            runs[-1] = runs[-1][0], n + 1
        else:
            runs.append((n, n + 1))
    return runs


def _styled(cells: list[Cell]) -> str:
    runs = (
        (style, "".join(map(itemgetter(1), run))) for style, run in groupby(cells, itemgetter(0))
    )
    return "".join(f"{style}{text}{_PLAIN}" if style else text for style, text in runs)


class GuardedStream:
    """A stream that drops its output once its reader is gone."""

    def __init__(self, stream: TextIO, lost: Callable[[], None]) -> None:
        """``lost``: called once from the writing thread, when the reader is gone."""
        self._stream = stream
        self._lost = lost
        self._is_lost = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._guard(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._guard(self._stream.flush)

    def _guard(self, call: Callable[..., object], *arguments: str) -> None:
        if not self._is_lost:
            try:
                call(*arguments)
            except (OSError, ValueError):
                self._is_lost = True
                self._lost()


_ESCAPE: Final = "\x1b"
# What follows the escape character in the key's own sequence, that of Kitty's protocol.
_ESCAPE_KEY: Final = "[27u"
# Characters that begin a sequence after an escape character, or end one.
_INTRODUCERS: Final = frozenset("[O]PX^_\\")


class KeyParser(XTermParser):
    """Textual's parser, for which Esc and another key right after it are two keys.

    Textual takes them for one key with Alt, or drops the first one. Nothing here uses Alt.
    """

    # Whether the last character was an escape character that may begin a sequence.
    _waits: bool = False

    def feed(self, data: str) -> Iterable[Message]:
        pieces = []
        for at, character in enumerate(data):
            waits = data[at - 1] == _ESCAPE if at else self._waits
            if waits and character not in _INTRODUCERS:
                pieces.append(_ESCAPE_KEY)
            pieces.append(character)
        self._waits = data.endswith(_ESCAPE)
        return super().feed("".join(pieces))

    def tick(self) -> Iterable[Message]:
        """Returns the events of sequences that have not been continued in time."""
        for event in super().tick():
            self._waits = False
            yield event


# The driver makes its parser itself.
linux_driver.XTermParser = KeyParser  # type: ignore[attr-defined]


class TerminalDriver(LinuxDriver):
    """Writes only changes, and ends the application when its terminal is gone."""

    is_plain: ClassVar[bool] = wants_ascii()  # Whether it writes ASCII only

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._file: Any = GuardedStream(self._file, self._end)
        self._changes = ScreenChanges()
        self._size: Size | None = None
        self._theme: str | None = None  # The theme that the screen began with

    def start_application_mode(self) -> None:
        """Begins with the theme that the user has chosen, or that suits the terminal."""
        if self._theme is None:
            self._theme = self._app.theme = first_theme(self.fileno, self._app.available_themes)
        super().start_application_mode()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Keeps the theme if the user has chosen another one."""
        super().close()
        if self._app.theme != self._theme:
            keep_theme(self._app.theme)

    def write(self, data: str) -> None:
        if self.is_plain:
            data = data.translate(ASCII)
        if self._size != self._app.size:
            self._size = self._app.size
            self._changes.forget()
        super().write(self._changes.reduce(data))

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._app.exit)


# Switch off mouse, focus, paste and size reports and Kitty's keys; show main screen and cursor.
_RESTORED: Final = (
    r"\033[?1000l\033[?1002l\033[?1003l\033[?1015l\033[?1006l\033[?1004l\033[?2004l"
    r"\033[?2048l\033[?2026l\033[<u\033[?1049l\033[?25h\033[0m\r\n"
)
# A normal exit sends these words; if tracelloc is killed, the pipe closes without them.
_GUARD: Final = """
trap '' HUP INT QUIT TERM
read -r word
[ "$word" = done ] || { stty "$1" <&1; printf "$2"; printf 'tracelloc: killed\\r\\n'; }
"""


@contextmanager
def restored_terminal() -> Iterator[None]:
    """Has a waiting shell restore the terminal if this process is killed in the context.

    SIGKILL runs no handler of this process. The shell runs in its own session: a process
    without this controlling terminal may change the terminal's modes without being stopped.
    """
    guard = _guard_of(sys.__stderr__)
    try:
        yield
    finally:
        if guard is not None and guard.stdin is not None:
            try:
                guard.stdin.write(b"done\n")
                guard.stdin.close()
            except OSError:
                guard.kill()
            guard.wait()


def _guard_of(stream: TextIO | None) -> subprocess.Popen[bytes] | None:
    try:
        assert stream is not None
        descriptor = stream.fileno()
        modes = subprocess.run(
            ["stty", "-g"], stdin=descriptor, capture_output=True, check=True, text=True, timeout=5
        ).stdout.strip()
        return subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "sh", modes, _RESTORED],
            stdin=subprocess.PIPE,
            stdout=descriptor,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except (OSError, ValueError, AssertionError, subprocess.SubprocessError):
        return None
