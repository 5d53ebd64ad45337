"""What tracing costs the target."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Overhead:
    """The price of tracing, for views."""

    events_per_s: float
    probe_share: float | None
    """Share of the target's CPU time, 0 to 1: estimated; None until it was measured."""
    slow_probes: tuple[str, ...]
    """Functions probed at an instruction that is single-stepped."""
