"""Parses rules of the command line: ``--fail-if`` of traces, and of comparisons of profiles.

A rule of a trace is a condition such as ``leak > 1MiB/min``, ``suspects > …``, ``growth``,
``live``, ``rss``, ``lost``; ``watching`` compares it with snapshots.
"""

import re
from typing import Final

from tracelloc.dataclass import dataclass
from tracelloc.show.presentation.profile import METRICS, FigureUnit, Metric
from tracelloc.text import parse_percent, parse_size

FAILED_STATUS: Final = 3  # Exit status after a rule was broken
# Time limit of the command for one leak and, at the end, for all remaining leaks.
ON_LEAK_PATIENCE_S: Final = 30.0
# Whether a quantity is a rate, by its name.
PER_MINUTE: Final = {
    "leak": True, "suspects": True, "growth": True, "live": False, "peak": False, "rss": False,
    "lost": False,
}  # fmt: skip
_ALONE: Final = "leak", "suspects"  # Quantities that need no limit
_RULES_HELP: Final = (
    "'leak' (any leak), 'leak > 1MiB/min' (all leaks together), "
    "'suspects' or 'suspects > 1MiB/min' (the same with stacks that only grow so far), "
    "'growth > 5MiB/min' (the heap over the last minute, once there is one), "
    "'live > 2GiB' (live bytes), 'peak > 2GiB' (at any time, also between reports), "
    "'rss > 4GiB' (resident memory), 'lost > 1MiB' (what nothing points to, also from before "
    "tracing)"
)
_FORM: Final = re.compile(r"\s*([a-z]+)\s*(?:>\s*([^/]+?)\s*(/\s*min)?\s*)?")


_CHANGE_FORM: Final = re.compile(r"\s*([a-z]+)\s*>\s*\+?\s*([^+\s].*?)\s*")


@dataclass(frozen=True, slots=True)
class WatchRule:
    """One condition that ends a trace: a figure exceeds a limit."""

    quantity: str  # `leak`, `suspects`, `growth`, `live`, `rss` or `lost`
    limit_bytes: int  # The limit; per minute if the quantity is a rate


def parse_rule(text: str) -> WatchRule:
    """Parses a rule. Raises ValueError with a sentence on what is accepted."""
    match = _FORM.fullmatch(text)
    if match is None or match[1] not in PER_MINUTE:
        raise ValueError(f"{text!r} is not a valid rule: write {_RULES_HELP}")
    quantity, size, per_min = match.groups()
    if size is None:
        if quantity not in _ALONE:
            raise ValueError(f"{quantity!r} needs a limit, such as '{quantity} > 1GiB'")
        return WatchRule(quantity, 0)
    if bool(per_min) != PER_MINUTE[quantity]:
        rate = "a size per minute (/min)" if not per_min else "a size, not one per minute"
        raise ValueError(f"{text!r}: {quantity} is {rate}")
    return WatchRule(quantity, parse_size(size))


@dataclass(frozen=True, slots=True)
class ChangeRule:
    """A condition: a metric's total has grown by more than a limit."""

    text: str  # The rule as the user wrote it
    metric: Metric
    share: float | None = None  # The limit as a share of the earlier figure; None: it is an amount
    amount: int = 0  # The limit as an amount in the metric's unit


def parse_change_rule(text: str) -> ChangeRule:
    """Parses ``peak > +5%``. Raises ValueError with a sentence on what is accepted."""
    match = _CHANGE_FORM.fullmatch(text)
    if match is None or match[1] not in METRICS:
        raise ValueError(
            f"{text!r} is not a valid rule: write METRIC > +5%, or METRIC > +1MiB, with one of the "
            f"metrics {', '.join(METRICS)}"
        )
    metric, limit = METRICS[match[1]], match[2]
    if limit.endswith("%"):
        return ChangeRule(text.strip(), metric, share=parse_percent(limit))
    if metric.unit is FigureUnit.BLOCKS:
        if not limit.isascii() or not limit.isdigit():
            raise ValueError(f"{text!r}: {metric.value} is a number of blocks, such as 100")
        return ChangeRule(text.strip(), metric, amount=int(limit))
    return ChangeRule(text.strip(), metric, amount=parse_size(limit))
