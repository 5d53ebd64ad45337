"""Readable text in every theme: a contrast with the background of at least 4.5.

WCAG 2.1 requires it (success criterion 1.4.3, level AA). Many themes' muted and signal colours
fall short; a filter on the drawn output moves these towards black or white.
"""

import functools
from typing import Any, Final

from rich.color import Color
from rich.color_triplet import ColorTriplet
from rich.segment import Segment
from rich.style import Style
from textual.app import App
from textual.color import Color as TextualColor
from textual.filter import LineFilter

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
    return style + Style(color=Color.from_triplet(ColorTriplet(*moved)))


class ContrastFilter(LineFilter):
    """A filter of drawn segments that makes text readable, but leaves lines and bars."""

    def apply(self, segments: list[Segment], background: TextualColor) -> list[Segment]:
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
