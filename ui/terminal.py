"""What the terminal can show: its background, colours and characters; and the theme that is kept.

OSC 11 asks a terminal for its background, and DA1 for something that each one answers (xterm's
control sequences, https://invisible-island.net/xterm/ctlseqs/ctlseqs.html).

Text is readable in every theme, with a contrast of at least 4.5, as WCAG 2.1 requires (criterion
1.4.3, level AA): a filter on the drawn output moves colours that fall short towards black or white.
"""

import functools
import os
import re
import select
import termios
import time
import tty
from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from typing import Any, Final

from rich.cells import get_character_cell_size
from rich.color import Color as RichColor
from rich.color_triplet import ColorTriplet
from rich.console import Console
from rich.palette import Palette
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from textual.app import App
from textual.color import Color
from textual.filter import LineFilter
from textual.theme import Theme

from tracelloc.show.filters.files import own_text
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


_PLAIN: Final = (
    "▁▂▃▄▅▆▇█▏▎▍▌▋▊▉▐░▒▓╱╲│┆┤├┼─━┬┴└┌┐┘╭╮╰╯▔▲▼▸▾▶›→←↑↓…·×≥≤●⏎–—“”△▽",
    "__--==##||||||||.:%/\\||||+--++`,.'-.`'-^v+->>><^v~.x><*E--\"\"^v",
)
ASCII: Final = _Ascii(zip(map(ord, _PLAIN[0]), _PLAIN[1], strict=True))


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
    linear = [
        part / 255 / 12.92 if part <= 10 else ((part / 255 + 0.055) / 1.055) ** 2.4
        for part in colour
    ]
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


def keep_readable(app: App[Any]) -> None:
    """Adds a ``ContrastFilter`` after the application's own filters."""
    app._filters.append(ContrastFilter())
