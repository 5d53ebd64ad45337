"""Textual's driver for Linux: it writes changes only, and survives the loss of its terminal.

Textual writes all lines of a widget that was refreshed, changed or not: 18 KB a second for a few
figures. Its pictures consist of cursor movements, and of text with styles (ECMA-48: CUP and SGR);
anything else passes as it is.

Textual writes from a thread that a write error ends. The drawing thread would then wait for it
forever, and tracelloc would neither detach nor write its files.

The terminal is asked for its background by OSC 11, and by DA1 for something that each one answers
(xterm's control sequences, https://invisible-island.net/xterm/ctlseqs/ctlseqs.html).

Text is readable in every theme, with a contrast of at least 4.5, as WCAG 2.1 requires (criterion
1.4.3, level AA): a filter on the drawn output moves colours that fall short towards black or white.
"""

import functools
import os
import re
import select
import subprocess
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import copy
from itertools import groupby
from operator import itemgetter
from typing import Any, ClassVar, Final, TextIO

from rich.cells import get_character_cell_size
from rich.color import Color as RichColor
from rich.color_triplet import ColorTriplet
from rich.console import Console
from rich.palette import Palette
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from textual._xterm_parser import XTermParser
from textual.color import Color
from textual.drivers import linux_driver
from textual.drivers.linux_driver import LinuxDriver
from textual.filter import LineFilter
from textual.geometry import Size
from textual.message import Message
from textual.theme import Theme

from tracelloc.show.filters.files import own_text
from tracelloc.startup import TERMINAL_GUARD
from tracelloc.system.invoker import invoker, rights_of
from tracelloc.system.safefiles.resolve import directory_made
from tracelloc.system.safefiles.writing import replace_file

_PATIENCE_S: Final = 0.2
_QUESTIONS: Final = b"\x1b]11;?\x1b\\\x1b[c"
_LAST_ANSWER: Final = re.compile(rb"\x1b\[\?[\d;]*c")
_BACKGROUND: Final = re.compile(rb"\x1b\]11;rgba?:([\da-f]+)/([\da-f]+)/([\da-f]+)", re.IGNORECASE)
_LIGHT: Final = 0.4  # Luminance from which a background is light
# Whether colours may not be told apart: there are none, or only the 16 of the terminal.
HAS_FEW_COLOURS: Final = "NO_COLOR" in os.environ or (
    "TERM" in os.environ and Console(force_terminal=True).color_system in (None, "standard")
)


class _Ascii(dict[int, str]):
    """A table for ``str.translate``; other characters become as many ``?`` as they take cells."""

    def __missing__(self, code: int) -> str:
        return chr(code) if code < 128 else "?" * get_character_cell_size(chr(code))


_REPLACED: Final = (
    "▁▂▃▄▅▆▇█▏▎▍▌▋▊▉▐░▒▓╱╲│┆┤├┼─━┬┴└┌┐┘╭╮╰╯▔▲▼▸▾▶›→←↑↓…·×≥≤●⏎–—“”△▽",
    "__--==##||||||||.:%/\\||||+--++`,.'-.`'-^v+->>><^v~.x><*E--\"\"^v",
)
ASCII: Final = _Ascii(zip(map(ord, _REPLACED[0]), _REPLACED[1], strict=True))


