"""A frozen picture of the live table, and of a whole trace: nothing in it changes any more."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.heap.blocks import Blocks
from tracelloc.heap.eventlog import LoggedEvents
from tracelloc.heap.history import History
from tracelloc.heap.ranges import Mappings
from tracelloc.heap.series import Points
from tracelloc.heap.stacks import Frames, Stacks
from tracelloc.heap.table import Peak
from tracelloc.heap.temporary import DEFAULT_POLICY, TemporaryPolicy
from tracelloc.heap.totals import I64, Totals
from tracelloc.model.gaps import Gap
from tracelloc.model.mallocs import FoundLibrary
from tracelloc.model.memoryusage import MemoryUsage
from tracelloc.model.overhead import Overhead
from tracelloc.model.process import FollowCounts, Target
from tracelloc.model.runtimes import Runtime
from tracelloc.model.stackflags import PARTIAL_REASONS, StackFlag
from tracelloc.model.tracedwindow import TracedWindow
from tracelloc.snapshots.blocks import BlockSelection, UsableSizes
from tracelloc.snapshots.losses import LossCounts
from tracelloc.snapshots.objects import ObjectFindings
from tracelloc.snapshots.threadactivity import ThreadActivity
from tracelloc.verdict.findings import Findings


@dataclass(frozen=True, slots=True)
class StackStat:
    """Figures of one call stack."""

    index: int
    live_bytes: int
    live_count: int
    allocated_bytes: int
    allocated_count: int
    growth_bytes_per_min: int
    peak_bytes: int = 0
    """Live bytes at the process's high-water mark."""
    peak_count: int = 0
    temporary_bytes: int = 0
    """Bytes of temporary allocations (``Snapshot.temporary``)."""
    temporary_count: int = 0
    remote_bytes: int = 0
    """Bytes freed by another thread than the allocating one."""
    remote_count: int = 0


_FIGURES: Final = tuple(field.name for field in fields(StackStat) if field.name != "index")


@dataclass(frozen=True, slots=True)
class ProcessSum:
    """The processes that a merged snapshot is the sum of."""

    process_count: int
    ended_count: int
    """How many of them have ended."""
    ended_bytes: int
    """What these held at their ends: part of all figures."""


