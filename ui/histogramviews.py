"""The views of live blocks by size, by age and by thread, as bars and tables."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final

from rich.text import Text

from tracelloc.heap.usable import header_bytes, usable_of
from tracelloc.model.figures import ThreadActivity, ThreadFlow
from tracelloc.show.analysis import histograms
from tracelloc.show.presentation.processfacts import waste_line
from tracelloc.show.tables import Column, Columns, count_with, size_with
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import NS_PER_S, about_of, format_duration, format_percent, format_size
from tracelloc.ui import tableview
from tracelloc.ui.view import BASIC, Settings, Sorting, TraceSource, View, ViewSelection, is_live

MOST_SIZES: Final = 32
_MEASURED_NS: Final = 5 * NS_PER_S  # Time between readings of usable sizes
_BY_BYTES: Final = Sorting("bytes")


def histogram_columns(label: str) -> Columns[histograms.Bin]:
    """Returns a histogram's columns; ``label``: the title of its bins, ``size`` or ``age``."""
    return (
        Column("label", label, 16, sorts=False), Column("bytes", "bytes", 9),
        Column("count", "blocks", 11), Column("share", "share", 7, sorts=False),
        Column("wasted", "wasted", 9, from_width=76, sorts=False),
        Column("waste", "share", 7, from_width=76, sorts=False), Column("bar", "", 0, sorts=False),
    )  # fmt: skip


def bar_rows(
    rows: Sequence[histograms.Bin | str], label: Callable[[histograms.Bin], str],
    sorting: Sorting = _BY_BYTES, empty: str = "",
) -> tableview.TableRows:  # fmt: skip
    """Returns one row per bin; its key is (low, high, number of headings above it)."""

    def value(row: histograms.Bin) -> int:
        return row.size_bytes if sorting.column == "bytes" else row.count

    order: list[Hashable] = []
    bars: dict[Hashable, histograms.Bin] = {}
    section = total = 0
    for row in rows:
        if isinstance(row, str):
            section += 1
            order.append(tableview.Heading(row))
        else:
            order.append(key := (row.low, row.high, section))
            bars[key] = row
            total += 0 if section else value(row)
    highest = max((value(row) for row in bars.values()), default=0)

    def cell(key: Hashable, column: str) -> tableview.Cell:
        row = bars.get(key)
        if row is None:
            # The row's order is outdated; the next one comes soon.
            return ""
        if column == "bar":
            return tableview.Bar(value(row) / max(highest, 1))
        text = {
            "label": lambda: label(row),
            "bytes": lambda: format_size(row.size_bytes),
            "count": lambda: f"{row.count:,}",
            "share": lambda: format_percent(value(row) / max(total, 1)),
            "wasted": lambda: _wasted(row, lambda waste: format_size(waste.waste_bytes), "?"),
            "waste": lambda: _wasted(row, lambda waste: format_percent(waste.share), ""),
        }[column]()
        return text if row.count else Text(text, "dim")

    knows_waste = any(row.waste is not None for row in bars.values())
    without = () if knows_waste else ("wasted", "waste")
    return tableview.TableRows(order, cell, sorting.column, empty=empty, without=without)


def _wasted(row: histograms.Bin, figure: Callable[[histograms.Waste], str], unknown: str) -> str:
    waste = row.waste
    if waste is None or not row.count:
        return ""
    return figure(waste) if waste.usable_bytes or not waste.unknown_count else unknown


def size_rows(
    bins: Sequence[histograms.Bin],
    frequent: Sequence[histograms.Bin] = (),
    waste: str | None = None,
) -> list[histograms.Bin | str]:
    """Returns bins by powers of two, the exact sizes with the most bytes, and the waste."""
    rows: list[histograms.Bin | str] = [*bins]
    if frequent:
        rows.append("exact sizes with most bytes")
        rows += frequent
    if waste is not None and rows:
        rows.append(waste)
    return rows


def size_label(sizes: histograms.Bin) -> str:
    """Formats a bin of sizes: ``512 - 1023 B``, ``1 KiB - 2 KiB``, ``1,536 B``."""
    low, high = sizes.low, sizes.high
    if high is None or low == high:
        return f"{low:,} B"
    if low < 1024:
        return f"{low} - {high} B"
    # The limits are powers of two, hence whole numbers of their unit.
    return f"{_whole(low)} - {_whole(high + 1)}"


