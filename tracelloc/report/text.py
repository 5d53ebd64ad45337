"""The text report: what leaks, the largest blocks, the stacks that hold most, what was missed."""

from __future__ import annotations

from collections.abc import Iterator, Set

from tracelloc.report.part import Request
from tracelloc.report.sections import parts_of
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.units import NS_PER_S, about_of, format_duration, format_size
from tracelloc.views.naming import Namer


def text_report(
    snapshot: Snapshot,
    namer: Namer,
    top: int,
    min_age_ns: int | None = None,
    mark: Snapshot | None = None,
    *,
    show: Set[str] = frozenset(),
) -> Iterator[str]:
    """The report's lines, the last one empty.

    ``mark``: also what has come since; ``show``: more sections, by name
    (``sections.SECTIONS``).
    """
    given = Request(snapshot, namer, top, min_age_ns, mark, show)
    for _, part in parts_of(given):
        yield from part.text(given)
    yield ""


def traced_line(snapshot: Snapshot) -> str:
    """What has been traced so far, for progress."""
    elapsed_s = snapshot.elapsed_ns / NS_PER_S
    rate = snapshot.events / elapsed_s if elapsed_s > 0 else 0.0
    about = about_of(snapshot.sample_bytes)
    return (
        f"{format_duration(round(elapsed_s))} traced, {about}{format_size(snapshot.live_bytes)} "
        f"in {about}{snapshot.live_count} allocations from {snapshot.live_stacks} stacks, "
        f"{rate:,.0f} events/s"
    )
