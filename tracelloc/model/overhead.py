"""Overhead of tracing for the target."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Overhead:
    """The overhead of tracing, for views."""

    events_per_s: float
    probe_share: float | None
    """Estimated share of the target's CPU time, 0 to 1; None before it was measured."""
    slow_probes: tuple[str, ...]
    """Functions with single-stepped probes."""
