"""Figures of steady width, and names of the target made harmless before they are drawn."""

from __future__ import annotations

from typing import Final

from tracelloc.text import printable
from tracelloc.units import NS_PER_S

LONGEST_NAME: Final = 2048
"""Characters of a name that are looked at for drawing: no terminal shows more."""

_THOUSAND: Final = 999.5


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
        if count < _THOUSAND or letter == "P":
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
