"""A frozen picture of a whole trace: every process at one moment."""

from __future__ import annotations

from dataclasses import dataclass

from tracelloc.snapshots.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class FollowCounts:
    """What following has done to the processes since the start."""

    forks: int = 0
    execs: int = 0
    stopped_ns: int = 0
    """How long they were stopped for it, all together."""


@dataclass(frozen=True, slots=True)
class TraceSnapshot:
    """What every report, file, rule, endpoint and screen of one moment is made of."""

    processes: tuple[Snapshot, ...]
    """In the order of their start, the first one being ``root``; those included that ended."""
    untraced_count: int = 0
    """Processes that were seen and not traced: more than ``--follow-limit`` allows, or they
    could not be probed."""
    follow: FollowCounts | None = None
    """None: children are not followed."""

    @property
    def root(self) -> Snapshot:
        """The process that was asked for."""
        return self.processes[0]

    def of(self, number: int) -> Snapshot:
        """A process by its number; the root where there is none of this number."""
        return next((one for one in self.processes if one.target.number == number), self.root)

    @property
    def living(self) -> tuple[Snapshot, ...]:
        """Those that have not ended."""
        return tuple(one for one in self.processes if not one.target.has_ended)
