"""What a process has in memory by kind, and the limit that it is closest to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Resident:
    """What is in memory, in bytes."""

    anonymous: int
    """Heap, stacks, and whatever else no file backs."""
    files: int
    """Mapped files."""
    shared: int
    """Shared memory."""
    swapped: int
    """Anonymous memory that has been swapped out: not in memory, but not given back."""
    space: int = 0
    """All addresses that are in use (VmSize); 0: not known."""

    @property
    def rss(self) -> int:
        """Resident set size."""
        return self.anonymous + self.files + self.shared

    @property
    def kept(self) -> int:
        """What the process has, wherever it lies."""
        return self.rss + self.swapped


@dataclass(frozen=True, slots=True)
class Limit:
    """What ends growth."""

    what: str
    """``cgroup`` or ``machine``."""
    size_bytes: int
    free_bytes: int
    """Left below the limit: what others in the group use is not free."""


@dataclass(frozen=True, slots=True)
class MemoryUsage:
    """A process's memory at one moment, and what to compare it with."""

    now: Resident
    start: Resident
    """When tracing began."""
    pss_bytes: int | None
    """Proportional share, as of some seconds ago; None if it can't be read."""
    limit: Limit | None
    """The closest one."""
    history: tuple[tuple[int, int], ...]
    """(CLOCK_MONOTONIC in ns, what the process kept in bytes) of the last minutes."""
    mapped_bytes: int | None = None
    """What it keeps of the ranges it has mapped by itself; None: not traced, or unreadable."""
