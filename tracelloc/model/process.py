"""The traced process and others in lists: identity, memory, how it is traced. No arrays."""

import re
from collections.abc import Iterable
from enum import Enum
from typing import Final

from tracelloc.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """The identity of a traced process: its PID, program, container and machine."""

    pid: int
    command: str
    parent_pid: int = 0  # 0 if unknown
    exec_count: int = 0  # Programs executed since tracing started; all figures are of the last one
    number: int = 0  # Number of the process in the trace, from 0; unlike PIDs, never reused
    has_ended: bool = False
    executable: str = ""  # Path of the program; empty if unknown
    container_id: str = ""  # ID of the container, 64 hexadecimal digits; empty if none or unknown
    host: str = ""  # Name of the machine; empty if unknown
    machine: str = ""  # Architecture of the machine (`Architecture.short_name`)
    pod_uid: str = ""  # UID of the Kubernetes pod; empty if none or unknown
    namespace: str = ""  # Of the Kubernetes pod. This and the next two are empty if unknown
    pod: str = ""  # Name of the pod
    container: str = ""  # Name of the container


ALL_PROCESSES: Final = -1  # The number that stands for all processes of a trace together

RUNNING_PROCESSES: Final = -2  # The number that stands for all processes that have not ended


@dataclass(frozen=True, slots=True)
class FollowCounts:
    """Counts of followed forks and executed programs since the start of tracing."""

    forks: int = 0
    execs: int = 0
    stopped_ns: int = 0  # Total time for which processes were stopped to be followed


@dataclass(frozen=True, slots=True)
class ResidentMemory:
    """A process's memory by kind, in bytes, as the kernel counts it."""

    anonymous: int  # Heap, stacks, and other memory without a file
    files: int  # Mapped files
    shared: int  # Shared memory
    swapped: int  # Anonymous memory that is swapped out: not resident, but not released
    space: int = 0  # Virtual size (VmSize); 0 if unknown

    @property
    def rss(self) -> int:
        return self.anonymous + self.files + self.shared

    @property
    def kept(self) -> int:
        return self.rss + self.swapped


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """A limit of the memory that a process can use."""

    what: str  # What sets the limit: `cgroup` or `machine`
    size_bytes: int
    free_bytes: int  # Bytes left below the limit, after the use of others in the group


@dataclass(frozen=True, slots=True)
class MemoryUsage:
    """A process's memory at one time, with its start value and limit."""

    now: ResidentMemory
    start: ResidentMemory  # Memory at the start of tracing
    pss_bytes: int | None  # Proportional set size, some seconds old; None if it can't be read
    limit: MemoryLimit | None  # The limit that is closest to being reached; None if there is none
    history: tuple[tuple[int, int], ...]  # (CLOCK_MONOTONIC in ns, `kept` bytes) of minutes
    mapped_bytes: int | None = None  # Kept bytes of the program's own mappings; None: unknown


@dataclass(frozen=True, slots=True)
class Runtime:
    """A language runtime that manages a heap of its own."""

    name: str
    heap: str  # What the runtime's own heap contains: a clause
    advice: str  # How to inspect that heap
    short_advice: str  # The advice in a few words
    naming: str = ""  # How to get names of generated code; empty: there is no such code, or no way
    frames_option: str = ""  # Without it, compiled code has no frames; empty: set, or no need
    collects: bool = True  # Whether a collector frees blocks late, rather than counts
    moves: bool = True  # Whether the collector moves objects, and with them pointers to blocks
    counts_objects: bool = False  # Whether tracelloc counts the runtime's objects by type


class MallocLibrary(Enum):
    """The malloc libraries that tracelloc knows. The value is for display."""

    GLIBC = "glibc"
    MUSL = "musl"
    JEMALLOC = "jemalloc"
    TCMALLOC = "tcmalloc"
    MIMALLOC = "mimalloc"
    OTHER = "another malloc library"


@dataclass(frozen=True, slots=True)
class MainLibrary:
    """The malloc library that a program calls for most blocks, and others beside it."""

    library: MallocLibrary
    file: str
    others: tuple[str, ...]  # Whose blocks can't be told from this one's, in words


@dataclass(frozen=True, slots=True)
class UnseenFunction:
    """An allocator function that tracelloc can't trace, so that its blocks are missing."""

    name: str
    reason: str


class Space(Enum):
    """Where blocks are: bytes of different spaces are never added up."""

    HOST = "host"
    GPU = "gpu"


@dataclass(frozen=True, slots=True)
class FoundLibrary:
    """One family of allocator functions in one file, and which of them are probed."""

    family: str
    file: str
    functions: tuple[str, ...]  # The plainest name of each function
    not_probed: tuple[UnseenFunction, ...]
    library: MallocLibrary | None = None  # That implements them; None: they call another one
    space: Space = Space.HOST


@dataclass(frozen=True, slots=True)
class Overhead:
    """The cost of tracing to the target, as it is displayed."""

    events_per_s: float
    probe_share: float | None  # Of the target's CPU time, by estimate; None: not measured yet
    slow_probes: tuple[str, ...]  # Functions with single-stepped probes


MOST_BETWEEN: Final = 64  # Largest number of other allocations that a policy allows


@dataclass(frozen=True, slots=True)
class TemporaryPolicy:
    """Which allocations are temporary: freed soon after, by the same thread."""

    between: int = 1  # Most other allocations of the thread between allocation and free
    life_ns: int | None = None  # Instead: longest lifetime, by ticks, which are 1 to 10 ms apart


DEFAULT_POLICY: Final = TemporaryPolicy()


class Trouble(Enum):
    """Why a process can't be traced. The value is for users."""

    ENDED = "has ended"
    SELF = "tracelloc itself"
    BITS = "32-bit program"
    REFUSED = "may not be inspected"
    NO_ALLOCATOR = "no known malloc library"
    ODD = "its files can't be understood"


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """One process in a list. The process controls all its text: treat text as hostile."""

    pid: int
    command: str  # Short name (comm)
    arguments: str  # Command line; the short name if there is none
    user: str
    rss_bytes: int
    growth_bytes_per_min: int  # Of resident memory, over a minute, or since it was first seen
    allocator: str | None  # As `malloc in libc.so.6`; None: none found, or not looked for
    trouble: Trouble | None  # Why it can't be traced; None if it can, as far as is known
    known: bool  # Whether `allocator` and `trouble` have been determined yet
    age_s: float = 0.0  # Seconds since the process was started


def matching_processes(infos: Iterable[ProcessInfo], text: str) -> list[ProcessInfo]:
    """Returns the processes whose command line, user, PID or state contain all words of a text."""
    words = [re.escape(word) for word in text.split()]
    tests = [re.compile(word, re.IGNORECASE) for word in words]
    found = []
    for one in infos:
        trouble = one.trouble.value if one.trouble else ""
        told = f"{one.pid} {one.user} {one.command} {one.arguments} {one.allocator} {trouble}"
        if all(test.search(told) for test in tests):
            found.append(one)
    return found
