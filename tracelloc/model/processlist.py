"""A process as lists show it, and why it may not be traceable."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Trouble(Enum):
    """Why a process can't be traced. The value is for users."""

    ENDED = "has ended"
    SELF = "tracelloc itself"
    BITS = "32-bit program"
    REFUSED = "may not be inspected"
    NO_ALLOCATOR = "no known malloc library"
    ODD = "its files can't be understood"


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """One process, as a list shows it. All text is the process's own: hostile."""

    pid: int
    command: str
    """Short name (comm)."""
    arguments: str
    """Command line; the short name if there is none."""
    user: str
    rss_bytes: int
    growth_bytes_per_min: int
    """Growth of resident memory over the last minute, or since it was first seen."""
    allocator: str | None
    """Where it has one: ``malloc in libc.so.6``. None: none found, or not looked for yet."""
    trouble: Trouble | None
    """Why it can't be traced; None: it can, as far as is known."""
    known: bool
    """Whether the last two have been found out."""


def matching(infos: Iterable[ProcessInfo], text: str) -> list[ProcessInfo]:
    """Processes in which each of some words occurs, in any case: command line, user, PID, state."""
    words = [re.escape(word) for word in text.split()]
    tests = [re.compile(word, re.IGNORECASE) for word in words]
    return [info for info in infos if all(test.search(_text_of(info)) for test in tests)]


def _text_of(info: ProcessInfo) -> str:
    trouble = info.trouble.value if info.trouble else ""
    return f"{info.pid} {info.user} {info.command} {info.arguments} {info.allocator} {trouble}"
