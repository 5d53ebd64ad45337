"""What ``tracelloc doctor`` has found out about one thing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class FindingState(Enum):
    """How things stand; the value is for people."""

    GOOD = "ok"
    MISSING = "missing"
    """Tracing works, and something will be missing."""
    FAILS = "fails"
    """Tracing will not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line, and what to do. All text may hold names of the target's."""

    state: FindingState
    about: str
    text: str
    cure: str = ""
    """One command or sentence; empty: nothing is to be done."""
