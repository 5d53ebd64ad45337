"""Text in terminal cells: cut, filled and drawn so that columns and figures stay where they are.

Names from the target may hold anything; wide characters take two cells, combining ones
none, and ten thousand characters must cost no more than what is shown of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.cells import cell_len, set_cell_size

from tracelloc.text import NS_PER_S, format_size, printable

LONGEST_NAME: Final = 2048
"""Characters of a name that are looked at for drawing: no terminal shows more."""
CUT: Final = "…"
_PER_CELL: Final = 4
"""Characters looked at for each cell that there is; more would be combining ones."""
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_LEVELS: Final = "▁▂▃▄▅▆▇█"


def crop(name: str, width: int) -> str:
    """At most ``width`` cells, every character harmless, with an ellipsis where cut."""
    if width <= 0:
        return ""
    most = _PER_CELL * width + _PER_CELL
    text = printable(name[:most])
    if len(name) <= most and cell_len(text) <= width:
        return text
    # A wide character may have to go as a whole: a blank stands for its half.
    kept = set_cell_size(text[:most], min(width - 1, cell_len(text[:most])))
    return kept + CUT


def fit(name: str, width: int) -> str:
    """Exactly ``width`` cells, at the left."""
    text = crop(name, width)
    return text + " " * (width - cell_len(text))


def right(name: str, width: int) -> str:
    """Exactly ``width`` cells, at the right."""
    text = crop(name, width)
    return " " * (width - cell_len(text)) + text


def bar(share: float, width: int) -> str:
    """A horizontal bar of ``width`` cells, in steps of an eighth; something, if not zero."""
    share = min(max(share, 0.0), 1.0)
    eighths = round(share * width * 8)
    if share > 0:
        eighths = max(eighths, 1)
    full, part = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[part] if part else "")).ljust(width)[:width]


def sparkline(values: Sequence[float], width: int) -> str:
    """The newest values as columns from nothing to the highest; blanks where there are none."""
    shown = values[-width:] if width > 0 else []
    highest = max(shown, default=0)
    if highest <= 0:
        return (_LEVELS[0] * len(shown)).rjust(width)
    top = len(_LEVELS) - 1
    marks = (_LEVELS[round(max(value, 0) / highest * top)] for value in shown)
    return "".join(marks).rjust(width)


def signed_size(size_bytes: int) -> str:
    """``+1.10 MiB``, ``-3 B``; zero has no sign."""
    return f"+{format_size(size_bytes)}" if size_bytes > 0 else format_size(size_bytes)


def trend(change: float) -> str:
    """The direction as a character, for those who see no colours."""
    return "▲" if change > 0 else "▼" if change < 0 else "="


def percent(share: float) -> str:
    """``14.5 %``; as wide as any other up to ``100.0 %`` when set to the right of 7 cells."""
    return f"{100 * share:.1f} %"


def span(seconds: float) -> str:
    """A time between two moments in two units at most: ``0.4 s``, ``6 m 02 s``, ``3 h 05 m``."""
    if seconds < 10:
        return f"{max(seconds, 0):.1f} s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60:02} m"
    return f"{whole // 86_400} d {whole % 86_400 // 3600:02} h"


def clean(name: str) -> str:
    """A name of the target as it may be drawn: one line, nothing that steers a terminal."""
    return printable(name[:LONGEST_NAME])


def short_count(count: float) -> str:
    """At most five cells: ``12``, ``9.21k``, ``104k``, ``2.20M``; below ten with a tenth."""
    if count < 0:
        return "-" + short_count(-count)
    if count < 9.95 and count != int(count):
        return f"{count:.1f}"
    for letter in ("", "k", "M", "G", "T", "P"):
        if count < 999.5 or letter == "P":
            digits = 0 if not letter or count >= 99.95 else 1 if count >= 9.995 else 2
            return f"{count:.{digits}f}{letter}"
        count /= 1000
    raise AssertionError


def clock(span_ns: float) -> str:
    """``00:12:41`` since something began."""
    seconds = int(max(0.0, span_ns / NS_PER_S))
    return f"{seconds // 3600:02}:{seconds % 3600 // 60:02}:{seconds % 60:02}"


def gauge(share: float, width: int) -> str:
    """``▓▓▓▓░░`` for a share of 0 to 1."""
    full = round(width * min(1.0, max(0.0, share)))
    return "▓" * full + "░" * (width - full)
