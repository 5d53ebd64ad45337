"""Formats growing types of objects, their holders, and censuses, as text and JSON values."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from tracelloc.dataclass import dataclass
from tracelloc.model.codefiles import base_name
from tracelloc.model.objects import (
    LEAST_GROWING_S,
    FunctionLine,
    GrowingType,
    Holder,
    Holders,
    ObjectCensus,
    ObjectFindings,
    TypeCount,
    TypeSuspect,
)
from tracelloc.model.verdicts import Verdict
from tracelloc.show.tables import Column, Columns, count_with, json_of, table_json
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import format_duration, format_percent, format_size, plural, printable

NOT_COUNTED: Final = "Python's objects were not counted"
_MOST_HOLDERS: Final = 2
_MOST_PARTS: Final = 4
_NOTABLE_SHARE: Final = 0.1
# Age of a count from which it is said: nothing that has grown since is in it.
_STALE_S: Final = 90.0


@dataclass(frozen=True, slots=True)
class TypeGrowth:
    """A type in a census, and its growth since the first census."""

    now: TypeCount
    count_change: int
    bytes_change: int


def growths(now: ObjectCensus, first: ObjectCensus) -> list[TypeGrowth]:
    """Returns all types of two censuses with their growth, ordered by growth, then by size."""
    before = {found.name: found for found in first.types}
    gone = [TypeCount(name, 0, 0) for name in before.keys() - {found.name for found in now.types}]
    found = [
        TypeGrowth(one, one.count - old.count, one.size_bytes - old.size_bytes)
        for one in (*now.types, *gone)
        for old in [before.get(one.name, TypeCount(one.name, 0, 0))]
    ]
    return sorted(found, key=lambda one: (-one.bytes_change, -one.now.size_bytes, one.now.name))


def type_columns(now: ObjectCensus, first: ObjectCensus) -> Columns[TypeGrowth]:
    """Returns the columns of types: counts, changes since ``first``, and the name."""
    seconds = now.time_s - first.time_s

    def pace(change: int) -> str:
        return f"{change / seconds * 60:+,.0f}"

    def growth(change: int) -> str:
        size_bytes = round(change / seconds * 60)
        return f"{'+' if size_bytes >= 0 else ''}{format_size(size_bytes)}"

    title = "type" if now is first else f"type (change in {format_duration(seconds)})"
    return (
        Column("objects", "objects", 12, lambda row: row.now.count, count_with("")),
        Column("bytes", "bytes", 10, lambda row: row.now.size_bytes, format_size),
        Column("objects_change", "objects/min", 12, lambda row: row.count_change, pace),
        Column("bytes_change", "bytes/min", 11, lambda row: row.bytes_change, growth),
        Column("type", title, 0, lambda row: row.now.name, printable),
    )


def type_suspects(snapshot: Snapshot) -> tuple[TypeSuspect, ...]:
    """Returns the growing types; none if the target is not a Python program."""
    return () if snapshot.objects is None else snapshot.objects.suspects


def count_trouble(snapshot: Snapshot) -> str | None:
    """Returns why objects were not counted, or not recently, as a sentence; None: they were."""
    found = snapshot.objects
    if found is None:
        return None
    if found.trouble:
        return f"{NOT_COUNTED}: {printable(found.trouble)}"
    if found.now is None or snapshot.time_s - found.now.time_s <= _STALE_S:
        return None
    ago = format_duration(round(snapshot.time_s - found.now.time_s))
    took = format_duration(found.now.took_s)
    return f"its objects were last counted {ago} ago: a count takes {took} and is made rarely"


def counting_line(snapshot: Snapshot) -> str | None:
    """Returns a line if it is too early to tell which types grow; else None."""
    found = snapshot.objects
    if found is None or found.now is None or found.first is None or found.suspects:
        return None
    left_s = LEAST_GROWING_S - (found.now.time_s - found.first.time_s)
    left = format_duration(math.ceil(left_s))
    return f"Python objects: counting, {left}" if left_s > 0 else None


def growing_for_s(suspect: TypeSuspect, snapshot: Snapshot) -> float:
    """Returns for how many seconds a type has been growing."""
    return max(0.0, snapshot.time_s - suspect.growth.since_s)


def main_holder(suspect: TypeSuspect) -> Holder | None:
    """Returns the holder of most new objects; None if unknown."""
    return None if suspect.holders is None else next(iter(suspect.holders.holders), None)


def holder_text(holder: Holder) -> str:
    """Formats a holder: ``app.CACHE[…] in dict (/srv/app.py)``, safe to print."""
    kind = f" in {holder.type_name}" if holder.type_name else ""
    place = holder_place(holder)
    return printable(f"{holder.path}{kind}{f' ({place})' if place else ''}")


def holder_place(holder: Holder) -> str:
    """Formats a holder's place, of its module or function: ``/srv/app.py:9``."""
    line = "" if holder.line is None else f":{holder.line}"
    return f"{holder.file}{line}" if holder.file else ""


def grower_text(frame: FunctionLine) -> str:
    """Formats a function with its current line: ``order() (shop.py:92)``."""
    line = "" if frame.line is None else f":{frame.line}"
    place = f" ({base_name(frame.file)}{line})" if frame.file else ""
    return f"{frame.function}(){place}"


def type_headline(suspect: TypeSuspect, snapshot: Snapshot) -> str:
    """Formats a type's growth: ``growing 412 KiB/min for 45 s, possible leak``."""
    unsure = "" if suspect.verdict is Verdict.LEAKING else ", possible leak"
    rate = format_size(round(suspect.bytes_per_min))
    since = format_duration(growing_for_s(suspect, snapshot))
    return f"{suspect.verdict.value} {rate}/min for {since}{unsure}"


