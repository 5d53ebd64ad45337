"""Reports a Python program's objects by type: a section, and censuses without a trace."""

from collections.abc import Iterator, Mapping
from typing import Final

from tracelloc.model.objects import UNKNOWN, Holders, ObjectCensus
from tracelloc.model.process import Target
from tracelloc.show.presentation.objects import (
    NOT_COUNTED,
    census_facts,
    growths,
    holder_text,
    object_facts,
    type_columns,
)
from tracelloc.show.report.content import Request, SectionContent
from tracelloc.show.tables import headline, json_line, table_lines
from tracelloc.text import format_percent, format_size, plural, printable

_LEAST_GROWTH: Final = 10  # Objects by which a type has to grow for its holders to be looked for
_MOST_HOLDERS: Final = 4  # Holders of a type that are listed


def census_totals(now: ObjectCensus) -> str:
    """Formats the totals of a census: ``1,234 objects of 56 types, 7.8 MiB``."""
    size_bytes = sum(found.size_bytes for found in now.types)
    types = plural(len(now.types), "type")
    return f"{now.count:,} objects of {types}, {format_size(size_bytes)}"


def type_table(now: ObjectCensus, first: ObjectCensus, top: int) -> Iterator[str]:
    """Yields the types that have grown most since ``first``, or the largest if it is ``now``."""
    *columns, name = type_columns(now, first)
    shown = [*(columns[:2] if now is first else columns), name]
    yield from table_lines(shown, growths(now, first)[:top])
    if now.changed_pools:
        yield (
            f"{plural(now.changed_pools, 'pool')} of 16 KiB changed while being read: "
            "counts may be off by that much"
        )


def holder_lines(name: str, found: Holders, *, is_new: bool) -> Iterator[str]:
    """Yields the holders of a type's objects. ``is_new``: of objects since the first census."""
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


def objects_part(given: Request) -> SectionContent:
    """Makes the section of a Python program's objects by type, and holders of growing types."""
    found = given.snapshot.objects
    facts = object_facts(found)
    if found is None or found.now is None or found.first is None:
        return SectionContent([f"==> {NOT_COUNTED}: {facts['trouble']}"], facts)
    now, first, top = found.now, found.first, given.style.top
    lines = [f"==> {census_totals(now)}, {plural(top, 'top type')}:"]
    lines += [f"    {line}" for line in type_table(now, first, top)]
    for name, holders in list(found.holders.items())[:top]:
        lines += [f"    {line}" for line in holder_lines(name, holders, is_new=True)]
    if now.no_holders:
        lines.append(f"==> {printable(now.no_holders)}")
    return SectionContent(lines, facts)


def wanted_types(now: ObjectCensus, first: ObjectCensus, most: int) -> list[str]:
    """Returns the types to find holders of: those that have grown most, or the largest."""
    rows = growths(now, first)
    if now is not first:
        rows = [row for row in rows if row.bytes_change > 0 and row.count_change >= _LEAST_GROWTH]
    return [row.now.name for row in rows[:most]]


def text_census(
    target: Target,
    now: ObjectCensus,
    first: ObjectCensus,
    top: int,
    holders: Mapping[str, Holders] | None = None,
) -> Iterator[str]:
    """Yields the lines of a census, the last one empty."""
    yield headline(now.time_s, target, census_totals(now))
    yield from type_table(now, first, top)
    for name, found in (holders or {}).items():
        yield from holder_lines(name, found, is_new=now is not first)
    if now.no_holders:
        yield f"==> {printable(now.no_holders)}"
    yield ""


def json_census(
    target: Target,
    now: ObjectCensus,
    first: ObjectCensus,
    holders: Mapping[str, Holders] | None = None,
) -> str:
    """Returns a census as one line of JSON."""
    facts = census_facts(now, first, holders or {})
    return json_line(facts.pop("time"), target, facts)
