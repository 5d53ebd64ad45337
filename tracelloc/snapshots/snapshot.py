"""Immutable copies of one process's figures (``Snapshot``) and of a trace (``TraceSnapshot``)."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracelloc.dataclass import dataclass, field, fields
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
    Space,
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

    index: int  # Index of the stack
    live_bytes: int
    live_count: int
    allocated_bytes: int
    allocated_count: int
    growth_bytes_per_min: int  # Recent growth
    peak_bytes: int = 0  # Live bytes at the process's high-water mark
    peak_count: int = 0
    temporary_bytes: int = 0  # Bytes of temporary allocations (`Snapshot.temporary`)
    temporary_count: int = 0
    remote_bytes: int = 0  # Bytes freed by another thread than the allocating one
    remote_count: int = 0


_FIGURES: Final = tuple(field.name for field in fields(StackStat) if field.name != "index")


@dataclass(frozen=True, slots=True)
class ProcessSum:
    """Facts on the processes whose sum a merged snapshot is."""

    process_count: int  # How many processes are merged
    ended_count: int  # How many of them have ended
    ended_bytes: int  # Live bytes of ended processes at their ends, which all figures include
    # Per stack, the number of the running process with the most live bytes; -1: there is none.
    main_process: I64 = field(compare=False, default_factory=lambda: np.zeros(0, np.int64))
    # Per stack, how many running processes have live blocks.
    sharing: I64 = field(compare=False, default_factory=lambda: np.zeros(0, np.int64))


@dataclass(frozen=True, slots=True)
class CaptureStatus:
    """State of the whole trace at the time of a snapshot."""

    time_s: float  # Wall clock, seconds since 1970
    now_ns: int  # CLOCK_MONOTONIC
    counters: npt.NDArray[np.uint64]  # Indexed by `abi.Counter`
    overflows: int = 0  # How often the event ring was found to have been full
    is_shared: bool = False  # Whether the counters are of several processes or programs
    failed_tasks: Mapping[str, int] = field(default_factory=dict)  # How often, by name


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """State of a process at the time of a snapshot, without its heap."""

    target: Target
    started_ns: int  # When its tracing began, CLOCK_MONOTONIC
    overhead: Overhead  # Cost of tracing to the process
    cpu_cores: float | None = None  # Processors in use, probes included; None if unknown yet
    rss_bytes: int | None = None  # Resident memory; None once the process has ended
    memory: MemoryUsage | None = None  # Memory by kind; the last one if the process has ended
    series: HeapPoints | None = None  # Memory over the traced time; None before the first sample
    allocators: tuple[FoundLibrary, ...] = ()  # The traced allocators
    runtimes: tuple[Runtime, ...] = ()  # Runtimes in the process that have a heap of their own
    earlier: EarlierBlocks | None = None  # None: they are not in the figures
    mappings: Mappings | None = None  # Mappings of the program itself; None: not traced
    findings: Findings | None = None  # On stacks, some seconds old; None before the first
    # Results of inspecting the process's memory, by facet (`FACET_RESULTS`); results that do not
    # exist yet are missing.
    facets: Mapping[str, Any] = field(default_factory=dict)
    # Stacks through code that a runtime compiled without frame pointers: frames may be missing.
    unsure_stacks: int = 0
    stack_methods: Mapping[str, str] = field(default_factory=dict)  # Of unwinding, by file
    thread_names: Mapping[int, str] = field(default_factory=dict)  # By id, if wanted
    gaps: tuple[Gap, ...] = ()  # In the order of time; empty: figures are complete


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot(ProcessStatus):
    """All figures of one process, or of several merged ones, at one time."""

    time_s: float  # Wall clock, seconds since 1970
    now_ns: int  # Time of the snapshot, CLOCK_MONOTONIC, as births of blocks
    totals: Totals  # Per stack; a copy
    growth_per_min: I64  # Recent growth of each stack, in bytes per minute
    stacks: CallStacks  # Frames by index; only grows
    events: int  # Events applied since the start
    losses: LossCounts  # Counts of lost events and other oddities
    truncated_stacks: int  # Stacks deeper than the limit of frames
    broken_stacks: int  # Stacks that end early, in code without frame pointers
    partial_allocations: int  # With a stack that is lost, or lacks memory or unwind entries
    unknown_stacks: int  # Stacks of which only the id is known, as their record was lost
    top_blocks: BlockSelection  # The largest live blocks, and the sums of all live blocks
    old_blocks: BlockSelection | None  # Blocks of at least the requested age
    live_history: tuple[tuple[int, int], ...] = ()  # (ns since the start, bytes), oldest first
    blocks: Blocks | None = None  # All live blocks, if wanted
    usable: UsableSizes | None = None  # Of `blocks`, if wanted and if known
    history: History = field(default_factory=lambda: History(0))
    peak: Peak | None = None  # The high-water mark, in whole blocks; None before any
    temporary: TemporaryPolicy = DEFAULT_POLICY  # Which allocations are temporary
    unordered_count: int = 0  # Blocks of which it is unknown whether they were temporary
    threads: ThreadActivity | None = None  # Figures by thread, if wanted
    merged: ProcessSum | None = None  # The merged processes; None: the snapshot is of one process

    @property
    def elapsed_ns(self) -> int:
        return self.now_ns - self.started_ns

    @property
    def table_number(self) -> int:
        """A number of the process's table of blocks; it changes when the table begins again."""
        return self.target.exec_count

    @property
    def usage(self) -> HeapUsage | None:
        """Where the process's resident memory is, some seconds ago; None: unknown or not yet."""
        usages: HeapUsages | None = self.facets.get("heap")
        return None if usages is None else usages.now

    @property
    def first_usage(self) -> HeapUsage | None:
        """Where the process's resident memory was when tracing began; None: unknown."""
        usages: HeapUsages | None = self.facets.get("heap")
        return None if usages is None else usages.first

    @property
    def holders(self) -> Mapping[int, BlockHolders]:
        """Holders of the blocks of growing suspects, by a suspect's first stack."""
        found: SuspectHolders | None = self.facets.get("holders")
        return {} if found is None else found.by_stack

    @property
    def objects(self) -> ObjectFindings | None:
        """Objects by type; None: the runtime is not supported, or they are not counted yet."""
        return self.facets.get("objects")

    @property
    def sample_bytes(self) -> int | None:
        return self.totals.sample_bytes

    @property
    def space(self) -> Space:
        """Where the blocks are: nothing of the process's own memory is compared with a GPU's."""
        return next((each.space for each in self.allocators), Space.HOST)

    @property
    def live_bytes(self) -> int:
        return int(self.totals.live_bytes.sum())

    @property
    def live_count(self) -> int:
        return int(self.totals.live_count.sum())

    @property
    def count_bounds(self) -> tuple[int, int] | None:
        """(least, most) live blocks if events were lost; None if the bounds are unknown."""
        return None if self.sample_bytes is not None else self.losses.bounds(self.live_count)

    @property
    def are_earlier(self) -> Mask:
        """A mask by stack index: whether the stack stands for blocks from before tracing."""
        return self.stacks.have(StackFlag.EARLIER)[: len(self.totals)]

    @property
    def live_stacks(self) -> int:
        return int(np.count_nonzero(self.totals.live_count))

    def column(self, figure: str) -> I64:
        """Returns a figure of every stack; ``figure`` is a field of ``StackStat``."""
        at_peak = {"peak_bytes": "live_bytes", "peak_count": "live_count"}.get(figure)
        if at_peak is not None and self.peak is None:
            return np.zeros(len(self.totals), np.int64)
        is_growth = figure == "growth_bytes_per_min"
        owner = self.totals if at_peak is None else self.peak
        column: I64 = self.growth_per_min if is_growth else getattr(owner, at_peak or figure)
        return column

    def top_stacks(
        self, n: int | None = None, *, freed: bool = False, with_earlier: bool = True
    ) -> list[StackStat]:
        """Returns the ``n`` stacks with the most live bytes, largest first; None: all with blocks.

        ``freed``: includes stacks whose blocks were all freed. ``with_earlier``: includes blocks
        from before tracing.
        """
        totals = self.totals
        held = totals.live_bytes
        is_wanted = (totals.allocated_count if freed else totals.live_count) != 0
        if not with_earlier:
            is_wanted &= ~self.are_earlier
        holding = np.flatnonzero(is_wanted)
        return self.stack_stats(holding[np.lexsort((holding, -held[holding]))][:n].tolist())

    def stack_stats(self, indices: Sequence[int]) -> list[StackStat]:
        columns = [self.column(name)[indices].tolist() for name in _FIGURES]
        return [StackStat(*row) for row in zip(indices, *columns, strict=True)]

    def why_partial(self, index: int) -> str | None:
        """Returns why a stack ends before its outermost frame; None if it is whole."""
        flags = self.stacks.flags(index)
        return _why_partial(flags) if flags else None

    def frames(self, index: int) -> Frames:
        return self.stacks.frames(index) or ()


@functools.cache
def _why_partial(flags: StackFlag) -> str | None:
    return next((why for flag, why in PARTIAL_REASONS.items() if flags & flag), None)


@dataclass(frozen=True, slots=True)
class TraceSnapshot:
    """Snapshots of all processes at one time, for every report, file, rule and screen."""

    processes: tuple[Snapshot, ...]  # In the order of their start, `root` first; with ended ones
    untraced_count: int = 0  # Seen but not traced: beyond `--follow-limit`, or impossible
    follow: FollowCounts | None = None  # None: children are not followed

    @property
    def root(self) -> Snapshot:
        return self.processes[0]

    def snapshot_of(self, number: int) -> Snapshot:
        """Returns the snapshot of the process with a number in the trace, or else of the root."""
        return next((one for one in self.processes if one.target.number == number), self.root)

    @property
    def living(self) -> tuple[Snapshot, ...]:
        return tuple(one for one in self.processes if not one.target.has_ended)
