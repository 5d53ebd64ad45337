"""Gaps: stretches of time that figures lack.

A trace is complete while no event is missing. Otherwise, gaps record when events were missing, how
many, and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Completeness(Enum):
    """How complete the figures of a process are."""

    COMPLETE = "complete"
    """The figures include every allocation and free since tracing began."""
    AT_LEAST = "at_least"
    """Some events are missing; those included happened."""
    UNTIL = "until"
    """No events have been seen since some time."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A stretch of time with missing events."""

    start_s: float
    """Last time without missing events: wall clock, seconds since 1970."""
    end_s: float | None
    """When all events were seen again; None if not yet."""
    lost_events: int | None
    """Number of missing allocations and frees; None if unknown."""
    reason: str
    """A clause, without a subject if ``lost_events`` is known."""


def completeness_of(gaps: Sequence[Gap]) -> Completeness:
    """How complete figures with these gaps are."""
    if any(gap.end_s is None for gap in gaps):
        return Completeness.UNTIL
    return Completeness.AT_LEAST if gaps else Completeness.COMPLETE
