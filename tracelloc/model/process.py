"""The process that figures belong to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Target:
    """The traced process."""

    pid: int
    command: str
    parent_pid: int = 0
    """0 if unknown."""
    exec_count: int = 0
    """Programs executed since tracing started; all figures are of the last one."""
    number: int = 0
    """Number of the process in the trace, from 0: PIDs may be reused."""
    has_ended: bool = False
    executable: str = ""
    """Path of its program; empty if unknown, as are the next two."""
    container_id: str = ""
    """ID of its container, 64 hexadecimal digits."""
    host: str = ""
    """Name of the machine."""


ALL_PROCESSES: Final = -1
"""The number that stands for all processes of a trace together."""

RUNNING_PROCESSES: Final = -2
"""The number that stands for all processes that have not ended."""


@dataclass(frozen=True, slots=True)
class FollowCounts:
    """Counts of followed forks and programs since the start."""

    forks: int = 0
    execs: int = 0
    stopped_ns: int = 0
    """Total time that the processes were stopped for following."""
