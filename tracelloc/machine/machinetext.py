"""The memory of a machine's processes and control groups, as text and JSON."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from tracelloc.machine.machinememory import (
    GroupMemory,
    MachineMemory,
    MemoryKind,
    MemoryTrend,
    ProcessMemory,
)
from tracelloc.text import (
    format_duration,
    format_estimate,
    format_size,
    format_time,
    plural,
    printable,
    signed_size,
)

_MOST_HINTS: Final = 3
_HINT_AFTER_S: Final = 60.0  # Growth of less time is no reason to advise anything
_HINT_BYTES_PER_MIN: Final = 64 << 10
_COMMAND_WIDTH: Final = 100  # Characters of a command line that a row shows
_WINDOW_NAMES: Final = ("1m", "10m", "60m")
_UNKNOWN: Final = "–"


def by_growth(process: ProcessMemory) -> tuple[int, int, int]:
    """A sort key: the fastest growing first, then the largest."""
    return -process.trend.rate, -process.held_bytes, process.pid


def by_size(process: ProcessMemory) -> tuple[int, int]:
    """A sort key: the largest first."""
    return -process.held_bytes, process.pid


def machine_lines(machine: MachineMemory, rows: Sequence[ProcessMemory], top: int) -> Iterator[str]:
    """Yields the lines of a text report, the last one empty."""
    yield headline(machine)
    yield (
        f"{'memory':>10} {'PSS':>9} {'swapped':>9} {'growth/min:1m':>13} {'10m':>11} {'60m':>11} "
        f"{'for':>8} {'pid':>8}  {'kind':11}  command"
    )
    for process in rows[:top]:
        swapped = process.trend.kinds[MemoryKind.SWAPPED]
        yield (
            f"{format_size(process.trend.size_bytes):>10} "
            f"{pss_text(process):>9} "
            f"{format_size(swapped) if swapped else _UNKNOWN:>9} "
            f"{_rates(process.trend)} {process.pid:>8}  {process.trend.kind.title:11}  "
            f"{_cropped(process.arguments)}"
        )
    yield from _rest(len(rows) - top)
    yield from _groups(machine.groups, top)
    yield from hints(rows)
    if machine.unread:
        yield f"{plural(machine.unread, 'process')} not read: too few file descriptors (ulimit -n)"
    yield ""


def headline(machine: MachineMemory) -> str:
    """Returns the first line of a report: the machine's memory."""
    used = machine.total_bytes - machine.available_bytes
    text = (
        f"==> {format_time(machine.time_s)} {len(machine.processes):,} processes, "
        f"{format_size(used)} of {format_size(machine.total_bytes)} in use"
    )
    if machine.swap_bytes:
        swap = format_size(machine.swap_bytes)
        text += f", {format_size(machine.swap_used_bytes)} of {swap} swap"
    return text + f", watched {format_duration(machine.observed_s)}"


def pss_text(process: ProcessMemory) -> str:
    """Formats the proportional set size of a process, if it is known."""
    return _UNKNOWN if process.pss_bytes is None else format_size(process.pss_bytes)


def _rates(trend: MemoryTrend) -> str:
    one, ten, sixty = [_UNKNOWN if rate is None else signed_size(rate) for rate in trend.growth]
    since = format_estimate(trend.growing_s) if trend.growing_s else _UNKNOWN
    return f"{one:>13} {ten:>11} {sixty:>11} {since:>8}"


def _groups(groups: Sequence[GroupMemory], top: int) -> Iterator[str]:
    """Yields a table of control groups, those first that will reach their limits first."""
    if not groups:
        return
    yield (
        f"{'memory':>10} {'limit':>9} {'growth/min:1m':>13} {'10m':>11} {'60m':>11} "
        f"{'for':>8} {'limit in':>8}  {'kind':11}  control group"
    )
    for group in sorted(groups, key=by_urgency)[:top]:
        limit = _UNKNOWN if group.limit_bytes is None else format_size(group.limit_bytes)
        left_s = group.limit_in_s
        left = _UNKNOWN if left_s is None else format_estimate(left_s)
        yield (
            f"{format_size(group.trend.size_bytes):>10} {limit:>9} {_rates(group.trend)} "
            f"{left:>8}  {group.trend.kind.title:11}  {printable(group.name)}, "
            f"{plural(group.processes, 'process')}"
        )
    yield from _rest(len(groups) - top)