def _whole(size: int) -> str:
    power = min((size.bit_length() - 1) // 10, 6)
    return f"{size >> 10 * power} {' KMGTPE'[power]}iB"


def age_label(ages: histograms.Bin) -> str:
    """Formats a bin of ages: ``1 m - 3 m``, ``over 1 d``."""
    limits = [format_duration(n // NS_PER_S) for n in (ages.low, ages.high) if n is not None]
    return f"over {limits[0]}" if ages.high is None else " - ".join(limits)


def _make_sizes(source: TraceSource) -> Callable[[ViewSelection], tableview.TableRows]:
    measured: Snapshot | None = None
    is_first = True

    def rows(selection: ViewSelection) -> tableview.TableRows:
        nonlocal measured, is_first
        snapshot, settings = selection.snapshot, selection.settings
        blocks = selection.blocks(settings.all_limits)
        sampled, sizes, waste = snapshot.sample_bytes, None, None
        if snapshot.merged is not None:
            # Usable sizes are read by address, and each process has another block there.
            waste = "overhead of the malloc library: choose a single process (9)"
        elif is_first:
            is_first = False
            selection.names.asks_again = True
        else:
            if measured is None or not 0 <= snapshot.now_ns - measured.now_ns < _MEASURED_NS:
                measured = source.measured(snapshot)
            # A block's usable size never changes.
            sizes = measured.usable
        usable = None if sizes is None else usable_of(sizes, blocks)
        if sizes is not None and usable is not None:
            total = histograms.total_waste(blocks, sampled, usable, header_bytes(sizes.main))
            waste = waste_line(sizes, total, about_of(sampled))
        bins = histograms.size_bins(blocks, sampled, usable)
        frequent = histograms.frequent_sizes(blocks, MOST_SIZES, sampled, usable)
        found = size_rows(bins, frequent, waste)
        return bar_rows(found, size_label, settings.sorting, selection.why_empty)

    return rows


def _make_ages(selection: ViewSelection) -> tableview.TableRows:
    snapshot, settings = selection.snapshot, selection.settings
    blocks = selection.blocks(settings.all_limits)
    bins = histograms.age_bins(blocks, snapshot.now_ns, snapshot.sample_bytes)
    return bar_rows(bins, age_label, settings.sorting, selection.why_empty)


def _only_sizes(key: tuple[int, int | None, int], settings: Settings) -> Settings:
    limits = replace(settings.limits, min_size_bytes=key[0], max_size_bytes=key[1])
    return replace(settings, limits=limits)


def _only_ages(key: tuple[int, int | None, int], settings: Settings) -> Settings:
    last = None if key[1] is None else key[1] - 1
    return replace(settings, limits=replace(settings.limits, min_age_ns=key[0], max_age_ns=last))


SIZES: Final = View(
    "Sizes", "5", _make_sizes, lambda: tableview.Table(histogram_columns("size")), _BY_BYTES,
    _only_sizes, "Only these", exists=is_live,
)  # fmt: skip
AGES: Final = View(
    "Ages", "6", lambda _source: _make_ages, lambda: tableview.Table(histogram_columns("age")),
    _BY_BYTES, _only_ages, "Only these", exists=is_live,
)  # fmt: skip


def thread_columns(about: str = "") -> Columns[histograms.ThreadRow]:
    """Returns the columns of the view of threads. ``about``: the mark of estimates."""

    def growth(row: histograms.ThreadRow) -> tableview.Cell:
        per_min = row.held.bytes_per_min
        return "" if per_min is None else tableview.growth_cell(per_min)

    def name(row: histograms.ThreadRow) -> tableview.Cell:
        return Text(_name(row.held.tid, None), "dim") if row.held.name is None else row.held.name

    def work(
        key: str, title: str, width: int, field: str, from_width: int
    ) -> Column[histograms.ThreadRow]:
        return Column(key, title, width, attrgetter(f"work.{field}"), size, from_width=from_width)

    size, count, share = size_with(about), count_with(about), attrgetter("held.share")
    return (
        Column("bytes", "live", 13, lambda row: row.held.live_bytes, size),
        Column("growth", "growth/min", 12, lambda row: row.held.bytes_per_min or 0, draw=growth),
        Column("thread", "thread", 7, lambda row: row.held.tid, descending=False),
        Column("share", "share", 7, share, format_percent, from_width=76, sorts=False),
        Column("count", "blocks", 10, lambda row: row.held.live_count, count, from_width=76),
        work("allocated", "allocated", 9, "allocated_bytes", 98),
        work("freed", "freed", 8, "freed_bytes", 98),
        work("for_others", "freed for others", 16, "freed_for_others_bytes", 134),
        work("by_others", "freed by others", 15, "freed_by_others_bytes", 134),
        Column(
            "name", "name", 16, lambda row: _name(row.held.tid, row.held.name), draw=name,
            left=True, descending=False,
        ),
        Column("bar", "", 0, share, tableview.Bar, from_width=130, sorts=False),
    )  # fmt: skip


COLUMNS: Final = thread_columns()
_FLOWS: Final = 3  # Most flows shown of each kind


def thread_rows_maker(_source: TraceSource) -> Callable[[ViewSelection], tableview.TableRows]:
    """Returns a function that makes a row per thread. Growth counts from its first rows."""
    before: tuple[object, tuple[int, Sequence[histograms.ThreadStat]]] | None = None

    def rows(selection: ViewSelection) -> tableview.TableRows:
        nonlocal before
        snapshot, settings = selection.snapshot, selection.settings
        key = settings.search, settings.all_limits, settings.difference, settings.verdicts
        if before is not None and before[0] != key:
            before = None
        # All threads stay listed while one of them is selected.
        held = histograms.threads_of(
            selection.blocks(replace(settings.all_limits, tid=None)), snapshot.thread_names,
            snapshot.now_ns, before[1] if before else None, snapshot.sample_bytes,
        )  # fmt: skip
        before = before or (key, (snapshot.now_ns, held))
        narrowed = settings.narrows_stacks or not settings.all_limits.is_open
        threads = histograms.thread_rows(held, snapshot.threads, narrowed=narrowed)
        about = about_of(snapshot.sample_bytes)
        found = thread_table(threads, snapshot.threads, settings.sorting, about)
        return replace(found, empty=selection.why_empty)

    return rows


def thread_table(
    threads: Sequence[histograms.ThreadRow], activity: ThreadActivity | None, sorting: Sorting,
    about: str,
) -> tableview.TableRows:  # fmt: skip
    """Returns the table of threads by thread id. ``about``: the mark of estimates."""
    footer: list[Callable[[Any], str]] = []
    if activity is not None:
        size, count = format_size(activity.remote_freed_bytes), f"{activity.remote_freed_count:,}"
        share = format_percent(activity.remote_share)
        what = f"{about}{size} in {about}{count} blocks, {share} of all frees"
        sharing = f" freed by other threads: {what}"
        footer = [lambda _: sharing, lambda tid: _flows(activity, tid, about)]
    rows = {row.held.tid: row for row in sorted(threads, key=lambda row: row.held.tid)}
    return tableview.sorted_rows(rows, thread_columns(about), sorting, footer=footer)


def _flows(activity: ThreadActivity, tid: int | None, about: str) -> str:
    if tid is None:
        return ""

    def named(tid: int) -> str:
        name = _name(tid, activity.names.get(tid))
        return f"{tid} {tableview.crop(name, 16)}" if tid else name

    def size(flow: ThreadFlow) -> str:
        return about + format_size(flow.size_bytes)

    given = [flow for flow in activity.flows if flow.maker_tid == tid]  # Largest first
    taken = [flow for flow in activity.flows if flow.ender_tid == tid]
    parts = [f"{size(flow)} to {named(flow.ender_tid)}" for flow in given[:_FLOWS]]
    parts += [f"{size(flow)} from {named(flow.maker_tid)}" for flow in taken[:_FLOWS]]
    left = len(given) + len(taken) - len(parts)
    more = f", {left} more" if left else ""
    return f" {named(tid)}: {', '.join(parts) or 'no blocks to or from others'}{more}"


def _name(tid: int, name: str | None) -> str:
    if name is not None:
        return name
    return "[ended]" if tid else "[unknown]"


THREADS: Final = View(
    "Threads", "7", thread_rows_maker, lambda: tableview.Table(COLUMNS), _BY_BYTES,
    # Unknown threads have the id 0.
    lambda tid, now: replace(now, limits=replace(now.limits, tid=tid)) if tid else None,
    "Only these", wanted=replace(BASIC, threads=True), exists=is_live,
)  # fmt: skip
