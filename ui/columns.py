"""What the tables of stacks and blocks show in each column."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final

from rich.text import Text

from tracelloc.ui.cells import percent, signed_size, span, sparkline, trend
from tracelloc.ui.figures import clean, short_count
from tracelloc.ui.naming import Search, labels_of
from tracelloc.ui.picture import Picture
from tracelloc.ui.table import Cell, Column, Rows
from tracelloc.units import NS_PER_S, about_of, format_size
from tracelloc.verdict.judgement import Verdict
from tracelloc.verdict.sites import VERDICTS

STACK_COLUMNS: Final = (
    Column("bytes", "outstanding", 13),
    Column("share", "share", 6, from_width=96, sorts=False),
    Column("count", "blocks", 9, from_width=84),
    Column("growth", "growth/min", 12),
    Column("verdict", "verdict", 9, right=False, from_width=72),
    Column("rate", "alloc/s", 9, from_width=108),
    Column("age", "mean age", 10, from_width=100),
    Column("temporary", "temporary", 10, from_width=132),
    Column("past", "past", 8, from_width=90, sorts=False),
    Column("name", "allocated by", 0, right=False),
)
BLOCK_COLUMNS: Final = (
    Column("size", "size", 10),
    Column("age", "age", 9),
    Column("address", "address", 14, right=False, from_width=76),
    Column("thread", "thread", 18, right=False, from_width=100),
    Column("name", "allocated by", 0, right=False),
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


def stack_rows(picture: Picture, empty: str) -> Rows:
    """The table of stacks."""
    snapshot, figures, settings = picture.snapshot, picture.figures, picture.settings
    past = snapshot.history.held()[1] if snapshot.history is not None else None
    about = about_of(snapshot.sample_bytes)
    temporary = snapshot.totals.temporary_share

    def cell(key: Hashable, column: str) -> Cell:
        assert isinstance(key, int)
        if column == "name":
            return name_cell(labels_of(picture.labels, key), settings.search)
        if column in ("growth", "verdict"):
            found = None if picture.verdicts is None else VERDICTS[picture.verdicts[key]]
            growth = int(snapshot.growth_per_min[key])
            return verdict_cell(found) if column == "verdict" else growth_cell(growth, found)
        if column == "past":
            held = past[key].tolist() if past is not None and key < len(past) else []
            now = int(snapshot.totals.live_bytes[key])
            return Text(sparkline(spread([*held, now], 8), 8), "dim")
        if column == "bytes":
            if picture.change is not None:
                return signed_size(int(picture.change[key]))
            return about + format_size(int(figures.live_bytes[key]))
        age_ns = int(figures.mean_age_ns[key])
        return {
            "age": lambda: span(age_ns / NS_PER_S) if age_ns >= 0 else "-",
            "share": lambda: percent(float(figures.share[key])),
            "count": lambda: f"{about}{int(figures.live_count[key]):,}",
            "rate": lambda: short_count(float(figures.allocations_per_s[key])),
            "temporary": lambda: percent(float(temporary[key])),
        }[column]()

    sorting = settings.stacks
    return Rows(picture.order.tolist(), cell, sorting.column, sorting.descending, empty)


def block_rows(picture: Picture, empty: str) -> Rows:
    """The table of single blocks."""
    assert picture.blocks is not None
    known, names, search = picture.blocks_by_address, picture.labels, picture.settings.search

    def cell(key: Hashable, column: str) -> Cell:
        assert isinstance(key, int)
        block = known.get(key)
        if column == "address":
            return f"0x{key:x}"
        if block is None:
            # Its row waits for the next order.
            return "freed" if column == "size" else ""
        if column == "size":
            return format_size(block.size_bytes)
        if column == "age":
            return span(block.age_ns / NS_PER_S)
        if column == "thread":
            return clean(f"{block.tid} {picture.thread_names.get(block.tid, '[ended]')}")
        return name_cell(labels_of(names, block.stack), search)

    order: Sequence[int] = [block.address for block in picture.blocks.largest]
    sorting = picture.settings.blocks
    return Rows(order, cell, sorting.column, sorting.descending, empty)
