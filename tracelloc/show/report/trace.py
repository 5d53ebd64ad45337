"""Writes a report of a whole trace: each process, and a total if there may be several."""

import json
from collections.abc import Mapping
from typing import Any, Final

from tracelloc.model.process import FollowCounts, Space
from tracelloc.show.presentation.naming import Namers
from tracelloc.show.report.content import EarlierReports, ReportStyle, Request
from tracelloc.show.report.sections import report_facts, report_lines
from tracelloc.snapshots.snapshot import Snapshot, TraceSnapshot
from tracelloc.text import NS_PER_S, about_of, format_duration, format_size, plural, printable

# Processes as they were when the mark was set, by their numbers in the trace.
Marks = Mapping[int, Snapshot]


def trace_report(
    trace: TraceSnapshot,
    namers: Namers,
    style: ReportStyle,
    marks: Marks,
    *,
    ended: bool,
    earlier: EarlierReports | None = None,
    as_json: bool = False,
) -> str:
    """Returns the report as text, or as lines of JSON. ``ended``: includes ended processes."""
    earlier = EarlierReports() if earlier is None else earlier
    shown = trace.processes if ended or len(trace.processes) == 1 else trace.living
    lines: list[str] = []
    for one in shown:
        number = one.target.number
        said = earlier.begin_process(number)
        given = Request(one, namers.namer_of(one.target), style, marks.get(number), said)
        if as_json:
            report = report_facts(given)
            if style.has_many:
                report["ended"] = one.target.has_ended
            lines.append(_json_line(report))
        else:
            if style.has_many and said.is_full:
                target, ended_word = one.target, ", ended" if one.target.has_ended else ""
                lines.append(
                    f"==> process {target.pid} ({printable(target.command)}), "
                    f"child of {target.parent_pid}{ended_word}"
                )
            lines += report_lines(given)
    if style.has_many:
        lines += [_json_line(_total(trace))] if as_json else [_total_line(trace), ""]
    return "".join(f"{line}\n" for line in lines)


_OF: Final = {Space.HOST: "", Space.GPU: "of GPU memory "}


def _json_line(facts: dict[str, Any]) -> str:
    return json.dumps(facts, separators=(",", ":"))


def progress_line(trace: TraceSnapshot) -> str:
    """Formats a line of progress, for standard error."""
    if len(trace.processes) == 1:
        return _traced_line(trace.root)
    return _total_line(trace).removeprefix("==> total of ")


def _traced_line(snapshot: Snapshot) -> str:
    elapsed_s = snapshot.elapsed_ns / NS_PER_S
    rate = snapshot.events / elapsed_s if elapsed_s > 0 else 0.0
    about = about_of(snapshot.sample_bytes)
    traced = f"{format_duration(elapsed_s)} traced"
    return (
        f"{traced}, {about}{format_size(snapshot.live_bytes)} {_OF[snapshot.space]}"
        f"in {about}{snapshot.live_count:,} allocations from {snapshot.live_stacks:,} stacks, "
        f"{rate:,.0f} events/s"
    )


def _sums(trace: TraceSnapshot) -> dict[str, int]:
    """Returns sums over all processes. A forked child's copied blocks count, too."""
    every = trace.processes
    return {
        "live_bytes": sum(one.live_bytes for one in every),
        "live_allocations": sum(one.live_count for one in every),
        "allocated_bytes": sum(int(one.totals.allocated_bytes.sum()) for one in every),
        "allocations": sum(int(one.totals.allocated_count.sum()) for one in every),
    }


def _total_line(trace: TraceSnapshot) -> str:
    sums, count = _sums(trace), len(trace.processes)
    processes = "1 process" if count == 1 else f"{count:,} processes"
    untraced = f", {trace.untraced_count:,} more not traced" if trace.untraced_count else ""
    size, blocks = format_size(sums["live_bytes"]), plural(sums["live_allocations"], "allocation")
    return f"==> total of {processes}{untraced}: {size} {_OF[trace.root.space]}in {blocks}"


def _total(trace: TraceSnapshot) -> dict[str, Any]:
    follow = trace.follow or FollowCounts()
    return {
        "time": round(trace.root.time_s, 6),
        "pid": None,
        "processes": len(trace.processes),
        "space": trace.root.space.value,
        "untraced_processes": trace.untraced_count,
        **_sums(trace),
        "forks": follow.forks,
        "execs": follow.execs,
        "stopped_s": round(follow.stopped_ns / NS_PER_S, 6),
    }