@dataclass(frozen=True, slots=True)
class CaptureStatus:
    """The capture at the moment of a snapshot, for all processes."""

    time_s: float
    """Wall clock, seconds since 1970."""
    now_ns: int
    """CLOCK_MONOTONIC."""
    counters: npt.NDArray[np.uint64]
    """Indexed by ``abi.Counter``."""
    overflows: int = 0
    """How often the ring of events was found to have been full."""
    is_shared: bool = False
    """The counters are of several processes or programs."""
    failed_tasks: Mapping[str, int] = field(default_factory=dict)
    """Tasks of the trace that have failed, and how often."""


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """A process at the moment of a snapshot, apart from its heap."""

    target: Target
    started_ns: int
    """When its tracing began, CLOCK_MONOTONIC."""
    overhead: Overhead
    cpu_cores: float | None = None
    """Processors that it uses, probes included, over some seconds; None until it is known."""
    rss_bytes: int | None = None
    """Resident memory; None once it has ended."""
    memory: MemoryUsage | None = None
    """What it has in memory; once it has ended, what it had."""
    series: Points | None = None
    allocators: tuple[FoundLibrary, ...] = ()
    """What is traced."""
    runtimes: tuple[Runtime, ...] = ()
    """Runtimes in the process that have a heap of their own."""
    mappings: Mappings | None = None
    """What it has mapped by itself; None: not traced."""
    findings: Findings | None = None
    """Which stacks leak, as of some seconds ago; None until there was time to look."""
    objects: ObjectFindings | None = None
    """Objects of a Python program by type; None: it is none, or they were not counted yet."""
    stack_methods: Mapping[str, str] = field(default_factory=dict)
    """By file of code, in words: by what stacks are followed through it."""
    thread_names: Mapping[int, str] = field(default_factory=dict)
    """By thread id, if threads or blocks are wanted."""
    gaps: tuple[Gap, ...] = ()
    """What the figures lack, in the order of time; empty: they are complete."""
    window: TracedWindow | None = None
    """Which part of the time all this is of; None: all since ``started_ns``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot(ProcessStatus):
    """Everything that views show, as it was at one moment."""

    time_s: float
    """Wall clock, seconds since 1970."""
    now_ns: int
    """The moment, CLOCK_MONOTONIC, as births of blocks are given; a window's end if it is over."""
    totals: Totals
    """Per stack; a copy."""
    growth_per_min: I64
    """By how many bytes a minute each stack has grown lately."""
    stacks: Stacks
    """Frames by index; only ever grows."""
    events: int
    """Events applied since the start."""
    losses: LossCounts
    truncated_stacks: int
    """Stacks deeper than what is kept."""
    broken_stacks: int
    """Stacks that end early, in code without frame pointers."""
    partial_allocations: int
    """Allocations without a whole stack: memory or unwind information was missing, or all of it."""
    unknown_stacks: int
    """Stacks of which nothing but the id is known: their record was lost."""
    top_blocks: BlockSelection
    """The largest live blocks, and the sums of all."""
    old_blocks: BlockSelection | None
    """Blocks of at least the requested age."""
    live_history: tuple[tuple[int, int], ...] = ()
    """(time since tracing began in ns, outstanding bytes then), oldest first."""
    blocks: Blocks | None = None
    """All live blocks, if wanted."""
    usable: UsableSizes | None = None
    """What the allocator gives for these blocks, if wanted and there is an allocator."""
    history: History = field(default_factory=lambda: History(0))
    peak: Peak | None = None
    """The high-water mark, counts in whole blocks; None before any allocation."""
    temporary: TemporaryPolicy = DEFAULT_POLICY
    """The policy that says which allocations are temporary."""
    unordered_count: int = 0
    """Blocks of which it is not known whether they were temporary."""
    threads: ThreadActivity | None = None
    logged: LoggedEvents | None = None
    """Every event since the last snapshot, if they were asked for."""
    """If wanted."""
    merged: ProcessSum | None = None
    """None: it is of one process."""

    @property
    def elapsed_ns(self) -> int:
        """Nanoseconds since tracing began, or length of the window that this is of."""
        return self.now_ns - self.started_ns

    @property
    def tracing_ns(self) -> int:
        """Nanoseconds since tracing began."""
        return self.elapsed_ns if self.window is None else self.window.total_ns

    @property
    def table_number(self) -> tuple[int, int]:
        """Which of the process's tables this is; those of two numbers have nothing in common."""
        return self.target.exec_count, 1 if self.window is None else self.window.number

    @property
    def sample_bytes(self) -> int | None:
        """Mean distance of samples: totals are then estimates. None: they are exact."""
        return self.totals.sample_bytes

    @property
    def live_bytes(self) -> int:
        """Live bytes of all stacks."""
        return int(self.totals.live_bytes.sum())

    @property
    def live_count(self) -> int:
        """Live blocks of all stacks."""
        return int(self.totals.live_count.sum())

    @property
    def count_bounds(self) -> tuple[int, int] | None:
        """(at least, at most) outstanding blocks where events were lost, if that is known."""
        return None if self.sample_bytes is not None else self.losses.bounds(self.live_count)

    @property
    def live_stacks(self) -> int:
        """Stacks that hold at least one block."""
        return int(np.count_nonzero(self.totals.live_count))

    def column(self, figure: str) -> I64:
        """A figure of every stack, by its name in ``StackStat``."""
        at_peak = {"peak_bytes": "live_bytes", "peak_count": "live_count"}.get(figure)
        if at_peak is not None and self.peak is None:
            return np.zeros(len(self.totals), np.int64)
        column: I64
        if at_peak is not None:
            column = getattr(self.peak, at_peak)
        elif figure == "growth_bytes_per_min":
            column = self.growth_per_min
        else:
            column = getattr(self.totals, figure)
        return column

    def top_stacks(self, n: int | None = None, *, freed: bool = False) -> list[StackStat]:
        """The stacks that hold most bytes, largest first; only those that hold a block.

        With ``freed`` also those that ever allocated one.
        """
        totals = self.totals
        held = totals.live_bytes
        holding = np.flatnonzero(totals.allocated_count if freed else totals.live_count)
        order = holding[np.lexsort((holding, -held[holding]))][:n]
        return self.stack_stats(order.tolist())

    def stack_stats(self, indices: Sequence[int]) -> list[StackStat]:
        """The figures of some stacks."""
        columns = [self.column(name)[indices].tolist() for name in _FIGURES]
        return [StackStat(*row) for row in zip(indices, *columns, strict=True)]

    def why_partial(self, index: int) -> str | None:
        """Why a stack ends before its outermost frame; None if it is whole."""
        flags = self.stacks.flags(index)
        return _why_partial(flags) if flags else None

    def frames(self, index: int) -> Frames:
        """Return addresses of a stack, innermost first; empty if they are not known."""
        return self.stacks.frames(index) or ()


@functools.cache
def _why_partial(flags: StackFlag) -> str | None:
    return next((why for flag, why in PARTIAL_REASONS.items() if flags & flag), None)


@dataclass(frozen=True, slots=True)
class TraceSnapshot:
    """Snapshots of all processes at one moment, for every report, file, rule and screen."""

    processes: tuple[Snapshot, ...]
    """In the order of their start, the first one being ``root``; those included that ended."""
    untraced_count: int = 0
    """Processes that were seen and not traced: more than ``--follow-limit`` allows, or they
    could not be probed."""
    follow: FollowCounts | None = None
    """None: children are not followed."""

    @property
    def root(self) -> Snapshot:
        """The process that was asked for."""
        return self.processes[0]

    def of(self, number: int) -> Snapshot:
        """A process by its number; the root where there is none of this number."""
        return next((one for one in self.processes if one.target.number == number), self.root)

    @property
    def living(self) -> tuple[Snapshot, ...]:
        """Processes that have not ended."""
        return tuple(one for one in self.processes if not one.target.has_ended)
