"""The section of what the target has mapped by itself."""

from __future__ import annotations

from tracelloc.heap.ranges import MappedStack
from tracelloc.report.part import Entry, Part, Request
from tracelloc.units import NS_PER_S, format_age, format_size, plural


def mappings_part(given: Request) -> Part | None:
    """The stacks that have mapped most; None if mappings are not traced."""
    mappings = given.snapshot.mappings
    if mappings is None:
        return None
    shown = mappings.stacks[: given.top]
    return Part(
        [
            (
                f"==> {len(shown)} top mappings' stacks out of {len(mappings.stacks)}: "
                f"{plural(mappings.count, 'mapping')} for a total of "
                f"{format_size(mappings.size_bytes)}"
            )
        ],
        {
            "bytes": mappings.size_bytes,
            "mappings": mappings.count,
            "of_allocators_bytes": mappings.of_allocators_bytes,
        },
        "top",
        [_entry(held, given.snapshot.now_ns - held.oldest_ns) for held in shown],
    )


def _entry(held: MappedStack, age_ns: int) -> Entry:
    count = plural(held.count, "mapping")
    return Entry(
        held.stack,
        f"{format_size(held.size_bytes)} in {count}, the oldest {format_age(age_ns)} old",
        {"bytes": held.size_bytes, "mappings": held.count, "oldest_s": age_ns / NS_PER_S},
    )
