"""A process in a list, and why it may not be traceable."""

import re
from collections.abc import Iterable
from enum import Enum

from tracelloc.dataclass import dataclass


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
    """One process in a list. The process controls all its text: treat text as hostile."""

    pid: int
    command: str  # Short name (comm)
    arguments: str  # Command line; the short name if there is none
    user: str
    rss_bytes: int
    # Growth of resident memory over the last minute, or since the process was first seen.
    growth_bytes_per_min: int
    # The malloc library, as `malloc in libc.so.6`; None: none found, or not looked for yet.
    allocator: str | None
    trouble: Trouble | None  # Why it can't be traced; None if it can, as far as is known
    known: bool  # Whether `allocator` and `trouble` have been determined yet
    age_s: float = 0.0  # Seconds since the process was started


def matching_processes(infos: Iterable[ProcessInfo], text: str) -> list[ProcessInfo]:
    """Returns the processes whose command line, user, PID or state contain all words of a text."""
    words = [re.escape(word) for word in text.split()]
    tests = [re.compile(word, re.IGNORECASE) for word in words]
    return [info for info in infos if all(test.search(_text_of(info)) for test in tests)]


def _text_of(info: ProcessInfo) -> str:
    trouble = info.trouble.value if info.trouble else ""
    return f"{info.pid} {info.user} {info.command} {info.arguments} {info.allocator} {trouble}"
