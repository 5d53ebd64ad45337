"""Sentences on whether figures are complete, shown before the figures."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tracelloc.model.losses import (
    Completeness,
    Gap,
    completeness_of,
)
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import plural

_MOST: Final = 3
"""Most gaps named in a sentence."""


@dataclass(frozen=True, slots=True)
class Incompleteness:
    """An alert that figures are incomplete; an ``alerts.Alert``."""

    gaps: Sequence[Gap]

    @property
    def short(self) -> str:
        """Formats ``incomplete until 15:03:22``, or the time since which no event was seen."""
        last = self.gaps[-1]
        if last.end_s is None:
            return f"figures end at {_clock(last.start_s)}"
        return f"incomplete until {_clock(last.end_s)}"

    @property
    def clause(self) -> str:
        """Returns what is missing, without all the times."""
        last = self.gaps[-1]
        if last.end_s is None:
            return f"figures end at {_clock(last.start_s)}: {last.reason}"
        return f"figures are incomplete: {_missing(last)}"

    @property
    def sentence(self) -> str:
        """Returns what is missing, in which time spans, and why."""
        last = self.gaps[-1]
        parts = [_missing(gap) for gap in self.gaps[:_MOST] if gap.end_s is not None]
        if len(self.gaps) > _MOST:
            parts.append(plural(len(self.gaps) - _MOST, "more gap"))
        words = f"figures are incomplete: {'; '.join(parts)}" if parts else ""
        if last.end_s is not None:
            return words
        return "; ".join(filter(None, [self.clause, words]))


def _missing(gap: Gap) -> str:
    assert gap.end_s is not None
    span = f"between {_clock(gap.start_s)} and {_clock(gap.end_s)}"
    what = "some events" if gap.lost_events is None else plural(gap.lost_events, "event")
    return f"{what} {span} missing ({gap.reason})"


def _clock(time_s: float) -> str:
    return time.strftime("%H:%M:%SZ", time.gmtime(time_s))


def incompleteness(snapshot: Snapshot) -> Incompleteness | None:
    """Returns what the figures lack; None if they are complete."""
    return Incompleteness(snapshot.gaps) if snapshot.gaps else None


def completeness_word(snapshot: Snapshot) -> str:
    """Formats ``complete``, ``at_least`` or ``until_15:03:22Z``, one word of a log line."""
    state: Completeness = completeness_of(snapshot.gaps)
    word: str = state.value
    if state is Completeness.UNTIL:
        return f"{word}_{_clock(snapshot.gaps[-1].start_s)}"
    return word


def completeness_facts(snapshot: Snapshot) -> dict[str, Any]:
    """Returns what the figures lack, for JSON. Times in seconds since 1970."""
    return {
        "state": completeness_of(snapshot.gaps).value,
        "gaps": [
            {
                "from": round(gap.start_s, 3),
                "to": None if gap.end_s is None else round(gap.end_s, 3),
                "lost_events": gap.lost_events,
                "reason": gap.reason,
            }
            for gap in snapshot.gaps
        ],
    }
