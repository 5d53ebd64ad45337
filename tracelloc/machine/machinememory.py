"""The memory of all processes and control groups of a machine, and how it grows."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final

from tracelloc.dataclass import dataclass


class MemoryKind(Enum):
    """Kinds of a process's memory, in the order of figures. The value is for display."""

    ANONYMOUS = "memory without a file"
    FILES = "pages of mapped files"
    SHARED = "shared memory"
    SWAPPED = "memory that is swapped out"
    PAGE_TABLES = "page tables"


WINDOWS_S: Final = (60.0, 600.0, 3600.0)  # The times over which growth is measured, in seconds


@dataclass(frozen=True, slots=True)
class MemoryTrend:
    """How much memory something has, and how that has changed."""

    size_bytes: int  # Resident, swapped out, and page tables
    # Bytes per minute over each of `WINDOWS_S`, or over the time that there is; None if that is
    # less than half of it (the first: less than ten seconds).
    growth: tuple[int | None, ...]
    # For how long it has grown without a pause, in seconds; 0: it does not grow.
    growing_s: float = 0.0

    @property
    def rate(self) -> int:
        """Bytes per minute over ten minutes, or over the last one if that is not known yet."""
        last, longer = self.growth[:2]
        return longer if longer is not None else last or 0


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """The memory of one process. The process controls all text: treat it as hostile."""

    pid: int
    command: str  # Short name (comm)
    arguments: str  # Command line; the short name if there is none
    user: str
    kinds: tuple[int, ...]
    trend: MemoryTrend
    growing_kind: MemoryKind | None  # What most of its growth is
    group: str  # The path of its control group; empty if it has none, or it is unknown


@dataclass(frozen=True, slots=True)
class GroupMemory:
    """The memory of one control group with all that is below it."""

    path: str
    name: str  # What people call it: `container 3f2a90d1c0de`, `nginx.service`, else the path
    processes: int  # Processes in it and below it
    trend: MemoryTrend
    limit_bytes: int | None
    free_bytes: int | None  # What is left below the limit, and what the kernel could drop first

    @property
    def limit_in_s(self) -> float | None:
        """When the limit will be reached if growth goes on, in seconds."""
        if self.free_bytes is None or self.trend.rate <= 0:
            return None
        return self.free_bytes / self.trend.rate * 60


@dataclass(frozen=True, slots=True)
class MachineMemory:
    """A moment of a machine's memory."""

    time_s: float  # Seconds since 1970
    observed_s: float  # How long the machine has been watched
    total_bytes: int
    available_bytes: int
    swap_bytes: int
    swap_used_bytes: int
    processes: Sequence[ProcessMemory]
    groups: Sequence[GroupMemory]
    unread: int = 0  # Processes that could not be read, as there are too few file descriptors
