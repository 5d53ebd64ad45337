"""How tracing bears on the figures: what they lack, the time that they cover, and its cost.

The probes' share of the target's CPU time means little if the program idles, as most of almost
nothing does no harm. Views therefore show the CPU time added per second, and the factor by
which the program's own work takes more CPU time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

from tracelloc.model.losses import (
    Completeness,
    Gap,
    completeness_of,
)
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import format_percent, plural, printable

_MOST_SLOW: Final = 4
"""Most slow probes named in a line."""
_HIGH_FACTOR, _HIGH_CORES = 2.0, 0.2
"""From what on the cost of tracing is high: CPU time of the program, and processors for probes."""
_MOST_TIMES: Final = 10.0
"""Largest factor of the CPU time that is told exactly."""


def missing_events(gap: Gap) -> str:
    """Formats ``77 events between 15:03:20Z and 15:03:22Z missing (REASON)``."""
    assert gap.end_s is not None
    span = f"between {clock(gap.start_s)} and {clock(gap.end_s)}"
    what = "some events" if gap.lost_events is None else plural(gap.lost_events, "event")
    return f"{what} {span} missing ({gap.reason})"


def clock(time_s: float) -> str:
    """Formats seconds since 1970 as the time of day in UTC."""
    return time.strftime("%H:%M:%SZ", time.gmtime(time_s))


def completeness_word(snapshot: Snapshot) -> str:
    """Formats ``complete``, ``at_least`` or ``until_15:03:22Z``, one word of a log line."""
    state: Completeness = completeness_of(snapshot.gaps)
    word: str = state.value
    if state is Completeness.UNTIL:
        return f"{word}_{clock(snapshot.gaps[-1].start_s)}"
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


@dataclass(frozen=True, slots=True)
class TracingCost:
    """The cost of tracing to the target."""

    cores: float
    """Processors that tracing uses: CPU time added per second."""
    factor: float
    """Factor by which the program's own work takes more CPU time."""

    @property
    def short(self) -> str:
        """Formats ``tracing 8 % of a core (CPU ×1.2)``."""
        return f"tracing {_percent_of_core(self.cores)} of a core (CPU ×{self.times})"

    @property
    def sentence(self) -> str:
        """The cost as a clause."""
        return (
            f"tracing takes about {_percent_of_core(self.cores)} of one core; the program needs "
            f"{self.times} times the CPU time"
        )

    @property
    def is_high(self) -> bool:
        """Whether an alert says so."""
        return self.factor >= _HIGH_FACTOR and self.cores >= _HIGH_CORES

    @property
    def times(self) -> str:
        """The factor, as exact as it is known: ``1.2``, ``2.4 or more``."""
        if self.factor >= _MOST_TIMES:
            # The error of the estimates is as large as the remaining CPU time.
            return f"{_MOST_TIMES:.0f} or more"
        if self.factor >= _HIGH_FACTOR:
            # A program pays more for traps than a small process does.
            return f"{self.factor:.1f} or more"
        return f"{self.factor:.{2 if self.factor < 1.095 else 1}f}"


def _percent_of_core(cores: float) -> str:
    return format_percent(cores, 1 if cores < 0.0995 else 0)


def tracing_cost(snapshot: Snapshot) -> TracingCost | None:
    """Returns the cost of tracing; None until it has been measured."""
    share, cores = snapshot.overhead.probe_share, snapshot.cpu_cores
    if share is None or cores is None:
        return None
    return TracingCost(share * cores, 1 / max(1 - share, 0.01))


def overhead_line(snapshot: Snapshot) -> str:
    """Formats one line on the overhead of tracing and on slow probes."""
    overhead, cost = snapshot.overhead, tracing_cost(snapshot)
    parts = [f"{overhead.events_per_s:,.0f} events/s"]
    if cost is not None:
        parts.append(cost.sentence)
        if cost.is_high:
            parts[-1] += " (less: tracelloc help cost)"
    if overhead.slow_probes:
        shown = [printable(name) for name in overhead.slow_probes[:_MOST_SLOW]]
        more = len(overhead.slow_probes) - len(shown)
        if more:
            shown.append(f"and {more} more")
        parts.append(f"slow if called: {', '.join(shown)}")
    return ", ".join(parts)
