"""Stretches of time that figures lack: plain records.

A trace is complete while nothing that happened is missing. Where something is, a gap says from
when to when, how much, and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Completeness(Enum):
    """What the figures of a process are worth."""

    COMPLETE = "complete"
    """Every allocation and free since tracing began is in them."""
    AT_LEAST = "at_least"
    """Some are missing; those that are there happened."""
    UNTIL = "until"
    """Nothing has been seen since some time."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A stretch of time of which something is missing."""

    start_s: float
    """Wall clock, seconds since 1970: nothing was missing then."""
    end_s: float | None
    """When all was seen again; None: never since."""
    lost_events: int | None
    """Allocations and frees that are missing; None: it is not known how many."""
    reason: str
    """A clause, without a subject where ``lost_events`` is known."""


def completeness_of(gaps: Sequence[Gap]) -> Completeness:
    """What gaps make of the figures."""
    if any(gap.end_s is None for gap in gaps):
        return Completeness.UNTIL
    return Completeness.AT_LEAST if gaps else Completeness.COMPLETE
