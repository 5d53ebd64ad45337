"""The cost of tracing to the target, in units that users can judge.

The probes' share of the target's CPU time means little if the program idles, as most of almost
nothing does no harm. Views therefore show the CPU time added per second, and the factor by
which the program's own work takes more CPU time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import format_percent, printable

_MOST_SLOW: Final = 4
"""Most slow probes named in a line."""


_MOST_TIMES: Final = 10.0


@dataclass(frozen=True, slots=True)
class TracingCost:
    """The cost of tracing to the target."""

    cores: float
    """Processors that the probes use: CPU time added per second."""
    factor: float
    """Factor by which the program's own work takes more CPU time."""

    @property
    def short(self) -> str:
        """Formats ``probes 8 % of a core (CPU ×1.2)``."""
        return f"probes {_percent_of_core(self.cores)} of a core (CPU ×{self._times})"

    @property
    def sentence(self) -> str:
        """The cost as a clause."""
        return (
            f"probes use about {_percent_of_core(self.cores)} of one core; the program needs "
            f"{self._times} times the CPU time"
        )

    @property
    def _times(self) -> str:
        if self.factor >= _MOST_TIMES:
            # The error of the estimates is as large as the remaining CPU time.
            return f"{_MOST_TIMES:.0f} or more"
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
    if overhead.slow_probes:
        shown = [printable(name) for name in overhead.slow_probes[:_MOST_SLOW]]
        more = len(overhead.slow_probes) - len(shown)
        if more:
            shown.append(f"and {more} more")
        parts.append(f"slow if called: {', '.join(shown)}")
    return ", ".join(parts)
