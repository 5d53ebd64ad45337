"""The memory of all processes and groups of a machine, and how it grows; as text and JSON.

It is kept for an hour, in samples that are sparser with age: a sample's neighbours are no closer
than a twentieth of its age, so there are some 150, whatever the interval.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final

import numpy as np

from tracelloc.dataclass import dataclass
from tracelloc.model.figures import F64, I64
from tracelloc.system.groupnames import GroupName
from tracelloc.text import (
    format_duration,
    format_estimate,
    format_size,
    format_time,
    plural,
    printable,
    signed_size,
)

LONGEST_S: Final = 3700.0
_LEAST_S: Final = 10.0  # Growth in less time says nothing
_SPACING: Final = 0.05
_DIP: Final = 0.25
# By how much something may shrink without a pause: a part of what it has grown by since then.
_LEAST_DIP_BYTES: Final = 64 << 10
_LEAST_GROWTH_BYTES: Final = 256 << 10  # Less counts as no growth
# Growth has ended if in this part of its time, or so many seconds if that is less, it was slower
# than so much of its average.
_PAUSE: Final = 0.125
_LEAST_PAUSE_S: Final = 30.0
_SLOWER: Final = 0.1


class MemoryKind(Enum):
    """A kind of memory of a process or control group. The value is displayed in sentences."""

    ANONYMOUS = "memory without a file"
    FILES = "pages of mapped files"
    SHARED = "shared memory"
    SWAPPED = "memory that is swapped out"
    PAGE_TABLES = "page tables"
    PAGE_CACHE = "page cache"
    KERNEL = "memory of the kernel"

    @property
    def is_reclaimable(self) -> bool:
        """Whether the kernel drops such memory when it needs some, so that it is no growth."""
        return self in (MemoryKind.FILES, MemoryKind.PAGE_CACHE)

    @property
    def title(self) -> str:
        return self.name.lower().replace("_", " ")


PROCESS_KINDS: Final = (
    MemoryKind.ANONYMOUS, MemoryKind.FILES, MemoryKind.SHARED, MemoryKind.SWAPPED,
    MemoryKind.PAGE_TABLES,
)  # fmt: skip
GROUP_KINDS: Final = (  # In the order of `group_kinds`
    MemoryKind.ANONYMOUS, MemoryKind.SHARED, MemoryKind.PAGE_CACHE, MemoryKind.KERNEL,
)  # fmt: skip

WINDOWS_S: Final = (60.0, 600.0, 3600.0)  # The times over which growth is measured, in seconds


@dataclass(frozen=True, slots=True)
class MemoryTrend:
    """The memory of a process or control group, and how what can't be reclaimed has changed."""

    kinds: Mapping[MemoryKind, int]  # Bytes of each kind
    # Bytes per minute over each of `WINDOWS_S`, or over the known time; None if that is less than
    # half of the window (the first window: less than ten seconds).
    growth: tuple[int | None, ...]
    # Seconds for which the memory has grown without a pause; 0: it does not grow.
    growing_s: float = 0.0
    growing_kind: MemoryKind | None = None  # The kind that has grown most; None: none has

    @property
    def size_bytes(self) -> int:
        return sum(self.kinds.values())

    @property
    def used_bytes(self) -> int:
        """Bytes of the kinds that the kernel can't reclaim."""
        return sum(size for kind, size in self.kinds.items() if not kind.is_reclaimable)

    @property
    def kind(self) -> MemoryKind:
        """The kind that grows, or else the one with most bytes."""
        largest = max(self.kinds, key=self.kinds.__getitem__)
        return (self.growing_s and self.growing_kind) or largest

    @property
    def rate(self) -> int:
        """Growth in bytes per minute over ten minutes, or over the last one if that is unknown."""
        last, longer = self.growth[:2]
        return longer if longer is not None else last or 0


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """The memory of one process. The process controls all text: treat it as hostile."""

    pid: int
    command: str  # Short name (comm)
    arguments: str  # Command line; the short name if there is none
    user: str
    trend: MemoryTrend  # Memory and its growth
    group: str  # The path of its control group; empty if it is unknown or there is none
    # Resident memory of which pages that are mapped n times count by 1/n (Pss of smaps_rollup,
    # proc_pid_smaps_rollup(5)); None: it is not among the largest, or may not be read.
    pss_bytes: int | None = None

    @property
    def held_bytes(self) -> int:
        """What would come back about if the process ended; if that is unknown, all its memory."""
        if self.pss_bytes is None:
            return self.trend.size_bytes
        kinds = self.trend.kinds
        return self.pss_bytes + kinds[MemoryKind.SWAPPED] + kinds[MemoryKind.PAGE_TABLES]


