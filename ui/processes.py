"""The view of processes: a tree of those that are traced, one of which the others show."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any, Final

from rich.text import Text

from tracelloc.snapshots.analysis import ALL
from tracelloc.snapshots.snapshot import Snapshot, TraceSnapshot
from tracelloc.text import about_of, format_size
from tracelloc.ui.cells import clean
from tracelloc.ui.settings import Settings
from tracelloc.ui.stacks import growth_cell
from tracelloc.ui.table import Cell, Column, Rows, Table
from tracelloc.ui.view import Sorting, View
from tracelloc.verdict.judgement import Verdict

COLUMNS: Final = (
    Column("bytes", "live", 10),
    Column("growth", "growth/min", 12),
    Column("count", "blocks", 10, from_width=76),
    Column("rss", "RSS", 10, from_width=90),
    Column("leaks", "leaks", 7),
    Column("pid", "pid", 8, descending=False),
    Column("name", "process", 0, right=False, descending=False),
)


def _leaks(one: Snapshot) -> int:
    """Suspects that are called leaking."""
    suspects = () if one.findings is None else one.findings.suspects
    return sum(suspect.judgement.verdict is Verdict.LEAKING for suspect in suspects)


_FIGURES: Final[dict[str, tuple[Callable[[Snapshot], Any], Callable[[Any, str], Cell]]]] = {
    "bytes": (lambda one: one.live_bytes, lambda value, about: about + format_size(value)),
    "growth": (
        lambda one: int(one.growth_per_min.sum()),
        lambda value, _: growth_cell(value, None),
    ),
    "count": (lambda one: one.live_count, lambda value, about: f"{about}{value:,}"),
    "rss": (lambda one: one.rss_bytes or 0, lambda value, _: format_size(value) if value else ""),
    "leaks": (_leaks, lambda value, _: Text(str(value), "bold red") if value else ""),
    "pid": (lambda one: one.target.pid, lambda value, _: str(value)),
}
"""By column: the figure, and how it is written behind what marks estimates."""


def tree_order(trace: TraceSnapshot) -> list[tuple[int, Snapshot]]:
    """(depth, process), each below its parent; children in the order of their start."""
    numbers: dict[int, int] = {}
    children: dict[int | None, list[Snapshot]] = {}
    for one in trace.processes:
        # A PID may come back: the parent is whoever had it last before.
        children.setdefault(numbers.get(one.target.parent_pid), []).append(one)
        numbers[one.target.pid] = one.target.number
    found: list[tuple[int, Snapshot]] = []
    waiting = [(0, one) for one in reversed(children.get(None, []))]
    while waiting:
        depth, one = waiting.pop()
        found.append((depth, one))
        below = children.get(one.target.number, [])
        waiting += [(depth + 1, child) for child in reversed(below)]
    return found


def process_rows(trace: TraceSnapshot, settings: Settings) -> Rows:
    """A row per process, its number the key; in the order of a tree if sorted by name."""
    sorting = settings.sorting
    ordered = tree_order(trace)
    depths = {one.target.number: depth for depth, one in ordered}
    by_number = {one.target.number: one for one in trace.processes}
    order: Sequence[int] = [one.target.number for _, one in ordered]
    is_tree = sorting.column == "name"
    if not is_tree:
        figure, _ = _FIGURES[sorting.column]
        order = sorted(order, key=lambda n: figure(by_number[n]), reverse=sorting.descending)
    elif sorting.descending:
        order = order[::-1]
    about = about_of(trace.root.sample_bytes)

    def cell(key: Hashable, column: str) -> Cell:
        one = by_number.get(key)  # type: ignore[call-overload]
        if one is None:
            return ""
        if column == "name":
            indent = "  " * depths[one.target.number] if is_tree else ""
            mark = "● " if one.target.number == settings.process else ""
            text = Text(f"{indent}{mark}{clean(one.target.command)}")
            return text.append(" ended", "dim") if one.target.has_ended else text
        value_of, written = _FIGURES[column]
        return written(value_of(one), about)

    footer = [lambda _key: total_line(trace)]
    return Rows(order, cell, sorting.column, sorting.descending, footer=footer)


def total_line(trace: TraceSnapshot) -> str:
    """All of them together."""
    size = format_size(sum(one.live_bytes for one in trace.processes))
    count, untraced = len(trace.processes), trace.untraced_count
    more = f"; {untraced:,} more not traced" if untraced else ""
    return f" {size} live in all; {len(trace.living)} of {count} processes running{more}"


def show_process(number: int, settings: Settings) -> Settings:
    """Settings for a process; what is about another one's stacks is dropped."""
    return replace(
        settings,
        process=number,
        selected=None,
        baseline=None,
        difference=None,
        marks=(),
        limits=replace(settings.limits, tid=ALL.tid, stack=ALL.stack),
    )


PROCESSES: Final = View(
    name="processes",
    title="Processes",
    key="9",
    maker=lambda _source: lambda one: process_rows(one.trace, one.settings),
    widget=lambda: Table(COLUMNS),
    choose=show_process,
    sorting=Sorting("name", descending=False),
    exists=lambda source: source.has_many,
)
