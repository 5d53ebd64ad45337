"""How tracing bears on the figures: what they lack, the time that they cover, and its cost.

The probes' share of the target's CPU time means little if the program idles, as most of almost
nothing does no harm. Views therefore show the CPU time added per second, and the factor by
which the program's own work takes more CPU time.
"""

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
from tracelloc.text import format_percent, plural, printable

_MOST_GAPS: Final = 3
"""Most gaps named in a sentence."""
_MOST_SLOW: Final = 4
"""Most slow probes named in a line."""
_HIGH_FACTOR, _HIGH_CORES = 2.0, 0.2
"""From what on the cost of tracing is high: CPU time of the program, and processors for probes."""
_MOST_TIMES: Final = 10.0
"""Largest factor of the CPU time that is told exactly."""


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
        parts = [_missing(gap) for gap in self.gaps[:_MOST_GAPS] if gap.end_s is not None]
        if len(self.gaps) > _MOST_GAPS:
            parts.append(plural(len(self.gaps) - _MOST_GAPS, "more gap"))
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
        return f"tracing {_percent_of_core(self.cores)} of a core (CPU ×{self._times})"

    @property
    def sentence(self) -> str:
        """The cost as a clause."""
        return (
            f"tracing takes about {_percent_of_core(self.cores)} of one core; the program needs "
            f"{self._times} times the CPU time"
        )

    @property
    def alert(self) -> HighCost | None:
        """An alert, if it is high."""
        is_high = self.factor >= _HIGH_FACTOR and self.cores >= _HIGH_CORES
        return HighCost(self._times) if is_high else None

    @property
    def _times(self) -> str:
        if self.factor >= _MOST_TIMES:
            # The error of the estimates is as large as the remaining CPU time.
            return f"{_MOST_TIMES:.0f} or more"
        if self.factor >= _HIGH_FACTOR:
            # A program pays more for traps than a small process does.
            return f"{self.factor:.1f} or more"
        return f"{self.factor:.{2 if self.factor < 1.095 else 1}f}"


@dataclass(frozen=True, slots=True)
class HighCost:
    """An alert that tracing costs much; an ``alerts.Alert``."""

    times: str

    @property
    def short(self) -> str:
        """Formats ``tracing: CPU ×2.4 or more``."""
        return f"tracing: CPU ×{self.times}"

    @property
    def clause(self) -> str:
        """Returns the cost, and where to read on."""
        return (
            f"while traced, the program needs {self.times} times the CPU time (tracelloc help cost)"
        )

    @property
    def sentence(self) -> str:
        """Returns the cost, and where to read on."""
        return (
            f"while traced, the program needs {self.times} times the CPU time: "
            "tracelloc help cost says what makes it less"
        )


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
        if cost.alert is not None:
            parts[-1] += " (less: tracelloc help cost)"
    if overhead.slow_probes:
        shown = [printable(name) for name in overhead.slow_probes[:_MOST_SLOW]]
        more = len(overhead.slow_probes) - len(shown)
        if more:
            shown.append(f"and {more} more")
        parts.append(f"slow if called: {', '.join(shown)}")
    return ", ".join(parts)
