"""Conditions that end tracing: ``leak > 1MiB/min``, ``growth > …``, ``live``, ``peak``, ``rss``."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import NS_PER_S, format_size, parse_size
from tracelloc.verdict.judgement import Verdict
from tracelloc.views.naming import suspects_of

RULES_HELP: Final = (
    "'leak' (anything is called leaking), 'leak > 1MiB/min' (what leaks, together), "
    "'growth > 5MiB/min' (the heap over the last minute, once there is one), "
    "'live > 2GiB' (outstanding bytes), 'peak > 2GiB' (at any moment, also between reports), "
    "'rss > 4GiB' (resident memory)"
)
_FORM: Final = re.compile(r"\s*([a-z]+)\s*(?:>\s*([^/]+?)\s*(/\s*min)?\s*)?")
_FIRST_GROWTH_NS: Final = 60 * NS_PER_S


def _leak(snapshot: Snapshot) -> float | None:
    judgements = [suspect.judgement for suspect in suspects_of(snapshot)]
    rates = [j.rate_bytes_per_min for j in judgements if j.verdict is Verdict.LEAKING]
    return sum(rates) if rates else None


def _growth(snapshot: Snapshot) -> float | None:
    if snapshot.elapsed_ns < _FIRST_GROWTH_NS:
        return None
    return float(snapshot.growth_per_min.sum())


_QUANTITIES: Final[dict[str, tuple[bool, Callable[[Snapshot], float | None]]]] = {
    "leak": (True, _leak),
    "growth": (True, _growth),
    "live": (False, lambda snapshot: snapshot.live_bytes),
    "peak": (False, lambda snapshot: None if snapshot.peak is None else snapshot.peak.size_bytes),
    "rss": (False, lambda snapshot: snapshot.rss_bytes),
}
"""By name: whether it is per minute, and its value; None where there is none yet."""


@dataclass(frozen=True, slots=True)
class WatchRule:
    """One condition."""

    quantity: str
    limit_bytes: int
    """Per minute, if the quantity is."""

    def broken_by(self, snapshot: Snapshot) -> str | None:
        """Says what is too much; None while nothing is."""
        per_min, value_of = _QUANTITIES[self.quantity]
        value = value_of(snapshot)
        if value is None or value <= self.limit_bytes:
            return None
        unit = "/min" if per_min else ""
        return (
            f"{self.quantity} is {format_size(round(value))}{unit}, more than "
            f"{format_size(self.limit_bytes)}{unit}"
        )


def parse_rule(text: str) -> WatchRule:
    """Raises ValueError with a sentence that says what is accepted."""
    match = _FORM.fullmatch(text)
    if match is None or match[1] not in _QUANTITIES:
        raise ValueError(f"{text!r} is no rule: write {RULES_HELP}")
    quantity, size, per_min = match.groups()
    if size is None:
        if quantity != "leak":
            raise ValueError(f"{quantity!r} needs a limit, such as '{quantity} > 1GiB'")
        return WatchRule(quantity, 0)
    if bool(per_min) != _QUANTITIES[quantity][0]:
        rate = "a size per minute (/min)" if not per_min else "a size, not one per minute"
        raise ValueError(f"{text!r}: {quantity} is {rate}")
    return WatchRule(quantity, parse_size(size))
