"""The view of a process's resident memory by part."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import islice
from typing import Final

from tracelloc.model.heapusage import NO_ACCOUNT, MemoryPart
from tracelloc.show.presentation.memoryparts import (
    BYTES,
    CHANGE,
    SHARE,
    PartRow,
    kept_sentences,
    large_items,
    part_rows,
)
from tracelloc.show.tables import Column, Columns
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import format_duration, format_size
from tracelloc.ui.tableview import Bar, Table, TableRows, clean, no_rows, sorted_rows
from tracelloc.ui.view import Sorting, View, ViewSelection

# Sentences below the rows: what is freed and kept, and the selected part's items.
_MOST_SENTENCES: Final = 8
COLUMNS: Final[Columns[PartRow]] = (
    CHANGE,
    BYTES,
    SHARE,
    Column("bar", "", 12, lambda row: row.share, Bar, left=True, from_width=80, sorts=False),
    Column(
        "name", "resident memory", 0, lambda row: row.part.value if row.part else "",
        descending=False,
    ),
)  # fmt: skip


def resident_rows(selection: ViewSelection) -> TableRows:
    """Returns one row per part; its key is the part."""
    snapshot = selection.snapshot
    usage, first = snapshot.usage, snapshot.first_usage
    if usage is None:
        return no_rows(_why_empty(selection))
    before = NO_ACCOUNT if first is None else first.account
    rows = {row.part: row for row in part_rows(usage.account, before)}

    def text(key: Hashable | None) -> list[str]:
        part = key if isinstance(key, MemoryPart) else None
        return list(islice(_sentences(snapshot, part), _MOST_SENTENCES))

    return sorted_rows(rows, COLUMNS, selection.settings.sorting, text=text)


def _why_empty(selection: ViewSelection) -> str:
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