@dataclass(frozen=True, slots=True)
class GroupMemory:
    """The memory of one control group and all groups below it."""

    path: str
    name: str  # A short name: `container shop/web-1/nginx`, `nginx.service`, else the path
    processes: int  # Number of processes in the group and in groups below it
    trend: MemoryTrend
    limit_bytes: int | None  # None: the group has no limit
    free_bytes: int | None  # Bytes left below the limit, and those that the kernel can reclaim
    owner: GroupName = GroupName()

    @property
    def limit_in_s(self) -> float | None:
        """Seconds until the limit is reached if growth goes on; None: it does not grow."""
        if self.free_bytes is None or self.trend.rate <= 0 or not self.trend.growing_s:
            return None
        return self.free_bytes / self.trend.rate * 60


@dataclass(frozen=True, slots=True)
class MachineMemory:
    """The memory of a machine, its processes and control groups at one time."""

    time_s: float  # Seconds since 1970
    observed_s: float  # How long the machine has been watched
    total_bytes: int
    available_bytes: int
    swap_bytes: int
    swap_used_bytes: int
    processes: Sequence[ProcessMemory]
    groups: Sequence[GroupMemory]  # Control groups that have a limit or a name
    unread: int = 0  # Processes that were not read for want of file descriptors


class GrowthHistory:
    """Samples of bytes, with a row per process or group while it exists."""

    def __init__(self, kinds: Sequence[MemoryKind]) -> None:
        """``kinds``: what the figures of a row are."""
        self._kinds = kinds
        # The columns that count as growth
        self._grow = np.array([not kind.is_reclaimable for kind in kinds])
        self._times: list[float] = []
        self._samples: list[I64] = []
        self._born: list[float] = []
        self._free: list[int] = []

    def add(self, time_s: float) -> int:
        """Returns a new row, whose first figures will be recorded for ``time_s``."""
        if self._free:
            row = self._free.pop()
            self._born[row] = time_s
            return row
        self._born.append(time_s)
        return len(self._born) - 1

    def remove(self, row: int) -> None:
        self._free.append(row)

    def record(self, time_s: float, figures: dict[int, Sequence[int]]) -> None:
        """Adds a sample: the figures of all rows at ``time_s``, which must increase."""
        sample = np.zeros((len(self._born), len(self._kinds)), np.int64)
        for row, values in figures.items():
            sample[row] = values
        self._times.append(time_s)
        self._samples.append(sample)
        self._thin(time_s)

    def _thin(self, now_s: float) -> None:
        times, kept = self._times, [0]
        for index in range(1, len(times) - 1):
            if times[index + 1] - times[kept[-1]] > _SPACING * (now_s - times[index]):
                kept.append(index)
        kept = [n for n in dict.fromkeys([*kept, len(times) - 1]) if now_s - times[n] <= LONGEST_S]
        self._times = [times[index] for index in kept]
        self._samples = [self._samples[index] for index in kept]

    def _before(self, rows: Sequence[int], window_s: float | F64) -> tuple[F64, I64]:
        """Returns times and figures of rows a window ago, or of their first samples."""
        chosen = np.asarray(rows, np.intp)
        times = np.asarray(self._times)
        born = np.asarray(self._born)[chosen]
        ago = np.searchsorted(times, times[-1] - window_s, side="right") - 1
        indices = np.maximum(ago, np.searchsorted(times, born))
        figures = np.empty((len(chosen), len(self._kinds)), np.int64)
        for index in np.unique(indices):
            of_index = indices == index
            figures[of_index] = self._samples[index][chosen[of_index]] * self._grow
        return times[indices], figures

    def trends(self, rows: Sequence[int]) -> list[MemoryTrend]:
        if not rows:
            return []
        sizes = self._samples[-1][np.asarray(rows, np.intp)]
        now = sizes * self._grow
        rates: list[list[int | None]] = []
        for window_s in WINDOWS_S:
            times, then = self._before(rows, window_s)
            seconds = self._times[-1] - times
            least_s = window_s / 2 if rates else _LEAST_S
            rate = (now - then).sum(axis=1) * 60 / np.maximum(seconds, least_s)
            rates.append([
                round(each) if is_long else None
                for each, is_long in zip(rate.tolist(), (seconds >= least_s).tolist(), strict=True)
            ])  # fmt: skip
        grown = now - self._before(rows, WINDOWS_S[1])[1]
        return [
            MemoryTrend(
                dict(zip(self._kinds, figures, strict=True)), tuple(growth), since,
                self._kinds[column] if by[column] > 0 else None,
            )
            for figures, since, column, by, *growth in zip(
                sizes.tolist(), self._growing_s(rows), grown.argmax(axis=1).tolist(),
                grown.tolist(), *rates, strict=True,
            )
        ]  # fmt: skip

    def _growing_s(self, rows: Sequence[int]) -> list[float]:
        """Returns for how long each row has grown without a pause; 0 if it does not grow.

        That is the longest time until now in which no dip was larger than a part of the growth,
        unless growth has ended meanwhile.
        """
        chosen = np.asarray(rows, np.intp)
        born = np.asarray(self._born)[chosen]
        now = self._samples[-1][chosen][:, self._grow].sum(axis=1)
        least, since = now.copy(), np.full(len(chosen), self._times[-1])
        deepest = np.zeros(len(chosen), np.int64)
        for time_s, sample in zip(self._times[-2::-1], self._samples[-2::-1], strict=True):
            (living,) = np.nonzero(born <= time_s)
            sizes = sample[chosen[living]][:, self._grow].sum(axis=1)
            np.maximum.at(deepest, living, sizes - least[living])
            grown = now[living] - sizes
            is_start = (grown >= _LEAST_GROWTH_BYTES) & (sizes <= least[living])
            is_start &= deepest[living] <= np.maximum(_DIP * grown, _LEAST_DIP_BYTES)
            least[living] = np.minimum(least[living], sizes)
            since[living[is_start]] = time_s
        growing_s = self._times[-1] - since
        recent_s, rates = np.maximum(_LEAST_PAUSE_S, _PAUSE * growing_s), []
        for window_s in (growing_s, recent_s):
            times, then = self._before(rows, window_s)
            rates.append((now - then.sum(axis=1)) / np.maximum(self._times[-1] - times, 1.0))
        return [float(each) for each in np.where(rates[1] > _SLOWER * rates[0], growing_s, 0.0)]


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
    if kind is None:
        return ""
    is_heap = kind in (MemoryKind.ANONYMOUS, MemoryKind.SWAPPED)
    what = " shows what allocates it" if is_heap else " --mmap shows what maps it"
    return f": tracelloc -p {process.pid}{what} ({kind.value})"


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
        "pid": process.pid, "command": process.command, "arguments": process.arguments,
        "user": process.user, "group": process.group or None, "pss_bytes": process.pss_bytes,
        **_trend_json(process.trend),
    }  # fmt: skip


def _group_json(group: GroupMemory) -> dict[str, Any]:
    return {
        "path": group.path, "name": group.name,
        **{key: value or None for key, value in group.owner.labels().items()},
        "processes": group.processes, **_trend_json(group.trend), "limit_bytes": group.limit_bytes,
        "free_bytes": group.free_bytes, "limit_in_s": group.limit_in_s,
    }  # fmt: skip


def _trend_json(trend: MemoryTrend) -> dict[str, Any]:
    rates = zip(_WINDOW_NAMES, trend.growth, strict=True)
    return {
        "memory_bytes": trend.size_bytes,
        **{f"growth_{name}_bytes_per_min": rate for name, rate in rates},
        "growing_s": round(trend.growing_s, 3),
        **{f"{kind.name.lower()}_bytes": size for kind, size in trend.kinds.items()},
        "growing_kind": trend.growing_kind and trend.growing_kind.name.lower(),
    }
