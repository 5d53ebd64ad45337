"""Textual's driver for Linux, made to survive the loss of its terminal.

Textual writes from a thread that a write error ends. The drawing thread would then wait for it
forever, and tracelloc would neither detach nor write its files.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TextIO

from textual._xterm_parser import XTermParser
from textual.drivers import linux_driver
from textual.drivers.linux_driver import LinuxDriver
from textual.geometry import Size
from textual.message import Message

from tracelloc.ui.changes import ScreenChanges


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
        """Writes the text, or drops it if the reader is gone."""
        self._guard(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        """Flushes, if the terminal still exists."""
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
        """Returns the events of characters that were read."""
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
    """Ends the application when its terminal is gone."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._file: Any = GuardedStream(self._file, self._end)
        self._changes = ScreenChanges()
        self._size: Size | None = None

    def write(self, data: str) -> None:
        """Writes what changes the screen."""
        if self._size != self._app.size:
            self._size = self._app.size
            self._changes.forget()
        super().write(self._changes.reduce(data))

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._app.exit)


# Switch off mouse, focus, paste and size reports and Kitty's keys; show main screen and cursor.
_PLAIN: Final = (
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
    """Context in which a waiting shell restores the terminal if this process is killed.

    SIGKILL runs no handler, so this process can't. The shell runs in its own session: a process
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
            ["/bin/sh", "-c", _GUARD, "sh", modes, _PLAIN],
            stdin=subprocess.PIPE,
            stdout=descriptor,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except (OSError, ValueError, AssertionError, subprocess.SubprocessError):
        return None
