"""Censuses of a Python program's objects as text and JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from tracelloc.objects.census import ObjectCensus, TypeCount
from tracelloc.target.procfs import Process
from tracelloc.text import format_duration, format_size, plural, printable

_SECONDS_PER_MINUTE: Final = 60


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


def text_census(
    process: Process, now: ObjectCensus, first: ObjectCensus, top: int
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
    yield ""


def _name(row: TypeGrowth) -> str:
    return printable(row.now.name)


def json_census(process: Process, now: ObjectCensus, first: ObjectCensus) -> str:
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
    }
    return json.dumps(entry, separators=(",", ":"))
