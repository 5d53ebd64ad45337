"""Settings of a trace."""

from __future__ import annotations

import threading

from tracelloc.dataclass import dataclass, field, replace
from tracelloc.model.process import DEFAULT_POLICY, Space, TemporaryPolicy
from tracelloc.record.facets.facet import FacetContext
from tracelloc.record.kernel.captureconfig import CaptureConfig, Method
from tracelloc.record.mallocs.discovery import EVERYTHING, MallocChoice
from tracelloc.record.mallocs.families import Provider
from tracelloc.record.process.procfs import Process
from tracelloc.record.sources.eventsource import Sources
from tracelloc.record.tasks.memorybudget import MemoryBudget
from tracelloc.record.tasks.supervision import Supervisor


@dataclass(frozen=True, slots=True)
class TraceConfig:
    """Settings that do not change during the trace."""

    capture: CaptureConfig = field(default_factory=CaptureConfig)
    selection: MallocChoice = EVERYTHING  # Malloc libraries to trace
    # Forces one way of attaching; None: the best one that the kernel supports.
    method: Method | None = None
    temporary: TemporaryPolicy = DEFAULT_POLICY  # Which allocations are temporary
    most_processes: int = 256  # Processes traced at a time; further ones are counted and left alone
    # Commands whose processes are traced, in addition to the first process; empty: all.
    followed_names: frozenset[str] = frozenset()
    memory: MemoryBudget | None = None  # Memory that tracelloc itself may use; None: unlimited
    # How much the probes may slow down the target; None: unlimited.
    max_overhead: float | None = None
    # Whether to use the preloaded library instead of probes where possible.
    use_library: bool = False
    # Whether to inject the library into a running process that has not preloaded it.
    injects: bool = False
    # Whether to use the library only, since the user may not load BPF programs.
    without_probes: bool = False
    # Whether the launched program is held at its end, to search for leaked blocks.
    checks_exit: bool = False
    # Whether figures are of parts of the launched program's run (`Parts.begin`), such as tests. All
    # its threads are followed then, so that they can be stopped. Between parts, allocations are not
    # reported.
    in_parts: bool = False
    # Whether to use probes in processes with a supported runtime: stacks then have its functions.
    spares_runtimes: bool = False
    # How long a process with the preloaded library waits for tracelloc before it drops events.
    max_stall_s: float = 1.0
    # Whether tracelloc reads process memory, for pointers to old blocks and for objects.
    reads_memory: bool = True
    # Whether blocks from before tracing are added to the table of a running process.
    counts_earlier: bool = False
    debug: bool = False

    @property
    def follow(self) -> bool:
        """Whether child processes are traced, too."""
        return self.capture.follow

    @property
    def can_count_earlier(self) -> bool:
        """Whether blocks from before tracing can be counted, and are to be."""
        # All frees must be reported, and the blocks must be of the libraries that are traced.
        is_whole = self.capture.sample_bytes is None and not self.capture.usdt
        return (
            is_whole and self.selection.only is None and self.counts_earlier and self.reads_memory
        )

    def is_wanted(self, process: Process) -> bool:
        """Whether a process executes a program that is to be traced."""
        return not self.followed_names or process.command() in self.followed_names

    @property
    def with_library_only(self) -> TraceConfig:
        """Settings that need no privileges, for a program that tracelloc starts: a copy."""
        return replace(self, use_library=True, spares_runtimes=False, without_probes=True)

    def choosing(self, selection: MallocChoice) -> TraceConfig:
        """Returns a copy that traces the chosen allocators."""
        reads = self.reads_memory and all(one.space is Space.HOST for one in selection.custom)
        config = replace(self, selection=selection, reads_memory=reads)
        is_known = len(selection.providers) == 1
        return config.with_provider(selection.providers[0]) if is_known else config

    def with_provider(self, provider: Provider) -> TraceConfig:
        """Returns a copy that reads the allocations that the program itself reports."""
        weighted = "weight" in provider.arguments
        capture = replace(self.capture, usdt=True, weighted=weighted, sample_bytes=None)
        selection = replace(self.selection, providers=(provider,), mappings=False)
        # No search of the process's memory tells whether a GPU's is in use.
        reads = self.reads_memory and provider.space is Space.HOST
        return replace(
            self, capture=capture, selection=selection, reads_memory=reads, use_library=False
        )

    @property
    def has_devices(self) -> bool:
        """Whether the probes add the number of a GPU to stacks, as they add runtimes' frames."""
        return any("device" in one.arguments for one in self.selection.providers)

    def with_runtime_frames(self, wanted: bool) -> TraceConfig:
        """Returns a copy of the settings, with or without frames of runtimes in stacks."""
        wanted = wanted or self.has_devices
        return replace(self, capture=replace(self.capture, runtime_frames=wanted))


@dataclass(frozen=True, slots=True)
class TraceContext:
    """Objects and settings that all processes of a trace share."""

    sources: Sources
    config: TraceConfig
    supervisor: Supervisor
    facets: FacetContext
    lock: threading.RLock  # Guards the processes and their heaps
