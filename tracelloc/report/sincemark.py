"""The section of what has come since the mark."""

from __future__ import annotations

from tracelloc.report.part import Entry, Part, Request
from tracelloc.snapshots.marks import StackChange, since_mark
from tracelloc.units import NS_PER_S, format_age, format_size


def since_mark_part(given: Request) -> Part | None:
    """The stacks that have grown most; None without a mark."""
    since = since_mark(given.snapshot, given.mark, given.top)
    if since is None:
        return None
    return Part(
        [
            (
                f"==> since the mark {format_age(since.elapsed_ns)} ago: "
                f"{_more(since.live_bytes, since.live_count, given.about)}, "
                f"{len(since.top)} top growers out of {since.growing}:"
            )
        ],
        {
            "elapsed_s": since.elapsed_ns / NS_PER_S,
            "live_bytes": since.live_bytes,
            "live_allocations": since.live_count,
            "allocated_bytes": since.allocated_bytes,
            "freed_bytes": since.freed_bytes,
            "growing_stacks": since.growing,
        },
        "top_allocators",
        [_entry(changed, given.about) for changed in since.top],
    )


def _entry(changed: StackChange, about: str) -> Entry:
    return Entry(
        changed.stack,
        _more(changed.live_bytes, changed.live_count, about),
        {"bytes": changed.live_bytes, "allocations": changed.live_count},
    )


def _more(size_bytes: int, count: int, about: str) -> str:
    sign = "+" if size_bytes >= 0 else ""
    return f"{about}{sign}{format_size(size_bytes)} in {about}{count:+} allocations"
