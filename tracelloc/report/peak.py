"""The section of the peak: what was outstanding when most was."""

from __future__ import annotations

from tracelloc.heap.peak import Peak
from tracelloc.report.part import Entry, Part, Request, largest
from tracelloc.units import NS_PER_S, format_age, format_size
from tracelloc.views.facts import peak_facts


def peak_part(given: Request) -> Part:
    """The high-water mark, and the stacks that held most of it."""
    snapshot, about = given.snapshot, given.about
    facts, peak = peak_facts(snapshot), snapshot.peak
    order = [] if peak is None else largest(peak.live_bytes, given.top)[1]
    return Part(
        [
            (
                f"==> peak {format_age(round(facts['ago_s'] * NS_PER_S))} ago: "
                f"{given.amount(facts['bytes'], facts['allocations'])}, "
                f"now {about}{format_size(snapshot.live_bytes)}, "
                f"{len(order)} top allocators out of {facts['stacks']} then:"
            )
        ],
        facts,
        "top_allocators",
        [] if peak is None else [_entry(stack, peak, given) for stack in order],
    )


def _entry(stack: int, peak: Peak, given: Request) -> Entry:
    size_bytes, count = int(peak.live_bytes[stack]), int(peak.live_count[stack])
    live_bytes = int(given.snapshot.totals.live_bytes[stack])
    share = size_bytes / max(peak.size_bytes, 1)
    return Entry(
        stack,
        f"{given.amount(size_bytes, count)} ({share:.1%}), "
        f"now {given.about}{format_size(live_bytes)}",
        {"bytes": size_bytes, "allocations": count, "live_bytes": live_bytes},
    )
