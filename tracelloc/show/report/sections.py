"""Reports of traces: the list of their sections, and those on sizes, threads, memory and losses."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from tracelloc.dataclass import dataclass
from tracelloc.heap.usable import header_bytes, usable_of
from tracelloc.model.blocks import Blocks
from tracelloc.model.figures import ThreadActivity, ThreadWork
from tracelloc.model.process import FollowCounts, Space
from tracelloc.show.analysis import histograms
from tracelloc.show.presentation import processfacts
from tracelloc.show.presentation.alerts import incompleteness, overhead_line
from tracelloc.show.presentation.facts import summary, thread_facts
from tracelloc.show.presentation.memoryparts import account_age, part_lines
from tracelloc.show.presentation.naming import Namers
from tracelloc.show.report import content, top
from tracelloc.show.report.heap import earlier_part, objects_part
from tracelloc.show.report.suspects import LEGEND, head_line, suspects_part, symbols_part
from tracelloc.show.tables import json_of
from tracelloc.snapshots.snapshot import Snapshot, TraceSnapshot
from tracelloc.text import (
    NS_PER_S,
    about_of,
    format_duration,
    format_percent,
    format_size,
    plural,
    printable,
)

# Free bytes in hardly used pages from which a report lists what keeps them.
_NOTABLE_PINNED_BYTES: Final = 1 << 20


def completeness_part(given: content.Request) -> content.SectionContent | None:
    """Makes the section on what the figures lack; None if they are complete."""
    alert = incompleteness(given.snapshot)
    if alert is None:
        return None
    return content.SectionContent([f"==> {alert.sentence}"], repeat_when=alert.key)


def memory_part(given: content.Request) -> content.SectionContent:
    """Makes the section of lines on memory, and on programs that were executed."""
    snapshot = given.snapshot
    lines = list(processfacts.memory_lines(snapshot))
    found = processfacts.account(snapshot)
    is_traced = found is None or found.is_mostly_traced
    # Forecasts come and go.
    news = {("traced", is_traced), ("lines", len(lines)), ("programs", snapshot.target.exec_count)}
    if snapshot.target.exec_count:
        programs = plural(snapshot.target.exec_count, "program")
        lines.append(f"{programs} executed since, now {printable(snapshot.target.command)}")
    return content.SectionContent([f"==> {line}" for line in lines], novelties=news)


def account_part(given: content.Request) -> content.SectionContent | None:
    """Makes the table of resident memory by part; None if it is not known."""
    usage, first = given.snapshot.usage, given.snapshot.first_usage
    if usage is None or not usage.account.parts:
        return None
    before = None if first is usage or first is None else first.account
    lines = [f"==> resident memory{account_age(given.snapshot)}:"]
    lines += [f"    {line}" for line in part_lines(usage.account, before)]
    lines += [f"    {printable(note)}" for note in usage.notes]
    entries = []
    for pin in usage.pinned.by_stack[: given.style.top]:
        blocks = plural(pin.blocks.count, "block")
        text = f"{blocks} ({format_size(pin.blocks.size_bytes)}) keep {format_size(pin.kept_bytes)}"
        figures = {"kept_bytes": pin.kept_bytes, "allocations": pin.blocks.count}
        entries.append(content.Entry(pin.stack, f"{text} of pages otherwise free", figures))
    if usage.pinned.kept_bytes < _NOTABLE_PINNED_BYTES or not entries:
        return content.SectionContent(lines, repeat_when=True)
    lines.append("==> call stacks whose blocks keep most of the pages that are hardly used:")
    return content.SectionContent(lines, {}, "pinned_by", entries, repeat_when=True)


def losses_part(given: content.Request) -> content.SectionContent:
    """Makes the section of lines on the overhead of tracing, and on losses."""
    snapshot = given.snapshot
    losses, lines = snapshot.losses, [overhead_line(snapshot), processfacts.losses_line(snapshot)]
    state = losses.events, losses.overflows, tuple(losses.failed_tasks.items())
    return content.SectionContent([f"==> {line}" for line in lines], repeat_when=state)


def sizes_part(given: content.Request) -> content.SectionContent:
    """Makes the section of live blocks by requested size, and stacks that waste most.

    In JSON, ``bins`` go from the smallest sizes on, ``top_sizes`` by the bytes they hold. A
    bin's ``from_bytes`` and ``to_bytes`` are the smallest and the largest size in it.
    ``usable_bytes`` and ``waste_bytes`` are of blocks whose usable size is known, all but
    ``unknown_allocations``; null if sizes were not measured. ``dropped_allocations`` are in no
    other figure, as their process has ended.
    """
    snapshot = given.snapshot
    blocks = snapshot.blocks if snapshot.blocks is not None else Blocks.empty()
    sampled, sizes = snapshot.sample_bytes, snapshot.usable
    usable = None if sizes is None else usable_of(sizes, blocks)
    total = None
    if sizes is not None and usable is not None and len(blocks):
        total = histograms.total_waste(blocks, sampled, usable, header_bytes(sizes.main))
    bins = histograms.size_bins(blocks, sampled, usable)
    frequent = histograms.frequent_sizes(blocks, given.style.top, sampled, usable)
    dropped_count = 0 if len(blocks) else snapshot.live_count
    facts: dict[str, Any] = {
        "bins": [{"from_bytes": bin_.low, "to_bytes": bin_.high, **_held(bin_)} for bin_ in bins],
        "top_sizes": [{"size_bytes": size.low, **_held(size)} for size in frequent],
        "dropped_allocations": dropped_count,
        **_waste(None if total is None else total.waste),
    }
    if dropped_count:
        count = f"{given.about}{plural(dropped_count, 'allocation')}"
        gone = f"==> sizes of {count} are not known: the process has ended"
        return content.SectionContent([gone], facts)
    lines = ["==> live blocks by size:"]
    lines += [_line(f"{bin_.low}-{bin_.high} B", bin_, given) for bin_ in bins]
    lines.append(f"==> {len(frequent)} sizes with most bytes:")
    lines += [_line(f"{size.low} B", size, given) for size in frequent]
    if sizes is None or usable is None or total is None:
        return content.SectionContent(lines, facts)
    entries = []
    for index, n, waste in histograms.wasteful_stacks(blocks, sampled, usable, given.style.top):
        text = f"{processfacts.waste_text(waste, given.about)} in {given.about}"
        text += plural(n, "allocation")
        entries.append(content.Entry(index, text, {"allocations": n, **_waste(waste)}))
    lines.append(f"==> {processfacts.waste_line(sizes, total, given.about)}")
    lines.append(f"==> {len(entries)} stacks that waste most:")
    facts |= {
        "malloc_library": sizes.main.library.value, "uncertain": processfacts.why_uncertain(sizes),
        "header_bytes": total.header_bytes, "read_allocations": total.read_count,
        "computed_allocations": total.computed_count,
    }  # fmt: skip
    return content.SectionContent(lines, facts, "top_stacks", entries)


def _line(label: str, held: histograms.Bin, given: content.Request) -> str:
    line = f"    {label:>24}: {given.amount(held.size_bytes, held.count)}"
    if held.waste is not None and held.count:
        line += f", {processfacts.waste_text(held.waste, given.about)}"
    return line


def _held(held: histograms.Bin) -> dict[str, Any]:
    return {"allocations": held.count, "bytes": held.size_bytes, **_waste(held.waste)}


def _waste(waste: histograms.Waste | None) -> dict[str, Any]:
    if waste is None:
        return dict.fromkeys(("usable_bytes", "waste_bytes", "unknown_allocations"))
    return json_of(waste, {"unknown_count": "unknown_allocations"})


def threads_part(given: content.Request) -> content.SectionContent:
    """Makes the section of the busiest threads, the largest flows, and stacks with flows."""
    snapshot = given.snapshot
    assert snapshot.threads is not None
    wandering, order = content.largest(snapshot.totals.remote_count, given.style.top)
    lines = list(_lines(snapshot.threads, given))
    if order:
        lines.append(f"==> {len(order)} top stacks out of {wandering:,} with such frees:")
    entries = [
        content.Entry(
            stat.index,
            f"{given.amount(stat.remote_bytes, stat.remote_count)} freed by other threads, "
            f"{content.share_of_allocations(stat, stat.remote_count)}",
            {
                "remote_freed_bytes": stat.remote_bytes,
                "remote_frees": stat.remote_count,
                "allocations": stat.allocated_count,
            },
        )
        for stat in snapshot.stack_stats(order)
    ]
    return content.SectionContent(lines, thread_facts(snapshot.threads), "top_allocators", entries)


def _lines(activity: ThreadActivity, given: content.Request) -> Iterator[str]:
    threads, flows = activity.threads[: given.style.top], activity.flows[: given.style.top]
    yield f"==> {len(threads)} top threads out of {len(activity.threads):,}:"
    for number, thread in enumerate(threads):
        yield f"  {number:>4}: {_thread(thread, activity, given)}"
    remote = given.amount(activity.remote_freed_bytes, activity.remote_freed_count)
    yield (
        f"==> {remote} freed by other threads ({format_percent(activity.remote_share)} of all "
        f"frees), {len(flows)} top flows out of {len(activity.flows):,}:"
    )
    for number, flow in enumerate(flows):
        names = _name(flow.maker_tid, activity), _name(flow.ender_tid, activity)
        moved = given.amount(flow.size_bytes, flow.count)
        yield f"  {number:>4}: {moved} from {names[0]} to {names[1]}"


def _thread(thread: ThreadWork, activity: ThreadActivity, given: content.Request) -> str:
    made = given.amount(thread.allocated_bytes, thread.allocated_count)
    freed = given.amount(thread.freed_bytes, thread.freed_count)
    parts = [f"{_name(thread.tid, activity)}: allocated {made}", f"freed {freed}"]
    if thread.freed_for_others_count:
        amount = given.amount(thread.freed_for_others_bytes, thread.freed_for_others_count)
        parts.append(f"of which {amount} for other threads")
    if thread.freed_by_others_count:
        amount = given.amount(thread.freed_by_others_bytes, thread.freed_by_others_count)
        parts.append(f"{amount} freed by other threads")
    return ", ".join(parts)


def _name(tid: int, activity: ThreadActivity) -> str:
    if not tid:
        return "unknown threads"
    name = activity.names.get(tid)
    return f"thread {tid}" if name is None else f"thread {tid} ({printable(name)})"


@dataclass(frozen=True, slots=True)
class ReportSection:
    """A section of reports: how it is made and where it appears."""

    # Makes the section; returns None if this report does not have it.
    make: Callable[[content.Request], content.SectionContent | None]
    # The JSON field of the section; None if its fields are the report's own.
    name: str | None = None
    json_place: int = 0  # Position of standard sections in JSON; equal ones appear in list order
    # Whether the section appears only if requested: those of `optional.SECTIONS`.
    is_optional: bool = False


# All sections, in the order of text reports.
REPORT: Final = (
    ReportSection(completeness_part),
    ReportSection(suspects_part),
    ReportSection(top.allocations_part),
    ReportSection(top.old_allocations_part, json_place=2),
    ReportSection(top.allocators_part),
    ReportSection(earlier_part, "earlier"),
    ReportSection(top.since_mark_part, "since_mark"),
    ReportSection(top.peak_part, "peak", is_optional=True),
    ReportSection(top.temporary_part, "temporary", is_optional=True),
    ReportSection(sizes_part, "sizes", is_optional=True),
    ReportSection(top.types_part, "types", is_optional=True),
    ReportSection(threads_part, "threads", is_optional=True),
    ReportSection(objects_part, "objects", is_optional=True),
    ReportSection(memory_part),
    ReportSection(account_part),
    ReportSection(top.mappings_part, "mappings", json_place=1),
    ReportSection(symbols_part),
    ReportSection(losses_part),
)


def parts_of(given: content.Request) -> list[tuple[ReportSection, content.SectionContent]]:
    """Returns the sections of a report, after looking up the names of their stacks."""
    asked = [each for each in REPORT if not each.is_optional or each.name in given.style.show]
    made = [(section, section.make(given)) for section in asked]
    parts = [(section, part) for section, part in made if part is not None]
    indices = {stack for _, part in parts for stack in part.stacks}
    given.namer.prepare(given.snapshot, indices, given.namer.patience_s)
    return parts


def report_lines(given: content.Request) -> Iterator[str]:
    """Yields the report as text, without what is unchanged; a full one's last line is empty."""
    yield head_line(given)
    if given.earlier.is_first:
        yield f"==> {LEGEND}"
    for section, part in parts_of(given):
        yield from part.text(section, given)
    if given.earlier.is_full:
        yield ""


