"""Windows: stretches of time that are traced, with the probes off in between."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TracedWindow:
    """Which part of the traced time the figures of a snapshot are of (``--max-overhead``).

    Each window is a trace of its own, which begins with an empty table: what is freed while the
    probes are off is not seen.
    """

    number: int
    """From 1."""
    max_overhead: float
    """CPU time that probes may cost, per CPU time of the target's own work."""
    ended_ago_ns: int | None
    """Since when this window is over; None: it goes on."""
    is_traced_now: bool
    """Whether the probes are in place, perhaps for a later window."""
    traced_ns: int
    """Length of all windows together, up to the moment of the snapshot."""
    total_ns: int
    """Time since tracing began."""

    @property
    def traced_share(self) -> float:
        """The part of the time that was traced, 0 to 1."""
        return min(1.0, self.traced_ns / max(1, self.total_ns))
