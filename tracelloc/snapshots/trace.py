"""A frozen picture of a whole trace: every process at one moment."""

from __future__ import annotations

from dataclasses import dataclass

from tracelloc.snapshots.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class TraceSnapshot:
    """What every report, file, rule, endpoint and screen of one moment is made of."""

    processes: tuple[Snapshot, ...]
    """In the order of their start, the first one being ``root``; those included that ended."""
    untraced_count: int = 0
    """Processes that were seen and not traced: more than ``--follow-limit`` allows, or not
    probed in time."""

    @property
    def root(self) -> Snapshot:
        """The process that was asked for."""
        return self.processes[0]

    @property
    def living(self) -> tuple[Snapshot, ...]:
        """Those that have not ended."""
        return tuple(one for one in self.processes if not one.target.has_ended)
