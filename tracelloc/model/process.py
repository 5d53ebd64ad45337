"""The traced process: who it is, its memory, and how it is traced. No arrays."""

from __future__ import annotations

from enum import Enum
from typing import Final

from tracelloc.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """The traced process."""

    pid: int
    command: str
    parent_pid: int = 0  # 0 if unknown
    exec_count: int = 0  # Programs executed since tracing started; all figures are of the last one
    number: int = 0  # Number of the process in the trace, from 0: PIDs may be reused
    has_ended: bool = False
    executable: str = ""  # Path of its program; empty if unknown, as are the next two
    container_id: str = ""  # ID of its container, 64 hexadecimal digits
    host: str = ""  # Name of the machine
    machine: str = ""  # Architecture of the machine (`Architecture.short_name`)
    pod_uid: str = ""  # UID of its Kubernetes pod


ALL_PROCESSES: Final = -1  # The number that stands for all processes of a trace together

RUNNING_PROCESSES: Final = -2  # The number that stands for all processes that have not ended


@dataclass(frozen=True, slots=True)
class FollowCounts:
    """Counts of followed forks and programs since the start."""

    forks: int = 0
    execs: int = 0
    stopped_ns: int = 0  # Total time that the processes were stopped for following


@dataclass(frozen=True, slots=True)
class Resident:
    """Memory by kind, in bytes."""

    anonymous: int  # Heap, stacks, and other memory without a file
    files: int  # Mapped files
    shared: int  # Shared memory
    swapped: int  # Anonymous memory that is swapped out: not resident, but not released
    space: int = 0  # Virtual size (VmSize); 0 if unknown

    @property
    def rss(self) -> int:
        """Resident set size."""
        return self.anonymous + self.files + self.shared

    @property
    def kept(self) -> int:
        """Resident and swapped memory."""
        return self.rss + self.swapped


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit of memory."""

    what: str  # `cgroup` or `machine`
    size_bytes: int
    free_bytes: int  # Bytes left below the limit, after the use of others in the group


@dataclass(frozen=True, slots=True)
class MemoryUsage:
    """A process's memory at one time, with its start value and limit."""

    now: Resident
    start: Resident  # At the start of tracing
    pss_bytes: int | None  # Proportional set size, some seconds old; None if it can't be read
    limit: Limit | None  # The closest limit
    # (CLOCK_MONOTONIC in ns, `kept` in bytes) of the last minutes.
    history: tuple[tuple[int, int], ...]
    # Kept bytes of the ranges that the program itself mapped; None: not traced, or unreadable.
    mapped_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Runtime:
    """A runtime with its own heap."""

    name: str
    heap: str  # Contents of that heap: a clause
    advice: str  # How to inspect it
    short_advice: str  # The advice in a few words
    naming: str = ""  # How to get names of generated code; empty: there is no such code, or no way
    # Whether a garbage collector frees blocks late, rather than reference counts.
    collects: bool = True
    moves: bool = True  # Whether the collector moves objects, with the pointers to blocks
    counts_objects: bool = False  # Whether its objects are counted by type


class MallocLibrary(Enum):
    """A malloc library."""

    GLIBC = "glibc"
    MUSL = "musl"
    JEMALLOC = "jemalloc"
    TCMALLOC = "tcmalloc"
    MIMALLOC = "mimalloc"
    OTHER = "another malloc library"


@dataclass(frozen=True, slots=True)
class MainLibrary:
    """The malloc library that the program calls."""

    library: MallocLibrary
    file: str
    # Other allocators, whose blocks can't be told from this one's; in words.
    others: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unseen:
    """A function whose blocks go unseen, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class FoundLibrary:
    """One allocator in one file."""

    family: str
    file: str
    functions: tuple[str, ...]  # Plainest names of its functions
    not_probed: tuple[Unseen, ...]
    # The library that implements it; None if it takes its blocks from others.
    library: MallocLibrary | None = None


@dataclass(frozen=True, slots=True)
class Overhead:
    """The overhead of tracing, for views."""

    events_per_s: float
    # Estimated share of the target's CPU time, 0 to 1; None before it was measured.
    probe_share: float | None
    slow_probes: tuple[str, ...]  # Functions with single-stepped probes


MOST_BETWEEN: Final = 64  # Largest number of other allocations that a policy allows


@dataclass(frozen=True, slots=True)
class TemporaryPolicy:
    """Which allocations are temporary: freed soon after by the allocating thread.

    Code with many of them could often avoid them, or reuse one block.
    """

    between: int = 1  # At most this many other allocations of the thread lie in between
    # If given, this counts instead: the block lived at most so long, by the kernel's ticks, which
    # are 1 to 10 ms apart.
    life_ns: int | None = None


DEFAULT_POLICY: Final = TemporaryPolicy()
