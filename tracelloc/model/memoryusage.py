"""Memory of a process by kind, and the closest limit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Resident:
    """Memory by kind, in bytes."""

    anonymous: int
    """Heap, stacks, and other memory without a file."""
    files: int
    """Mapped files."""
    shared: int
    """Shared memory."""
    swapped: int
    """Anonymous memory that is swapped out: not resident, but not released."""
    space: int = 0
    """Virtual size (VmSize); 0 if unknown."""

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

    what: str
    """``cgroup`` or ``machine``."""
    size_bytes: int
    free_bytes: int
    """Bytes left below the limit, after the use of others in the group."""


@dataclass(frozen=True, slots=True)
class MemoryUsage:
    """A process's memory at one time, with its start value and limit."""

    now: Resident
    start: Resident
    """At the start of tracing."""
    pss_bytes: int | None
    """Proportional set size, some seconds old; None if it can't be read."""
    limit: Limit | None
    """The closest limit."""
    history: tuple[tuple[int, int], ...]
    """(CLOCK_MONOTONIC in ns, ``kept`` in bytes) of the last minutes."""
    mapped_bytes: int | None = None
    """Kept bytes of the ranges that the program itself mapped; None: not traced, or unreadable."""
