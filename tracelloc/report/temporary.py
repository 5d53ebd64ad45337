"""The section of temporary allocations: which stacks make most of them."""

from __future__ import annotations

from tracelloc.heap.temporary import Soon
from tracelloc.report.part import Entry, Part, Request, largest
from tracelloc.snapshots.snapshot import StackStat
from tracelloc.units import NS_PER_S, format_duration, plural
from tracelloc.views.facts import temporary_facts

_ONE = "temporary allocation"


def temporary_part(given: Request) -> Part:
    """All together, then the stacks by the number of their temporary allocations."""
    snapshot = given.snapshot
    facts = temporary_facts(snapshot)
    order = largest(snapshot.totals.temporary_count, given.top)[1]
    unknown = ""
    if facts["unknown_allocations"]:
        others = plural(facts["unknown_allocations"], "other")
        unknown = f", of {given.about}{others} it is not known"
    share = facts["allocations"] / max(int(snapshot.totals.freed_count.sum()), 1)
    return Part(
        [
            (
                f"==> {given.amount(facts['bytes'], facts['allocations'], _ONE)} "
                f"({_meaning(snapshot.soon)}), {share:.1%} of all that were freed{unknown}; "
                f"{len(order)} top stacks out of {facts['stacks']}:"
            )
        ],
        facts,
        "top_allocators",
        [_entry(stat, given) for stat in snapshot.stack_stats(order)],
    )


def _entry(stat: StackStat, given: Request) -> Entry:
    made = given.amount(stat.temporary_bytes, stat.temporary_count, _ONE)
    share = stat.temporary_count / max(stat.allocated_count, 1)
    return Entry(
        stat.index,
        f"{made}, {share:.1%} of all that it has made",
        {
            "temporary_allocations": stat.temporary_count,
            "temporary_bytes": stat.temporary_bytes,
            "allocations": stat.allocated_count,
        },
    )


def _meaning(soon: Soon) -> str:
    if soon.life_ns is not None:
        return f"freed by the same thread within {format_duration(soon.life_ns / NS_PER_S)}"
    others = "no other" if soon.between == 0 else f"at most {plural(soon.between, 'other')}"
    return f"freed by the same thread, {others} between"
