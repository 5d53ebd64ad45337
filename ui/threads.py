"""The view of threads: what they hold, what they have done, what goes from one to another."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any, Final

from rich.text import Text

from tracelloc.snapshots.activity import ThreadActivity, ThreadFlow
from tracelloc.snapshots.spread import (
    ThreadRow,
    ThreadsBefore,
    flows_of,
    thread_rows,
    threads_of,
    threads_then,
)
from tracelloc.text import about_of, format_size
from tracelloc.ui.cells import crop, percent
from tracelloc.ui.selection import Selection
from tracelloc.ui.settings import Settings
from tracelloc.ui.source import Source
from tracelloc.ui.stacks import growth_cell
from tracelloc.ui.table import Bar, Cell, Column, Rows, Table
from tracelloc.ui.view import BASIC, Sorting, View

COLUMNS: Final = (
    Column("bytes", "outstanding", 13),
    Column("growth", "growth/min", 12),
    Column("thread", "thread", 7, descending=False),
    Column("share", "share", 7, from_width=76, sorts=False),
    Column("count", "blocks", 10, from_width=76),
    Column("allocated", "allocated", 9, from_width=98),
    Column("freed", "freed", 8, from_width=98),
    Column("remote", "of others", 9, from_width=119),
    Column("handed", "handed on", 9, from_width=119),
    Column("name", "name", 16, right=False, descending=False),
    Column("bar", "", 0, from_width=130, sorts=False),
)
_FIGURES: Final[dict[str, Callable[[ThreadRow], Any]]] = {
    "bytes": lambda row: row.held.live_bytes,
    "growth": lambda row: row.held.bytes_per_min or 0,
    "thread": lambda row: row.tid,
    "share": lambda row: row.held.share,
    "count": lambda row: row.held.live_count,
    "allocated": lambda row: row.work.allocated_bytes,
    "freed": lambda row: row.work.freed_bytes,
    "remote": lambda row: row.work.remote_freed_bytes,
    "handed": lambda row: row.work.handed_bytes,
    "name": lambda row: _name(row.tid, row.name),
}
_FORMATS: Final[dict[str, Callable[[Any], str]]] = {"thread": str, "share": percent}
_FLOWS: Final = 3
"""Shown of each kind."""


def maker(_source: Source) -> Callable[[Selection], Rows]:
    """Makes a row per thread. Growth is since it first made rows of these settings."""
    before: tuple[object, ThreadsBefore] | None = None

    def rows(selection: Selection) -> Rows:
        nonlocal before
        snapshot, settings = selection.snapshot, selection.settings
        key = settings.search, settings.all_limits, settings.difference, settings.verdicts
        if before is not None and before[0] != key:
            before = None
        # Choosing one thread must not make the others vanish from their list.
        held = threads_of(
            selection.blocks(replace(settings.all_limits, tid=None)),
            snapshot.thread_names,
            snapshot.now_ns,
            before[1] if before else None,
            snapshot.sample_bytes,
        )
        before = before or (key, threads_then(held, snapshot.now_ns))
        narrowed = settings.narrows_stacks or not settings.all_limits.is_open
        threads = thread_rows(held, snapshot.threads, narrowed=narrowed)
        about = about_of(snapshot.sample_bytes)
        found = table_rows(threads, snapshot.threads, settings.sorting, about)
        return replace(found, empty=selection.why_empty)

    return rows


def table_rows(
    threads: Sequence[ThreadRow], activity: ThreadActivity | None, sorting: Sorting, about: str
) -> Rows:
    """The table; the key is the thread's id. ``about`` is ``~`` if figures are estimates."""
    by_tid = {row.tid: row for row in threads}
    figure = _FIGURES[sorting.column]
    order = sorted(sorted(by_tid), key=lambda tid: figure(by_tid[tid]), reverse=sorting.descending)

    def cell(key: Hashable, column: str) -> Cell:
        row = by_tid.get(key)  # type: ignore[call-overload]
        if row is None:
            # Its row waits for the next order.
            return ""
        if column == "growth":
            per_min = row.held.bytes_per_min
            return "" if per_min is None else growth_cell(per_min, None)
        if column == "bar":
            return Bar(row.held.share)
        value = _FIGURES[column](row)
        if column == "name":
            return value if row.name is not None else Text(value, "dim")
        if column in _FORMATS:
            return _FORMATS[column](value)
        return about + (f"{value:,}" if column == "count" else format_size(value))

    footer: list[Callable[[Any], str]] = []
    if activity is not None:
        footer = [lambda _: _sharing(activity, about), lambda tid: _flows(activity, tid, about)]
    return Rows(order, cell, sorting.column, sorting.descending, footer=footer)


def _sharing(activity: ThreadActivity, about: str) -> str:
    size, count = format_size(activity.remote_freed_bytes), f"{activity.remote_freed_count:,}"
    share = percent(activity.remote_share)
    return (
        f" freed by other threads: {about}{size} in {about}{count} blocks, "
        f"{share} of all that were freed"
    )


def _flows(activity: ThreadActivity, tid: int | None, about: str) -> str:
    """The largest of a thread."""
    if tid is None:
        return ""

    def named(tid: int) -> str:
        name = _name(tid, activity.names.get(tid))
        return f"{tid} {crop(name, 16)}" if tid else name

    def size(flow: ThreadFlow) -> str:
        return about + format_size(flow.size_bytes)

    given, taken = flows_of(activity, tid)
    parts = [f"{size(flow)} to {named(flow.ender_tid)}" for flow in given[:_FLOWS]]
    parts += [f"{size(flow)} from {named(flow.maker_tid)}" for flow in taken[:_FLOWS]]
    left = len(given) + len(taken) - len(parts)
    more = f", {left} more" if left else ""
    return f" {named(tid)}: {', '.join(parts) or 'no blocks to or from others'}{more}"


def _name(tid: int, name: str | None) -> str:
    """What can't be assigned to a thread has the id 0."""
    if name is not None:
        return name
    return "[ended]" if tid else "[unknown]"


def _only(tid: int, settings: Settings) -> Settings | None:
    """What this thread allocated; of nobody's, there are no blocks to be shown."""
    return replace(settings, limits=replace(settings.limits, tid=tid)) if tid else None


THREADS: Final = View(
    name="threads",
    title="Threads",
    key="7",
    maker=maker,
    widget=lambda: Table(COLUMNS),
    choose=_only,
    wanted=replace(BASIC, threads=True),
    sorting=Sorting("bytes"),
)
