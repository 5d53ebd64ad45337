"""What the terminal can show: its background, colours and characters; and the theme that is kept.

OSC 11 asks a terminal for its background, and DA1 for something that each one answers (xterm's
control sequences, https://invisible-island.net/xterm/ctlseqs/ctlseqs.html).
"""

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
from rich.console import Console
from rich.palette import Palette
from rich.terminal_theme import TerminalTheme
from textual.color import Color
from textual.theme import Theme

from tracelloc.show.filters.files import own_text
from tracelloc.system.invoker import invoker, rights_of
from tracelloc.system.safefiles.resolve import directory_made
from tracelloc.system.safefiles.writing import replace_file
from tracelloc.ui.contrast import luminance

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
