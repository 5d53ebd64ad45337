"""The view of call stacks: where live memory was allocated."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final

import numpy as np
from rich.text import Text

from tracelloc.heap.totals import I64
from tracelloc.ui.naming import Search
from tracelloc.ui.table import (
    Cell,
    Column,
    Rows,
    Table,
    percent,
    short_count,
    signed_size,
    span,
    sparkline,
    trend,
)
from tracelloc.ui.view import Selection, Sorting, View
from tracelloc.units import NS_PER_S, about_of, format_size
from tracelloc.verdict.judgement import Verdict
from tracelloc.verdict.sites import VERDICTS
from tracelloc.views.suspects import suspect_ranks

MOST_ROWS: Final = 10_000
"""Nobody scrolls further; searching looks at everything."""
COLUMNS: Final = (
    Column("bytes", "outstanding", 13),
    Column("share", "share", 6, from_width=96, sorts=False),
    Column("count", "blocks", 9, from_width=84),
    Column("growth", "growth/min", 12),
    Column("verdict", "verdict", 9, right=False, from_width=72),
    Column("rate", "alloc/s", 9, from_width=108),
    Column("age", "mean age", 10, from_width=100),
    Column("temporary", "temporary", 10, from_width=132),
    Column("past", "past", 8, from_width=90, sorts=False),
    Column("name", "allocated by", 0, right=False, descending=False),
)
GROWING: Final = "bold red"
SHRINKING: Final = "green"
FOUND: Final = "bold reverse"
VERDICT_STYLES: Final = {Verdict.LEAKING: "bold red", Verdict.GROWING: "yellow"}
"""Of the others: dim."""
_SHORT: Final = {Verdict.LEAKING: "LEAKING", Verdict.CACHE_OR_POOL: "cache"}
_HARMLESS: Final = (Verdict.CACHE_OR_POOL, Verdict.BUSY, Verdict.START_UP)


def growth_cell(bytes_per_min: int, verdict: Verdict | None) -> Text:
    """``+1.10 MiB ▲``: the colour says nothing that the sign and the triangle don't.

    What is known to be no leak does not look like one while it fills.
    """
    style = GROWING if bytes_per_min > 0 else SHRINKING if bytes_per_min < 0 else "dim"
    if bytes_per_min > 0 and verdict in _HARMLESS:
        style = "dim"
    return Text(f"{signed_size(bytes_per_min)} {trend(bytes_per_min)}", style)


def verdict_cell(verdict: Verdict | None) -> Text:
    """One word."""
    if verdict is None:
        return Text("-", "dim")
    return Text(_SHORT.get(verdict, verdict.value), VERDICT_STYLES.get(verdict, "dim"))


def name_cell(name: str, search: str) -> Cell:
    """The name with what was searched for marked."""
    if not search:
        return name
    text = Text(name)
    for match in Search(search).pattern.finditer(name):
        if match.end() > match.start():
            text.stylize(FOUND, match.start(), match.end())
    return text


def spread(values: Sequence[int], width: int) -> Sequence[int]:
    """``width`` of the values, evenly over the whole time, the newest among them."""
    if len(values) <= width:
        return values
    last = len(values) - 1
    return [values[round(n * last / (width - 1))] for n in range(width)]


def stack_rows(selection: Selection) -> Rows:
    """A row per stack; the key is its index."""
    snapshot, figures, settings = selection.snapshot, selection.figures, selection.settings
    past = snapshot.history.held()[1]
    about = about_of(snapshot.sample_bytes)
    temporary = snapshot.totals.temporary_share
    labels, change, verdicts = selection.labels, selection.change, selection.verdicts

    def cell(key: Hashable, column: str) -> Cell:
        assert isinstance(key, int)
        if column == "name":
            return name_cell(labels.get(key, "…"), settings.search)
        if column in ("growth", "verdict"):
            found = None if verdicts is None else VERDICTS[verdicts[key]]
            growth = int(snapshot.growth_per_min[key])
            return verdict_cell(found) if column == "verdict" else growth_cell(growth, found)
        if column == "past":
            held = past[key].tolist() if key < len(past) else []
            now = int(snapshot.totals.live_bytes[key])
            return Text(sparkline(spread([*held, now], 8), 8), "dim")
        if column == "bytes":
            if change is not None:
                return signed_size(int(change[key]))
            return about + format_size(int(figures.live_bytes[key]))
        age_ns = int(figures.mean_age_ns[key])
        return {
            "age": lambda: span(age_ns / NS_PER_S) if age_ns >= 0 else "-",
            "share": lambda: percent(float(figures.share[key])),
            "count": lambda: f"{about}{int(figures.live_count[key]):,}",
            "rate": lambda: short_count(float(figures.allocations_per_s[key])),
            "temporary": lambda: percent(float(temporary[key])),
        }[column]()

    sorting = settings.sorting
    order = _sorted(selection)[:MOST_ROWS].tolist()
    return Rows(order, cell, sorting.column, sorting.descending, selection.why_empty)


def _sorted(selection: Selection) -> I64:
    snapshot, figures, change = selection.snapshot, selection.figures, selection.change
    rows, sorting = selection.stacks, selection.settings.sorting
    if sorting.column == "name":
        labels = selection.labels
        ordered = sorted(rows.tolist(), key=lambda index: labels.get(index, ""))
        by_name: I64 = np.array(ordered, np.int64)
        return by_name[::-1] if sorting.descending else by_name
    if sorting.column == "verdict" and change is None:
        ranks = suspect_ranks(snapshot)[rows]
        return rows[np.argsort(ranks if sorting.descending else -ranks, kind="stable")]
    column = {
        "verdict": change,
        "bytes": figures.live_bytes if change is None else change,
        "count": figures.live_count,
        "growth": snapshot.growth_per_min,
        "rate": figures.allocations_per_s,
        "age": figures.mean_age_ns,
        "temporary": snapshot.totals.temporary_share,
    }[sorting.column]
    assert column is not None
    column = column[rows]
    # Equal ones stay in the order of their size.
    return rows[np.argsort(-column if sorting.descending else column, kind="stable")]


STACKS: Final = View(
    name="stacks",
    title="Allocators",
    key="1",
    maker=lambda _source: stack_rows,
    widget=lambda: Table(COLUMNS),
    choose=lambda stack, _settings: stack,
    sorting=Sorting("verdict"),
    shows_stack=True,
)
