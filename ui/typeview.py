"""The view of types: live bytes by C++ class, or by what the allocating functions' names say."""

from collections.abc import Callable
from typing import Final

from rich.text import Text

from tracelloc.show.presentation.blocktypes import BlockTypes, TypeSum
from tracelloc.show.tables import Column, Columns, or_blank, size_with
from tracelloc.text import about_of, format_percent
from tracelloc.ui.stacknames import Search
from tracelloc.ui.stackviews import MOST_ROWS, name_cell
from tracelloc.ui.tableview import (
    Cell,
    Table,
    TableRows,
    clean,
    growth_cell,
    short_count,
    sorted_rows,
)
from tracelloc.ui.view import Sorting, TraceSource, View, ViewSelection

_UNKNOWN: Final = "unknown"
_AT_ONCE: Final = 4096  # Stacks that are looked at for one picture; the next one goes on


def class_columns(about: str = "", whole: int = 1, search: str = "") -> Columns[TypeSum]:
    """Returns the view's columns. ``about``: the mark of estimates; ``whole``: all bytes."""

    def name_of(name: str) -> Cell:
        if not name:
            return Text(_UNKNOWN, "dim")
        return name_cell(clean(name), search) if search else Text(clean(name))

    def share(row: TypeSum) -> float:
        return row.size_bytes / whole

    size = size_with(about)
    return (
        Column("bytes", "live", 11, lambda row: row.size_bytes, size),
        Column("share", "share", 7, share, format_percent, sorts=False),
        Column("growth", "growth/min", 12, lambda row: row.growth_bytes_per_min, growth_cell),
        Column("leaking", "leaking", 11, lambda row: row.leaking_bytes, or_blank(size)),
        Column("count", "blocks", 9, lambda row: row.count, lambda n: about + short_count(n)),
        Column("stacks", "stacks", 7, lambda row: len(row.stacks), short_count, from_width=84),
        Column("name", "type", 0, lambda row: row.name or "", name_of, descending=False),
    )


def type_rows(_source: TraceSource) -> Callable[[ViewSelection], TableRows]:
    """Returns a function that makes a row per type, whose key is its heaviest stack."""
    types = BlockTypes()

    def rows(selection: ViewSelection) -> TableRows:
        snapshot, figures, settings = selection.snapshot, selection.figures, selection.settings
        live = figures.live_bytes, figures.live_count
        sums = types.sums(snapshot, selection.namer, *live, _AT_ONCE)
        selection.names.pending += types.left
        if settings.search:
            matches = Search(settings.search).matches
            sums = [row for row in sums if matches(row.name or _UNKNOWN)]
        shown = class_columns(
            about_of(snapshot.sample_bytes), max(int(figures.live_bytes.sum()), 1), settings.search
        )
        return sorted_rows(
            {row.stacks[0]: row for row in sums}, shown, settings.sorting, MOST_ROWS,
            empty="" if sums else selection.why_empty,
        )  # fmt: skip

    return rows


TYPES: Final = View(
    name="types",
    title="Types",
    key="Y",
    maker=type_rows,
    widget=lambda: Table(class_columns()),
    choose=lambda key, _settings: key,
    enter_action="Details",
    sorting=Sorting("bytes"),
)