def wants_ascii(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the user's locale has ASCII only. Python itself then sets LC_CTYPE (PEP 538)."""
    return (environment.get("LC_ALL") or environment.get("LANG")) in ("C", "POSIX")


def is_light(descriptor: int) -> bool:
    """Asks the terminal whether its background is light; False if it does not answer."""
    answer, end_s = b"", time.monotonic() + _PATIENCE_S
    modes = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor, termios.TCSANOW)
        os.write(descriptor, _QUESTIONS)
        while not _LAST_ANSWER.search(answer):
            left_s = max(0.0, end_s - time.monotonic())
            if not select.select([descriptor], [], [], left_s)[0]:
                break
            answer += os.read(descriptor, 1024)
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, modes)
    found = _BACKGROUND.search(answer)
    if found is None:
        return False
    red, green, blue = (int(part, 16) * 255 // (16 ** len(part) - 1) for part in found.groups())
    return luminance((red, green, blue)) > _LIGHT


def first_theme(descriptor: int, themes: Mapping[str, Any]) -> str:
    """Returns the theme that the user chose last, or one for the terminal's background."""
    who = invoker()
    kept = (own_text(who.theme, who)[0] or "").strip()
    if kept in themes:
        return kept
    with suppress(OSError, termios.error):
        return "textual-light" if is_light(descriptor) else "textual-dark"
    return "textual-dark"


def keep_theme(name: str) -> None:
    """Writes the user's choice to a file; if that is impossible, it is forgotten."""
    who = invoker()
    with suppress(OSError), directory_made(who.theme.parent, who.user), rights_of(who):
        replace_file(who.theme, [f"{name}\n".encode()], [who.user])


def signal_colours(theme: Theme, base: TerminalTheme) -> TerminalTheme:
    """Returns the colours of styles: red, green and yellow are those of the theme's texts."""
    shades, found = theme.to_color_system().generate(), copy(base)
    normal = list(base.ansi_colors._colors[:8])
    for number, name in ((1, "text-error"), (2, "text-success"), (3, "text-warning")):
        if shades[name].startswith("#"):
            normal[number] = Color.parse(shades[name]).rgb
    found.ansi_colors = Palette([*normal, *normal])
    return found


LEAST: Final = 4.5
_STEPS: Final = 16
_Triplet = tuple[int, int, int]


def luminance(colour: _Triplet) -> float:
    """Relative luminance of an sRGB colour, 0 to 1, as WCAG defines it."""
    linear = [n / 255 / 12.92 if n <= 10 else ((n / 255 + 0.055) / 1.055) ** 2.4 for n in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: _Triplet, other: _Triplet) -> float:
    """Contrast ratio of two colours, 1 to 21."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def readable(colour: _Triplet, behind: _Triplet) -> _Triplet:
    """Returns the colour, moved towards black or white until it is readable on ``behind``."""
    if contrast(colour, behind) >= LEAST:
        return colour
    end = max(0, 255, key=lambda level: contrast((level, level, level), behind))
    for step in range(1, _STEPS + 1):
        red, green, blue = (round(part + (end - part) * step / _STEPS) for part in colour)
        if contrast((red, green, blue), behind) >= LEAST:
            return red, green, blue
    return end, end, end


@functools.lru_cache(1 << 12)
def _readable_style(style: Style, background: _Triplet) -> Style:
    front, back = style.color, style.bgcolor
    if front is None or front.triplet is None or (back is not None and back.triplet is None):
        # The terminal's own colours are unknown here.
        return style
    behind = background if back is None or back.triplet is None else back.triplet
    moved = readable(front.triplet, behind)
    if moved == front.triplet:
        return style
    return style + Style(color=RichColor.from_triplet(ColorTriplet(*moved)))


class ContrastFilter(LineFilter):
    """A filter of drawn segments that makes text readable, but leaves lines and bars."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        behind = background.rgb
        return [
            segment
            if segment.style is None or not _has_text(segment.text)
            else Segment(segment.text, _readable_style(segment.style, behind), segment.control)
            for segment in segments
        ]


@functools.lru_cache(1 << 12)
def _has_text(text: str) -> bool:
    return any(letter.isalnum() for letter in text)


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
        runs = _runs(changed)
        return "".join(_move(line, column + at) + _styled(cells[at:end]) for at, end in runs)


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
    runs: list[tuple[int, int]] = []
    for n in changed:
        if runs and n - runs[-1][1] <= _NEAR:
            runs[-1] = runs[-1][0], n + 1
        else:
            runs.append((n, n + 1))
    return runs


def _styled(cells: list[Cell]) -> str:
    parts = groupby(cells, itemgetter(0))
    runs = ((style, "".join(map(itemgetter(1), run))) for style, run in parts)
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
    """Textual's parser, for which Esc and another key right after it are two keys, not Alt."""

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
        self._app.is_colourless = HAS_FEW_COLOURS or self.is_plain  # type: ignore[attr-defined]
        self._size: Size | None = None
        self._theme: str | None = None  # The theme that the screen began with

    def start_application_mode(self) -> None:
        if self._theme is None:
            self._theme = self._app.theme = first_theme(self.fileno, self._app.available_themes)
        super().start_application_mode()  # type: ignore[no-untyped-call]

    def close(self) -> None:
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
            ["/bin/sh", "-c", _GUARD, TERMINAL_GUARD, modes, _RESTORED], stdin=subprocess.PIPE,
            stdout=descriptor, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    except (OSError, ValueError, AssertionError, subprocess.SubprocessError):
        return None