def by_urgency(group: GroupMemory) -> tuple[bool, float, int]:
    """A sort key: the groups first that will reach their limits first."""
    left_s = group.limit_in_s
    return left_s is None, left_s or 0.0, -group.trend.size_bytes


def _cropped(arguments: str) -> str:
    text = printable(arguments)
    return text if len(text) <= _COMMAND_WIDTH else f"{text[: _COMMAND_WIDTH - 1]}…"


def _rest(count: int) -> Iterator[str]:
    if count > 0:
        yield f"{'':>10} … {count:,} more"


def hints(rows: Sequence[ProcessMemory]) -> Iterator[str]:
    """Yields advice on processes that have grown without a pause."""
    growing = [
        process for process in rows
        if process.trend.growing_s >= _HINT_AFTER_S and process.trend.rate >= _HINT_BYTES_PER_MIN
    ]  # fmt: skip
    for process in sorted(growing, key=by_growth)[:_MOST_HINTS]:
        yield (
            f"{printable(process.command)} ({process.pid}) has grown by "
            f"{format_size(process.trend.rate)} a minute "
            f"for {format_estimate(process.trend.growing_s)}{_advice(process)}"
        )


def _advice(process: ProcessMemory) -> str:
    kind = process.trend.growing_kind
    if kind in (MemoryKind.ANONYMOUS, MemoryKind.SWAPPED):
        return f", {kind.value}: tracelloc -p {process.pid} shows what allocates it"
    if kind is None:
        return ""
    return f", {kind.value}: tracelloc -p {process.pid} --mmap shows what maps it"


def machine_json(machine: MachineMemory, rows: Sequence[ProcessMemory]) -> str:
    """Returns a report on all processes and groups as one line of JSON."""
    return json.dumps({
        "timestamp": machine.time_s,
        "observed_s": round(machine.observed_s, 3),
        "total_bytes": machine.total_bytes,
        "available_bytes": machine.available_bytes,
        "swap_bytes": machine.swap_bytes,
        "swap_used_bytes": machine.swap_used_bytes,
        "unread_processes": machine.unread,
        "processes": [_process_json(process) for process in rows],
        "groups": [_group_json(group) for group in sorted(machine.groups, key=by_urgency)],
    })  # fmt: skip


def _process_json(process: ProcessMemory) -> dict[str, Any]:
    return {
        "pid": process.pid,
        "command": process.command,
        "arguments": process.arguments,
        "user": process.user,
        "group": process.group or None,
        "pss_bytes": process.pss_bytes,
        **_trend_json(process.trend),
    }


def _group_json(group: GroupMemory) -> dict[str, Any]:
    return {
        "path": group.path,
        "name": group.name,
        "processes": group.processes,
        **_trend_json(group.trend),
        "limit_bytes": group.limit_bytes,
        "free_bytes": group.free_bytes,
        "limit_in_s": group.limit_in_s,
    }


def _trend_json(trend: MemoryTrend) -> dict[str, Any]:
    rates = zip(_WINDOW_NAMES, trend.growth, strict=True)
    return {
        "memory_bytes": trend.size_bytes,
        **{f"growth_{name}_bytes_per_min": rate for name, rate in rates},
        "growing_s": round(trend.growing_s, 3),
        **{f"{kind.name.lower()}_bytes": size for kind, size in trend.kinds.items()},
        "growing_kind": trend.growing_kind and trend.growing_kind.name.lower(),
    }
