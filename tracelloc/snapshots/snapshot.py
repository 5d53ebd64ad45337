"""An immutable copy of the live table (``Snapshot``), and of a whole trace."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracelloc.model.blocks import (
    BlockHolders,
    Blocks,
    BlockSelection,
    EarlierBlocks,
    Mappings,
    SuspectHolders,
    UsableSizes,
)
from tracelloc.model.figures import I64, HeapPoints, History, Mask, Peak, ThreadActivity, Totals
from tracelloc.model.heapusage import HeapUsage, HeapUsages
from tracelloc.model.losses import Gap, LossCounts
from tracelloc.model.objects import ObjectFindings
from tracelloc.model.process import (
    DEFAULT_POLICY,
    FollowCounts,
    FoundLibrary,
    MemoryUsage,
    Overhead,
    Runtime,
    Target,
    TemporaryPolicy,
)
from tracelloc.model.stacks import PARTIAL_REASONS, CallStacks, Frames, StackFlag
from tracelloc.model.verdicts import Findings

# The type of each facet's result, by the facet's name: a frozen dataclass.
FACET_RESULTS: Final[dict[str, Any]] = {
    "heap": HeapUsages,
    "holders": SuspectHolders,
    "objects": ObjectFindings,
}


@dataclass(frozen=True, slots=True)
class StackStat:
    """Figures of one call stack."""

    index: int
    live_bytes: int
    live_count: int
    allocated_bytes: int
    allocated_count: int
    growth_bytes_per_min: int
    peak_bytes: int = 0  # Live bytes at the process's high-water mark
    peak_count: int = 0
    temporary_bytes: int = 0  # Bytes of temporary allocations (`Snapshot.temporary`)
    temporary_count: int = 0
    remote_bytes: int = 0  # Bytes freed by another thread than the allocating one
    remote_count: int = 0


_FIGURES: Final = tuple(field.name for field in fields(StackStat) if field.name != "index")


@dataclass(frozen=True, slots=True)
class ProcessSum:
    """The processes that a merged snapshot is the sum of."""

    process_count: int
    ended_count: int  # How many of them have ended
    ended_bytes: int  # Bytes that these processes held at their ends: part of all figures
    # Per stack, the number of the running process with the most live bytes; -1: there is none.
    main_process: I64 = field(compare=False, default_factory=lambda: np.zeros(0, np.int64))
    # Per stack, how many running processes have live blocks.
    sharing: I64 = field(compare=False, default_factory=lambda: np.zeros(0, np.int64))


@dataclass(frozen=True, slots=True)
class CaptureStatus:
    """The capture at the time of a snapshot, for all processes."""

    time_s: float  # Wall clock, seconds since 1970
    now_ns: int  # CLOCK_MONOTONIC
    counters: npt.NDArray[np.uint64]  # Indexed by `abi.Counter`
    overflows: int = 0  # How often the event ring was found to have been full
    is_shared: bool = False  # Whether the counters are of several processes or programs
    # Tasks of the trace that have failed, and how often.
    failed_tasks: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """A process at the time of a snapshot, apart from its heap."""

    target: Target
    started_ns: int  # When its tracing began, CLOCK_MONOTONIC
    overhead: Overhead
    # Processors that it uses, probes included, averaged over some seconds; None if unknown yet.
    cpu_cores: float | None = None
    rss_bytes: int | None = None  # Resident memory; None once the process has ended
    memory: MemoryUsage | None = None  # Memory usage; once it has ended, the last one
    series: HeapPoints | None = None
    allocators: tuple[FoundLibrary, ...] = ()  # The traced allocators
    runtimes: tuple[Runtime, ...] = ()  # Runtimes in the process that have a heap of their own
    # Blocks from before tracing; None: they are not in the figures.
    earlier: EarlierBlocks | None = None
    mappings: Mappings | None = None  # Mappings of the program itself; None: not traced
    # Verdicts on its stacks, some seconds old; None before the first look.
    findings: Findings | None = None
    # What else was found out about its memory, by facet (`FACET_RESULTS`); one is missing if it was
    # not inspected yet.
    facets: Mapping[str, Any] = field(default_factory=dict)
    # How stacks are unwound through each code file, in words.
    stack_methods: Mapping[str, str] = field(default_factory=dict)
    # By thread id, if threads or blocks are wanted.
    thread_names: Mapping[int, str] = field(default_factory=dict)
    # Missing stretches of the figures, in the order of time; empty: they are complete.
    gaps: tuple[Gap, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot(ProcessStatus):
    """Everything that views show, at one time."""

    time_s: float  # Wall clock, seconds since 1970
    now_ns: int  # Time of the snapshot, CLOCK_MONOTONIC, as births of blocks
    totals: Totals  # Per stack; a copy
    growth_per_min: I64  # Recent growth of each stack, in bytes per minute
    stacks: CallStacks  # Frames by index; only grows
    events: int  # Events applied since the start
    losses: LossCounts
    truncated_stacks: int  # Stacks deeper than the limit of frames
    broken_stacks: int  # Stacks that end early, in code without frame pointers
    # Allocations without a whole stack: it, memory or unwind information was missing.
    partial_allocations: int
    unknown_stacks: int  # Stacks of which only the id is known, as their record was lost
    top_blocks: BlockSelection  # The largest live blocks, and the sums of all live blocks
    old_blocks: BlockSelection | None  # Blocks of at least the requested age
    # (time since tracing began in ns, outstanding bytes then), oldest first.
    live_history: tuple[tuple[int, int], ...] = ()
    blocks: Blocks | None = None  # All live blocks, if wanted
    # Usable sizes of these blocks, if wanted and if there is an allocator.
    usable: UsableSizes | None = None
    history: History = field(default_factory=lambda: History(0))
    # The high-water mark, counts in whole blocks; None before any allocation.
    peak: Peak | None = None
    # The policy that defines which allocations are temporary.
    temporary: TemporaryPolicy = DEFAULT_POLICY
    unordered_count: int = 0  # Blocks of which it is unknown whether they were temporary
    threads: ThreadActivity | None = None  # If wanted
    merged: ProcessSum | None = None  # The merged processes; None: the snapshot is of one process

    @property
    def elapsed_ns(self) -> int:
        """Nanoseconds since tracing began."""
        return self.now_ns - self.started_ns

    @property
    def table_number(self) -> int:
        """Identifies the process's table; tables with different numbers are unrelated."""
        return self.target.exec_count

    @property
    def usage(self) -> HeapUsage | None:
        """Where its resident memory is, some seconds old; None: not known (yet)."""
        usages: HeapUsages | None = self.facets.get("heap")
        return None if usages is None else usages.now

    @property
    def first_usage(self) -> HeapUsage | None:
        """Where it was when tracing began."""
        usages: HeapUsages | None = self.facets.get("heap")
        return None if usages is None else usages.first

    @property
    def holders(self) -> Mapping[int, BlockHolders]:
        """Holders of the blocks of growing suspects, by a suspect's first stack."""
        found: SuspectHolders | None = self.facets.get("holders")
        return {} if found is None else found.by_stack

    @property
    def objects(self) -> ObjectFindings | None:
        """Objects by type; None: its runtime is not supported, or they are not counted yet."""
        found: ObjectFindings | None = self.facets.get("objects")
        return found

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
        """(least, most) outstanding blocks if events were lost and the bounds are known."""
        return None if self.sample_bytes is not None else self.losses.bounds(self.live_count)

    @property
    def are_earlier(self) -> Mask:
        """Which stacks stand for blocks from before tracing, by index."""
        return self.stacks.have(StackFlag.EARLIER)[: len(self.totals)]

    @property
    def live_stacks(self) -> int:
        """Stacks with at least one live block."""
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

    def top_stacks(
        self, n: int | None = None, *, freed: bool = False, with_earlier: bool = True
    ) -> list[StackStat]:
        """The stacks with the most live bytes, largest first; only those with live blocks.

        ``freed``: includes stacks whose blocks were all freed. ``with_earlier``: includes blocks
        from before tracing.
        """
        totals = self.totals
        held = totals.live_bytes
        is_wanted = (totals.allocated_count if freed else totals.live_count) != 0
        if not with_earlier:
            is_wanted &= ~self.are_earlier
        holding = np.flatnonzero(is_wanted)
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
        """Return addresses of a stack, innermost first; empty if unknown."""
        return self.stacks.frames(index) or ()


@functools.cache
def _why_partial(flags: StackFlag) -> str | None:
    return next((why for flag, why in PARTIAL_REASONS.items() if flags & flag), None)


@dataclass(frozen=True, slots=True)
class TraceSnapshot:
    """Snapshots of all processes at one time, for every report, file, rule and screen."""

    # In the order of their start, `root` first; includes ended processes.
    processes: tuple[Snapshot, ...]
    # Processes that were seen but not traced: beyond `--follow-limit`, or impossible to probe.
    untraced_count: int = 0
    follow: FollowCounts | None = None  # None: children are not followed

    @property
    def root(self) -> Snapshot:
        """The process that the trace began with."""
        return self.processes[0]

    def snapshot_of(self, number: int) -> Snapshot:
        """The process with this number; the root if there is none."""
        return next((one for one in self.processes if one.target.number == number), self.root)

    @property
    def living(self) -> tuple[Snapshot, ...]:
        """Processes that have not ended."""
        return tuple(one for one in self.processes if not one.target.has_ended)
