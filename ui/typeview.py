"""The view of types: live bytes by C++ class, or by what the allocating functions' names say."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final

from rich.text import Text

from tracelloc.show.presentation.blocktypes import BlockTypes, TypeSum
from tracelloc.text import about_of, format_percent, format_size
from tracelloc.ui.stackcells import name_cell
from tracelloc.ui.stacknames import Search
from tracelloc.ui.stackviews import MOST_ROWS
from tracelloc.ui.tableview import Cell, Column, Table, TableRows, clean, short_count
from tracelloc.ui.verdictcells import growth_cell
from tracelloc.ui.view import Sorting, Source, View, ViewSelection

COLUMNS: Final = (
    Column("bytes", "live", 11),
    Column("share", "share", 7, sorts=False),
    Column("growth", "growth/min", 12),
    Column("leaking", "leaking", 11),
    Column("count", "blocks", 9),
    Column("stacks", "stacks", 7, from_width=84),
    Column("name", "type", 0, right=False, descending=False),
)
_FIGURES: Final[dict[str, Callable[[TypeSum], Any]]] = {
    "bytes": lambda row: row.size_bytes,
    "growth": lambda row: row.growth_bytes_per_min,
    "leaking": lambda row: row.leaking_bytes,
    "count": lambda row: row.count,
    "stacks": lambda row: len(row.stacks),
    "name": lambda row: row.name or "",
}
_UNKNOWN: Final = "unknown"
_AT_ONCE: Final = 4096
"""Stacks that are looked at for one picture; the next one goes on."""


def type_rows(_source: Source) -> Callable[[ViewSelection], TableRows]:
    """Makes one row per type; its key is the stack that holds most of it."""
    types = BlockTypes()

    def rows(selection: ViewSelection) -> TableRows:
        snapshot, figures, settings = selection.snapshot, selection.figures, selection.settings
        live = figures.live_bytes, figures.live_count
        sums = types.sums(snapshot, selection.namer, *live, _AT_ONCE)
        selection.names.pending += types.left
        if settings.search:
            matches = Search(settings.search).matches
            sums = [row for row in sums if matches(row.name or _UNKNOWN)]
        sorting = settings.sorting
        sums.sort(key=_FIGURES[sorting.column], reverse=sorting.descending)
        by_stack = {row.stacks[0]: row for row in sums[:MOST_ROWS]}
        whole, about = max(int(figures.live_bytes.sum()), 1), about_of(snapshot.sample_bytes)

        def cell(key: Hashable, column: str) -> Cell:
            row = by_stack.get(key)  # type: ignore[call-overload]
            if row is None:
                return ""
            if column == "name":
                return _name_cell(row.name, settings.search)
            if column == "share":
                return format_percent(row.size_bytes / whole)
            value = _FIGURES[column](row)
            if column == "growth":
                return growth_cell(value, None)
            if column == "leaking":
                return about + format_size(value) if value else ""
            written = format_size(value) if column == "bytes" else short_count(value)
            return written if column == "stacks" else about + written

        why = "" if sums else selection.why_empty
        without = ("growth", "leaking") if selection.is_profile else ()
        return TableRows(list(by_stack), cell, sorting.column, sorting.descending, why, without)

    return rows


def _name_cell(name: str | None, search: str) -> Cell:
    if name is None:
        return Text(_UNKNOWN, "dim")
    return name_cell(clean(name), search) if search else Text(clean(name))


TYPES: Final = View(
    name="types",
    title="Types",
    key="Y",
    maker=type_rows,
    widget=lambda: Table(COLUMNS),
    choose=lambda key, _settings: key,
    enters="Details",
    sorting=Sorting("bytes"),
)
