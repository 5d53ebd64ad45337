"""Lines on a census of a Python program's objects, and the section of reports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tracelloc.model.objects import (
    UNKNOWN,
    Holders,
    ObjectCensus,
)
from tracelloc.show.presentation.objects import (
    NOT_COUNTED,
    TypeGrowth,
    growths,
    holder_text,
    object_facts,
)
from tracelloc.show.report.content import Request, SectionContent
from tracelloc.text import format_duration, format_percent, format_size, plural, printable

_SECONDS_PER_MINUTE: Final = 60
_MOST_HOLDERS: Final = 4
"""Holders of a type that are listed."""


def census_totals(now: ObjectCensus) -> str:
    """Formats ``1,234 objects of 56 types, 7.8 MiB``."""
    size_bytes = sum(found.size_bytes for found in now.types)
    types = plural(len(now.types), "type")
    return f"{now.count:,} objects of {types}, {format_size(size_bytes)}"


def type_table(now: ObjectCensus, first: ObjectCensus, top: int) -> Iterator[str]:
    """Yields the types that have grown most since ``first``, or the largest if it is ``now``."""
    minutes = (now.time_s - first.time_s) / _SECONDS_PER_MINUTE
    rows = growths(now, first)[:top]
    if now is first:
        yield f"{'objects':>12} {'bytes':>10}  type"
        for row in rows:
            yield f"{row.now.count:>12,} {format_size(row.now.size_bytes):>10}  {_name(row)}"
    else:
        since = format_duration(now.time_s - first.time_s)
        yield (
            f"{'objects':>12} {'bytes':>10} {'objects/min':>12} {'bytes/min':>11}  "
            f"type (change in {since})"
        )
        for row in rows:
            count = f"{row.count_change / minutes:+,.0f}"
            change = round(row.bytes_change / minutes)
            size = f"{'+' if change >= 0 else ''}{format_size(change)}"
            yield (
                f"{row.now.count:>12,} {format_size(row.now.size_bytes):>10} {count:>12} "
                f"{size:>11}  {_name(row)}"
            )
    if now.changed_pools:
        yield (
            f"{plural(now.changed_pools, 'pool')} of 16 KiB changed while being read: "
            "counts may be off by that much"
        )


def holder_lines(name: str, found: Holders, *, is_new: bool) -> Iterator[str]:
    """Yields what holds a type's objects. ``is_new``: only those since the first census."""
    objects = plural(found.sample_count, "new object" if is_new else "object")
    yield f"{printable(name)}: holders ({objects} examined)"
    shown = found.holders[:_MOST_HOLDERS]
    for one in shown:
        share = format_percent(one.count / found.sample_count)
        yield f"{share:>10}  {holder_text(one)}"
    rest = found.sample_count - sum(one.count for one in shown)
    if rest:
        yield f"{format_percent(rest / found.sample_count):>10}  others"
    unresolved = sum(one.count for one in found.holders if one.unresolved)
    if unresolved:
        yield f"{'':12}of {unresolved}, steps have no name ({UNKNOWN})"
    if found.skipped_tables:
        yield f"{'':12}{plural(found.skipped_tables, 'table')} could not be read"


def _name(row: TypeGrowth) -> str:
    return printable(row.now.name)


def objects_part(given: Request) -> SectionContent:
    """Objects of a Python program by type, and who keeps those that grow."""
    found = given.snapshot.objects
    facts = object_facts(found)
    if found is None or found.now is None or found.first is None:
        return SectionContent([f"==> {NOT_COUNTED}: {facts['trouble']}"], facts)
    now, first, top = found.now, found.first, given.style.top
    lines = [f"==> {census_totals(now)}, {plural(top, 'top type')}:"]
    lines += [f"    {line}" for line in type_table(now, first, top)]
    for name, holders in list(found.holders.items())[:top]:
        lines += [f"    {line}" for line in holder_lines(name, holders, is_new=True)]
    return SectionContent(lines, facts)
