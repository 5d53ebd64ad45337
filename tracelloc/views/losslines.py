"""What tracing costs and what it has missed, in words."""

from __future__ import annotations

from collections.abc import Iterator

from tracelloc.abi import Counter
from tracelloc.capture.overhead import Overhead
from tracelloc.snapshots.losses import Losses
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import plural, printable

_LOSS_TEXTS = {
    Counter.SKIPPED_RUNS: ("fork or exec unseen", "forks or execs unseen"),
    Counter.LOST_MAPPINGS: ("mapping or its end lost", "mappings or their ends lost"),
    Counter.LOST_STACKS: ("stack lost", "stacks lost"),
    Counter.LOST_MISSES: ("stack cut short", "stacks cut short"),
    Counter.STACK_TABLE_FULL: ("stack beyond the stack table", "stacks beyond the stack table"),
    Counter.UNPAIRED_RETURNS: ("unpaired return", "unpaired returns"),
    Counter.ABANDONED_CALLS: ("abandoned call", "abandoned calls"),
    Counter.SAMPLE_TABLE_FULL: ("sample lost", "samples lost"),
    Counter.LOST_PAIRS: ("short-lived allocation uncounted", "short-lived allocations uncounted"),
    Counter.UNREADABLE_RESULTS: ("unreadable result", "unreadable results"),
}
_MOST_DEAR = 4
"""Names of dear probes in a line."""


def overhead_line(overhead: Overhead) -> str:
    """What tracing costs the target, and which probes cost more than they could."""
    parts = [f"{overhead.events_per_s:.0f} events/s"]
    if overhead.probe_share is not None:
        parts.append(f"probes take about {overhead.probe_share:.1%} of the target's CPU time")
    if overhead.dear_probes:
        shown = [printable(name) for name in overhead.dear_probes[:_MOST_DEAR]]
        more = len(overhead.dear_probes) - len(shown)
        if more:
            shown.append(f"and {more} more")
        parts.append(f"dear probes: {', '.join(shown)}")
    return ", ".join(parts)


def losses_line(snapshot: Snapshot) -> str:
    """What was missed, in one line: the three standing figures, then whatever else isn't 0."""
    losses = snapshot.losses
    parts = [
        f"lost {plural(losses.events, 'event')}",
        f"{plural(losses.oddities.unmatched_frees, 'free')} of earlier allocations",
        f"{plural(snapshot.truncated_stacks, 'truncated stack')}",
    ]
    if snapshot.broken_stacks:
        parts.append(plural(snapshot.broken_stacks, "broken stack"))
    if snapshot.partial_stacks:
        parts.append(plural(snapshot.partial_stacks, "partial stack"))
    parts.extend(_rare_losses(losses))
    if losses.overflows:
        parts.append(_overflows(losses))
    if snapshot.count_bounds is not None:
        least, most = snapshot.count_bounds
        parts.append(
            f"at least {least} and at most {most} allocations are outstanding, bytes unknown"
        )
    elif losses.events:
        parts.append("outstanding figures are not certain")
    return ", ".join(parts)


def _overflows(losses: Losses) -> str:
    """How it went when the reader fell behind."""
    text = (
        f"{plural(losses.overflows, 'overflow')} of the event buffer, "
        f"{plural(losses.spilled_events, 'event')} kept aside"
    )
    if losses.events:
        return f"{text} or lost"
    return f"{text}: figures are exact, peaks meanwhile unseen"


def _rare_losses(losses: Losses) -> Iterator[str]:
    for counter, (one, many) in _LOSS_TEXTS.items():
        count = losses.counters[counter]
        if count:
            yield f"{count} {one if count == 1 else many}"
    if losses.oddities.address_reuses:
        yield f"{plural(losses.oddities.address_reuses, 'unseen free')} found by address reuse"
    if losses.oddities.odd_restores:
        yield plural(losses.oddities.odd_restores, "unmatched failed realloc")