def type_title(suspect: TypeSuspect) -> str:
    """Formats a type and its holder: ``app.Session ← app.CACHE[…]``."""
    holder = main_holder(suspect)
    return suspect.name if holder is None else f"{suspect.name} ← {holder.path}"


def type_place(suspect: TypeSuspect) -> str:
    """Formats a type and its holder as a place: ``app.Session in app.CACHE``."""
    holder = main_holder(suspect)
    path = "" if holder is None else f" in {holder.path.removesuffix('[…]')}"
    return printable(f"{suspect.name}{path}")


def type_sentences(suspect: TypeSuspect) -> Iterator[str]:
    """Yields sentences on a type's growth, its parts and its holders; safe to print."""
    growth = suspect.growth
    holder, grower = main_holder(suspect), suspect.grower
    objects = f"{suspect.count:,} {suspect.name} ({_pace(growth)})"
    if holder is not None and holder.type_name:
        objects += f" in the {holder.type_name} {holder.path.removesuffix('[…]')}"
    last = "" if grower is None else f"; last added by {grower_text(grower)}"
    yield printable(f"{objects}{_parts(suspect.parts)}{last}")
    native = suspect.native
    if native is not None:
        rate = format_size(round(native.bytes_per_min))
        yield printable(
            f"with native memory in proportion to them: +{rate}/min from "
            f"{plural(len(native.stacks), 'call stack')}, called by {grower_text(native.caller)}"
        )
    holders = suspect.holders
    if holders is None or not holders.sample_count:
        yield "their holders are not known"
        return
    looked_at = plural(holders.sample_count, "new object")
    for number, holder in enumerate(holders.holders[:_MOST_HOLDERS]):
        share = holder.count / holders.sample_count
        if number and share < _NOTABLE_SHARE:
            break
        of = f" of {looked_at} looked at" if not number else ""
        yield f"held by {holder_text(holder)}: {format_percent(share, 0)}{of}"


def _pace(growth: GrowingType) -> str:
    return f"{growth.count_per_min:+,.0f}/min"


def _parts(parts: Iterable[GrowingType]) -> str:
    found = sorted(parts, key=lambda part: -part.bytes_per_min)
    if not found:
        return ""
    names = [f"{part.name} {_pace(part)}" for part in found[:_MOST_PARTS]]
    more = f" and {len(found) - _MOST_PARTS} more" if len(found) > _MOST_PARTS else ""
    return f", with {', '.join(names)}{more}"


# JSON.


def object_facts(found: ObjectFindings | None) -> dict[str, Any]:
    """Returns objects as JSON values: the last census, changes since the first, holders."""
    if found is None or found.now is None or found.first is None:
        why = None if found is None else found.trouble
        return {"trouble": why or "there is no Python, or its objects were not counted yet"}
    return census_facts(found.now, found.first, found.holders) | {"trouble": found.trouble}


def census_facts(
    now: ObjectCensus, first: ObjectCensus, holders: Mapping[str, Holders]
) -> dict[str, Any]:
    """Returns a census as JSON values, with changes since ``first``; ``time`` is since 1970."""
    return {
        "time": round(now.time_s, 3), "elapsed_s": round(now.time_s - first.time_s, 3),
        "census_s": round(now.took_s, 6), "objects": now.count, "blocks": now.block_count,
        "block_bytes": now.block_bytes, "changed_pools": now.changed_pools,
        "no_holders": now.no_holders or None,
        "types": table_json(type_columns(now, first), growths(now, first)),
        "holders": [{"type": name, **_holders(found)} for name, found in holders.items()],
    }  # fmt: skip


_HOLDERS: Final = {
    "sample_count": "samples", "count": "samples", "unresolved": "unresolved_steps",
    **dict.fromkeys(("tables", "is_bounded", "is_garbage")),
}  # fmt: skip


def _holders(found: Holders) -> dict[str, Any]:
    names = {**_HOLDERS, "type_name": None}
    holders = [json_of(each, names) | {"type": each.type_name or None} for each in found.holders]
    return {**json_of(found, {**_HOLDERS, "holders": None}), "holders": holders}


def type_suspect_facts(suspect: TypeSuspect, snapshot: Snapshot) -> dict[str, Any]:
    """Returns a growing type as JSON values; rates exclude the types that are its parts."""
    found, native = suspect.holders, suspect.native
    return {
        "verdict": suspect.verdict.value,
        **_growth(suspect.growth),
        "objects": suspect.count,
        "bytes": suspect.size_bytes,
        "since_s": round(growing_for_s(suspect, snapshot), 3),
        "total_bytes_per_min": round(suspect.bytes_per_min, 1),
        "parts": [_growth(part) for part in suspect.parts],
        "holders": [] if found is None else _holders(found)["holders"],
        "grown_by": suspect.grower and json_of(suspect.grower),
        "native": native
        and {
            "bytes_per_min": round(native.bytes_per_min, 1), "bytes": native.size_bytes,
            "stack_ids": list(native.stacks), "called_by": json_of(native.caller),
        },
    }  # fmt: skip


def _growth(growth: GrowingType) -> dict[str, Any]:
    return {
        "type": growth.name,
        "objects_per_min": round(growth.count_per_min, 1),
        "bytes_per_min": round(growth.bytes_per_min, 1),
    }
