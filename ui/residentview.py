"""The view of a process's resident memory by part."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from itertools import islice
from typing import Any, Final

from tracelloc.model.heapusage import MemoryPart
from tracelloc.show.presentation.memoryparts import OWN_PARTS, kept_sentences, large_items
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import format_duration, format_percent, format_size, signed_size
from tracelloc.ui.tableview import Bar, Cell, Column, Table, TableRows, clean
from tracelloc.ui.view import Sorting, View, ViewSelection

_MOST_SENTENCES: Final = 8
"""Sentences below the rows: what is freed and kept, and the selected part's items."""
COLUMNS: Final = (
    Column("change", "change", 12),
    Column("bytes", "bytes", 10),
    Column("share", "of RSS", 8),
    Column("bar", "", 12, right=False, from_width=80, sorts=False),
    Column("name", "resident memory", 0, right=False, descending=False),
)


def resident_rows(selection: ViewSelection) -> TableRows:
    """Returns one row per part; its key is the part."""
    snapshot, sorting = selection.snapshot, selection.settings.sorting
    usage, first = snapshot.usage, snapshot.first_usage
    if usage is None:
        return TableRows((), lambda _key, _column: "", empty=_why_empty(selection))
    parts, total = usage.account.parts, max(usage.account.own_bytes, 1)
    before = {} if first is None else first.account.parts
    figures: dict[str, Callable[[MemoryPart], Any]] = {
        "change": lambda part: parts.get(part, 0) - before.get(part, 0),
        "bytes": lambda part: parts.get(part, 0),
        "share": lambda part: parts.get(part, 0),
        "name": lambda part: part.value,
    }
    keys = [part for part in OWN_PARTS if parts.get(part, 0) or before.get(part, 0)]
    keys.sort(key=figures[sorting.column], reverse=sorting.descending)

    def cell(key: Hashable, column: str) -> Cell:
        assert isinstance(key, MemoryPart)
        size_bytes = parts.get(key, 0)
        if column == "change":
            return signed_size(size_bytes - before.get(key, 0))
        if column == "bytes":
            return format_size(size_bytes)
        if column == "bar":
            return Bar(size_bytes / total)
        return format_percent(size_bytes / total) if column == "share" else key.value

    def text(key: Hashable | None) -> list[str]:
        part = key if isinstance(key, MemoryPart) else None
        return list(islice(_sentences(snapshot, part), _MOST_SENTENCES))

    return TableRows(keys, cell, sorting.column, sorting.descending, text=text)


def _why_empty(selection: ViewSelection) -> str:
    if selection.is_profile:
        return "a profile does not say where resident memory is"
    if selection.snapshot.merged is not None:
        return "resident memory is shown per process: choose a single one (9)"
    return "resident memory is being examined… (not with --no-search)"


def _sentences(snapshot: Snapshot, part: MemoryPart | None) -> Iterator[str]:
    usage = snapshot.usage
    assert usage is not None
    ago = format_duration(max(0.0, snapshot.time_s - usage.time_s))
    rss = format_size(usage.account.own_bytes)
    yield f"RSS {rss}, examined {ago} ago; changes since tracing began"
    items = [] if part is None else large_items(usage.account, part)
    if part is not None and items:
        named = ", ".join(f"{name} {format_size(size)}" for name, size in items)
        yield clean(f"{part.value}: {named}")
    yield from map(clean, kept_sentences(usage))
    yield from map(clean, usage.notes)


RESIDENT: Final = View(
    name="resident",
    title="Memory",
    key="R",
    maker=lambda _source: resident_rows,
    widget=lambda: Table(COLUMNS),
    sorting=Sorting("bytes"),
)