def report_facts(given: content.Request) -> dict[str, Any]:
    """Returns the summary and the sections' fields, without what rarely changes and has not."""
    report = summary(given.snapshot)
    for key in ("malloc_libraries", "slow_probes"):
        if not given.earlier.has_changed(key, json.dumps(report[key])):
            del report[key]
    if not given.earlier.is_full:
        report["lost"] = {cause: count for cause, count in report["lost"].items() if count}
    parts = parts_of(given)
    parts.sort(key=lambda pair: (pair[0].is_optional, pair[0].json_place))
    for section, part in parts:
        fields = part.json(given)
        report |= fields if section.name is None else {section.name: fields}
    return report if given.earlier.is_full else _shortened(report)


_REPEATED: Final = 3  # Stacks of a group that every report repeats


def _shortened(report: dict[str, Any]) -> dict[str, Any]:
    report["memory"].pop("explanation", None)
    for suspect in report["suspects"]:
        if suspect["group"] is not None and "stack" not in suspect:
            suspect["group"] = {"stacks": suspect["group"]["stacks"][:_REPEATED]}
    return {key: _without_nulls(value) for key, value in report.items() if value is not None}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


# Processes as they were when the mark was set, by their numbers in the trace.
Marks = Mapping[int, Snapshot]


def trace_report(
    trace: TraceSnapshot, namers: Namers, style: content.ReportStyle, marks: Marks, *, ended: bool,
    earlier: content.EarlierReports | None = None, as_json: bool = False,
) -> str:  # fmt: skip
    """Returns the report as text, or as lines of JSON. ``ended``: includes ended processes."""
    earlier = content.EarlierReports() if earlier is None else earlier
    shown = trace.processes if ended or len(trace.processes) == 1 else trace.living
    lines: list[str] = []
    for one in shown:
        number = one.target.number
        said = earlier.begin_process(number)
        given = content.Request(one, namers.namer_of(one.target), style, marks.get(number), said)
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
        "time": round(trace.root.time_s, 6), "pid": None, "processes": len(trace.processes),
        "space": trace.root.space.value, "untraced_processes": trace.untraced_count, **_sums(trace),
        "forks": follow.forks, "execs": follow.execs,
        "stopped_s": round(follow.stopped_ns / NS_PER_S, 6),
    }  # fmt: skip
