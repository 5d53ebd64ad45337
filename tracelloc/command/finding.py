"""A finding of ``tracelloc doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class FindingState(Enum):
    """State of a finding; the value is shown to users."""

    GOOD = "ok"
    MISSING = "missing"  # Tracing works, but something will be missing
    FAILS = "fails"  # The process can't be traced
    YES = "yes"  # A way works
    NO = "no"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line and its cure. All text may contain names from the target."""

    state: FindingState
    about: str
    text: str
    cure: str = ""  # One command or sentence; empty if nothing needs to be done
