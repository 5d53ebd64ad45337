"""The memory of all processes and control groups of a machine, and how it grows."""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

from tracelloc.dataclass import dataclass


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
        """The kind's name in a table."""
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
        """Bytes of all kinds."""
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
    name: str  # A short name: `container 3f2a90d1c0de`, `nginx.service`, else the path
    processes: int  # Number of processes in the group and in groups below it
    trend: MemoryTrend
    limit_bytes: int | None  # None: the group has no limit
    free_bytes: int | None  # Bytes left below the limit, and those that the kernel can reclaim

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
