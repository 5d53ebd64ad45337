"""What a trace is asked to do."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tracelloc.heap.temporary import DEFAULT_POLICY, TemporaryPolicy
from tracelloc.record.kernel.captureconfig import CaptureConfig
from tracelloc.record.kernel.method import Method
from tracelloc.record.kernel.overheadlimit import OverheadLimit
from tracelloc.record.mallocs.discovery import EVERYTHING, MallocChoice
from tracelloc.record.process.procfs import Process
from tracelloc.record.session.memorybudget import MemoryBudget


@dataclass(frozen=True, slots=True)
class TraceConfig:
    """Frozen for the whole trace."""

    capture: CaptureConfig = field(default_factory=CaptureConfig)
    selection: MallocChoice = EVERYTHING
    """Which allocators are traced."""
    method: Method | None = None
    """Forces one way of attaching; None: the best that the kernel has."""
    temporary: TemporaryPolicy = DEFAULT_POLICY
    """Which allocations are temporary."""
    most_processes: int = 256
    """Processes traced at a time; further ones are counted and left alone."""
    followed_names: frozenset[str] = frozenset()
    """Commands whose processes are traced beside the first one; empty: all."""
    memory: MemoryBudget | None = None
    """What tracelloc itself may take; None: whatever there is."""
    max_overhead: OverheadLimit | None = None
    """What the probes may cost the target; None: whatever they do."""
    use_library: bool = False
    """Whether a process that has the library preloaded reports by itself, where it can."""
    spares_python: bool = False
    """Whether Python's processes don't, for then stacks have no functions of Python."""
    max_stall_s: float = 1.0
    """How long such a process waits for us before its events are counted as lost."""
    reads_memory: bool = True
    """Whether the processes' memory is read: for pointers to old blocks, and Python's objects."""
    log_events: bool = False
    """Every event is kept until a snapshot is taken that wants them."""
    debug: bool = False

    @property
    def follow(self) -> bool:
        """Whether children are traced, too."""
        return self.capture.follow

    def is_wanted(self, process: Process) -> bool:
        """Whether the program that a process has begun is one of those to be traced."""
        return not self.followed_names or process.command() in self.followed_names

    @property
    def with_otel(self) -> TraceConfig:
        """A copy of it that reads what the program reports by itself."""
        capture = replace(self.capture, otel=True, sample_bytes=None, python=False)
        selection = replace(self.selection, otel=True, mappings=False)
        return replace(self, capture=capture, selection=selection, use_library=False)

    def with_python(self, python: bool) -> TraceConfig:
        """A copy of it with frames of Python in stacks, or without.

        Never with them where programs report by themselves.
        """
        python = python and not self.capture.otel
        return replace(self, capture=replace(self.capture, python=python))


@dataclass(frozen=True, slots=True)
class Clocks:
    """Where the time comes from."""

    now_ns: Callable[[], int] = time.monotonic_ns
    wall_s: Callable[[], float] = time.time
