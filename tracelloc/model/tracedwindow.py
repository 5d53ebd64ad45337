"""Windows: stretches of time that are traced, with the probes detached in between."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TracedWindow:
    """The part of the time that a snapshot's figures cover (``--max-overhead``).

    Each window is a separate trace that begins with an empty table: frees while the probes are
    detached are not seen.
    """

    number: int
    """Counted from 1."""
    max_overhead: float
    """Allowed CPU time of the probes, as a share of the CPU time of the target's own work."""
    ended_ago_ns: int | None
    """Time since the window ended; None: it goes on."""
    is_traced_now: bool
    """Whether the probes are attached now, perhaps for a later window."""
    traced_ns: int
    """Total length of all windows, up to the snapshot."""
    total_ns: int
    """Time since tracing began."""

    @property
    def traced_share(self) -> float:
        """Share of the time that was traced, 0 to 1."""
        return min(1.0, self.traced_ns / max(1, self.total_ns))
