"""How a report about a process that is not traced begins."""

from __future__ import annotations

from tracelloc.model.process import Target
from tracelloc.text import format_time, printable


def headline(time_s: float, target: Target, text: str) -> str:
    """The first line: local time, process, and ``text``. ``time_s``: seconds since 1970."""
    return f"==> {format_time(time_s)} {printable(target.command)} ({target.pid}): {text}"
