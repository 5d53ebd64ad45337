"""Prints the results of ``make bench`` as text."""

import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.bench import start, storm, tui, workloads
from tests.bench.run import Results, slowdowns, storm_ratios
from tests.bench.storm import Case
from tests.bench.tools import TOOLS

MIB = 1 << 20
LABELS = {tool.name: tool.label for tool in TOOLS}


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns as wide as their widest cell: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, ["-" * width for width in widths], *rows):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        yield "  ".join(cells)


def _verdict(is_met: bool | None) -> str:
    return "" if is_met is None else "met" if is_met else "MISSED"


def _at_most(what: str, value: float, target: float, form: str) -> list[str]:
    """A row of a figure with its target, both written as ``form`` says."""
    return [what, form.format(value), form.format(target), _verdict(value <= target)]


def _costs(results: Results) -> Iterator[str]:
    rows = []
    figures = [(tool.name, tool.label, "ns_per_pair") for tool in TOOLS]
    # The reader takes processor time from as many threads as there are processors.
    figures.append(("library", f"{LABELS['library']}: threads' own CPU time", "cpu_ns_per_pair"))
    for name, label, figure in figures:
        medians = [by_tool.get(name) for by_tool in results.storm.values()]
        cells = [
            f"{getattr(storm.median(samples), figure):,.0f}" if samples else "-"
            for samples in medians
        ]
        if any(cell != "-" for cell in cells):
            rows.append([label, *cells])
    yield "Nanoseconds per malloc/free pair and thread (medians)"
    yield from _table(["", *(case.title for case in results.storm)], rows)


def _profiler(results: Results) -> Iterator[str]:
    rows = []
    for case, by_tool in results.storm.items():
        for name in ("tracelloc", "library"):
            if name not in by_tool:
                continue
            middle = storm.median(by_tool[name])
            rate, share = middle.events_per_s or 0, middle.profiler_cpu_share or 0
            target = storm.CPU_TARGETS.get(case) if name == "tracelloc" else None
            per_million = 1e6 * share / rate if rate else 0.0
            rows.append(
                [f"{LABELS[name]}: {case.title}",
                 f"{rate:,.0f}", f"{share:.1%}", f"{per_million:.1%}",
                 "" if target is None else f"{target:.0%}",
                 _verdict(None if target is None else per_million <= target),
                 f"{(middle.profiler_rss_bytes or 0) / MIB:.0f} MiB",
                 f"{middle.lost_events or 0:,.0f}"]
            )  # fmt: skip
    if rows:
        yield "The profiler itself (CPU: of one core; events lost: all rounds together)"
        head = ["", "events/s", "CPU", "at a million/s", "at most", "", "RSS", "events lost"]
        yield from _table(head, rows)


def _ratios(results: Results) -> Iterator[str]:
    rows = []
    for row in storm_ratios(results):
        case = Case(row["threads"], row["frames"], row["live_blocks_per_thread"])
        rows.append(
            [f"{row['cost_of']} / {row['over_cost_of']}: {case.title}",
             f"{row['ratio']:.2f}", row["target"] or "", _verdict(row["target_met"])]
        )  # fmt: skip
    if rows:
        yield "Ratios of cost (medians of the rounds' ratios)"
        yield from _table(["", "ratio", "target", ""], rows)


def _workloads(results: Results) -> Iterator[str]:
    rows = []
    for row in slowdowns(results):
        times = row["slowdown_ratio"]
        target = workloads.TARGETS.get((row["workload"], row["tool"]))
        rows.append(
            [f"{row['workload']}, {LABELS[row['tool']]}",
             f"{row['rate']:,.0f} {row['unit']}",
             "-" if times is None else f"{times:.2f}",
             "" if target is None else f"{target:g}",
             _verdict(None if target is None or times is None else times <= target)]
        )  # fmt: skip
    if rows:
        yield "Real workloads"
        yield from _table(["", "rate", "times slower", "at most", ""], rows)


def _start(starts: dict[str, Any]) -> Iterator[str]:
    yield "Starts (medians; CPU to the end)"
    rows = [
        _at_most(f"{what}: {start.FIGURES[figure]}", value, start.TARGETS[what][figure], "{:.2f}")
        for what, figures in starts.items()
        for figure, value in figures.items()
    ]
    yield from _table(["", "", "at most", ""], rows)


def _tui(figures: dict[str, Any]) -> Iterator[str]:
    yield (
        f"The screen, with {figures['stacks']:,} stacks and {figures['blocks']:,} blocks at "
        f"{figures['events_per_s']} events/s, {figures['lost_events']} lost"
    )
    targets = tui.TARGETS
    yield from _table(
        ["", "", "at most", ""],
        [
            _at_most("profiler's CPU, share of a core", figures["profiler_cpu_share"],
                     targets["profiler_cpu_share"], "{:.0%}"),
            _at_most("ms per refresh", figures["refresh_ms"], targets["refresh_ms"], "{:.0f}"),
            ["the worst", f"{figures['refresh_worst_ms']:.0f}", "", ""],
            ["ms from key to paint", f"{figures['key_to_paint_ms']:.0f}", "", ""],
            _at_most("95 % of them", figures["key_to_paint_p95_ms"],
                     targets["key_to_paint_p95_ms"], "{:.0f}"),
            _at_most("s to the slowest tab", max(figures["view_s"].values()),
                     targets["view_s"], "{:.2f}"),
            _at_most("s to quit", figures["quit_s"], targets["quit_s"], "{:.2f}"),
        ],
    )  # fmt: skip


def _follow(results: Results) -> Iterator[str]:
    rows = {name: figures.as_row() for name, figures in results.follow.items()}
    if not rows:
        return
    yield "Programs that make others, with --follow (medians; profiler's CPU and stop per fork)"
    head = ["", "forks/s", "empty probes", "followed"]
    head += ["times slower", "ms of CPU", "ms stopped in fork"]
    cells = [
        [name, f"{row['untraced_rate']:,.1f}", f"{row['empty_rate']:,.1f}",
         f"{row['followed_rate']:,.1f}", f"{row['slowdown_ratio']:.2f}",
         f"{1000 * row['profiler_cpu_s']:,.2f}", f"{row['stop_per_fork_ns'] / 1e6:,.2f}"]
        for name, row in rows.items()
    ]  # fmt: skip
    yield from _table(head, cells)


SINGLE: dict[str, Callable[[dict[str, Any]], Iterator[str]]] = {
    "start": _start,
    "tui": _tui,
}


def text(results: Results) -> str:
    single = results.single
    sections = [table(single[name]) for name, table in SINGLE.items() if name in single]
    if results.storm:
        sections += [_costs(results), _profiler(results), _ratios(results)]
    sections += [_workloads(results), _follow(results)]
    parts = ["\n".join(section) for section in sections]
    if results.skipped:
        lines = [f"skipped: {name}: {reason}" for name, reason in results.skipped.items()]
        parts.append("\n".join(textwrap.shorten(line, 300) for line in lines))
    return "\n\n".join(part for part in parts if part) + "\n"
