"""Cells for growth and verdicts, with the same styles in all views."""

from __future__ import annotations

from typing import Final

from rich.text import Text

from tracelloc.model.verdicts import Verdict
from tracelloc.text import signed_size
from tracelloc.ui.tableview import trend

GROWING: Final = "bold red"
SHRINKING: Final = "green"
VERDICT_STYLES: Final = {
    Verdict.LEAKING: "bold red",
    Verdict.GROWING: "yellow",
    Verdict.LOST: "red",
}
"""Styles of verdicts; others are dim."""
_SHORT: Final = {Verdict.LEAKING: "LEAKING"}
_HARMLESS: Final = (Verdict.CACHE, Verdict.BUSY, Verdict.START_UP, Verdict.EARLIER)


def growth_cell(bytes_per_min: int, verdict: Verdict | None) -> Text:
    """Returns ``+1.10 MiB ▲``; sign and triangle make it readable without color.

    Growth of memory with a harmless verdict is dim.
    """
    style = GROWING if bytes_per_min > 0 else SHRINKING if bytes_per_min < 0 else "dim"
    if bytes_per_min > 0 and verdict in _HARMLESS:
        style = "dim"
    return Text(f"{signed_size(bytes_per_min)} {trend(bytes_per_min)}", style)


def verdict_cell(verdict: Verdict | None) -> Text:
    """Returns the verdict in one word."""
    if verdict is None:
        return Text("-", "dim")
    return Text(_SHORT.get(verdict, verdict.value), VERDICT_STYLES.get(verdict, "dim"))
