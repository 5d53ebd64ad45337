"""Censuses of a Python program's objects as text and JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tracelloc.objects.census import ObjectCensus, TypeCount
from tracelloc.objects.holders import Holders
from tracelloc.objects.paths import UNKNOWN
from tracelloc.target.procfs import Process
from tracelloc.text import format_duration, format_percent, format_size, plural, printable

_SECONDS_PER_MINUTE: Final = 60
_MOST_HOLDERS: Final = 4
"""Holders of a type that are listed."""
_LEAST_GROWTH: Final = 10
"""Objects by which a type has to grow for its holders to be looked for."""


@dataclass(frozen=True, slots=True)
class TypeGrowth:
    """A type in a census, and how much it has grown since the first one."""

    now: TypeCount
    count_change: int
    bytes_change: int


def growths(now: ObjectCensus, first: ObjectCensus) -> list[TypeGrowth]:
    """All types of two censuses: what has grown most comes first, then what is largest."""
    before = {found.name: found for found in first.types}
    gone = [TypeCount(name, 0, 0) for name in before.keys() - {found.name for found in now.types}]
    found = [
        TypeGrowth(one, one.count - old.count, one.size_bytes - old.size_bytes)
        for one in (*now.types, *gone)
        for old in [before.get(one.name, TypeCount(one.name, 0, 0))]
    ]
    return sorted(found, key=lambda one: (-one.bytes_change, -one.now.size_bytes, one.now.name))


def wanted_types(now: ObjectCensus, first: ObjectCensus, most: int) -> list[str]:
    """Types whose holders are worth looking for: that have grown most, or are largest."""
    rows = growths(now, first)
    if now is not first:
        rows = [row for row in rows if row.bytes_change > 0 and row.count_change >= _LEAST_GROWTH]
    return [row.now.name for row in rows[:most]]


def text_census(
    process: Process,
    now: ObjectCensus,
    first: ObjectCensus,
    top: int,
    holders: Mapping[str, Holders] | None = None,
) -> Iterator[str]:
    """A census's lines, the last one empty."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now.time_s))
    size_bytes = sum(found.size_bytes for found in now.types)
    yield (
        f"==> {when} {printable(process.command())} ({process.pid}): "
        f"{now.count:,} objects of {plural(len(now.types), 'type')}, {format_size(size_bytes)}"
    )
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
    for name, found in (holders or {}).items():
        yield from _text_holders(name, found, is_new=now is not first)
    yield ""


def _text_holders(name: str, found: Holders, *, is_new: bool) -> Iterator[str]:
    objects = plural(found.sample_count, "new object" if is_new else "object")
    yield f"{printable(name)}: who keeps them ({objects} looked at)"
    shown = found.holders[:_MOST_HOLDERS]
    for one in shown:
        kind = f" in {one.type_name}" if one.type_name else ""
        file = f" ({one.file})" if one.file else ""
        share = format_percent(one.count / found.sample_count)
        yield f"{share:>10}  {printable(one.path)}{printable(kind)}{printable(file)}"
    rest = found.sample_count - sum(one.count for one in shown)
    if rest:
        yield f"{format_percent(rest / found.sample_count):>10}  others"
    unresolved = sum(one.count for one in found.holders if one.unresolved)
    if unresolved:
        yield f"{'':12}of {unresolved}, steps have no name ({UNKNOWN})"
    if found.skipped_tables:
        yield f"{'':12}{plural(found.skipped_tables, 'table')} could not be looked into"


def _name(row: TypeGrowth) -> str:
    return printable(row.now.name)


def json_census(
    process: Process,
    now: ObjectCensus,
    first: ObjectCensus,
    holders: Mapping[str, Holders] | None = None,
) -> str:
    """A census as one line of JSON."""
    entry: dict[str, Any] = {
        "time": round(now.time_s, 3),
        "pid": process.pid,
        "command": process.command(),
        "elapsed_s": round(now.time_s - first.time_s, 3),
        "census_s": round(now.took_s, 6),
        "objects": now.count,
        "blocks": now.block_count,
        "block_bytes": now.block_bytes,
        "changed_pools": now.changed_pools,
        "types": [
            {
                "type": row.now.name,
                "objects": row.now.count,
                "bytes": row.now.size_bytes,
                "objects_change": row.count_change,
                "bytes_change": row.bytes_change,
            }
            for row in growths(now, first)
        ],
        "holders": [
            {
                "type": name,
                "samples": found.sample_count,
                "skipped_tables": found.skipped_tables,
                "holders": [
                    {
                        "path": one.path,
                        "type": one.type_name or None,
                        "samples": one.count,
                        "unresolved_steps": one.unresolved,
                        "file": one.file,
                    }
                    for one in found.holders
                ],
            }
            for name, found in (holders or {}).items()
        ],
    }
    return json.dumps(entry, separators=(",", ":"))
