"""Censuses of a Python program's objects as text and JSON, without a trace."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final

from tracelloc.model.objects import Holders, ObjectCensus
from tracelloc.model.process import Target
from tracelloc.show.presentation.objects import census_facts, growths
from tracelloc.show.report.headline import headline
from tracelloc.show.report.objects import census_totals, holder_lines, type_table

_LEAST_GROWTH: Final = 10
"""Objects by which a type has to grow for its holders to be looked for."""


def wanted_types(now: ObjectCensus, first: ObjectCensus, most: int) -> list[str]:
    """Types whose holders are worth looking for: that have grown most, or are largest."""
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
    """A census's lines, the last one empty."""
    yield headline(now.time_s, target, census_totals(now))
    yield from type_table(now, first, top)
    for name, found in (holders or {}).items():
        yield from holder_lines(name, found, is_new=now is not first)
    yield ""


def json_census(
    target: Target,
    now: ObjectCensus,
    first: ObjectCensus,
    holders: Mapping[str, Holders] | None = None,
) -> str:
    """A census as one line of JSON."""
    facts = census_facts(now, first, holders or {})
    entry = {"time": facts.pop("time"), "pid": target.pid, "command": target.command, **facts}
    return json.dumps(entry, separators=(",", ":"))
