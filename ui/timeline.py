"""The time line of a recording: the times of its snapshots, and which one is shown."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracelloc.model.figures import Points
from tracelloc.snapshots.snapshot import Snapshot, TraceSnapshot
from tracelloc.text import NS_PER_S, format_time

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class TimeLine:
    """The times of all snapshots as columns, oldest first. Immutable."""

    uptimes_s: F64
    """CLOCK_MONOTONIC of the recorded machine, ascending."""
    times_s: F64
    """Seconds since 1970; they jump if the clock was set."""
    index: int
    """Number of the snapshot that is shown."""
    newest: TraceSnapshot
    """The last snapshot, which has the curves of the whole time."""
    is_growing: bool
    """Whether the recording may still grow."""
    blocks_since_s: float | None = None
    """When single blocks begin, seconds since 1970; None if there are none."""

    @property
    def start_ns(self) -> int:
        """When tracing began, CLOCK_MONOTONIC."""
        return self.newest.root.started_ns

    @property
    def end_ns(self) -> int:
        """Time of the last snapshot, CLOCK_MONOTONIC."""
        return self.newest.root.now_ns

    @property
    def is_at_end(self) -> bool:
        """Whether the last snapshot is shown."""
        return self.index == len(self.uptimes_s) - 1

    def find(self, uptime_s: float) -> int:
        """Returns the number of the last snapshot that is not later; 0 if all are."""
        return max(0, int(np.searchsorted(self.uptimes_s, uptime_s, side="right")) - 1)

    def find_time(self, time_s: float) -> int:
        """Like ``find``, for a time in seconds since 1970."""
        return int(max(np.flatnonzero(self.times_s <= time_s), default=0))

    def clock(self, time_ns: int) -> str:
        """Returns the time of day at a CLOCK_MONOTONIC time; with the date if on another day."""
        uptime_s = time_ns / NS_PER_S
        # Assumes that the clock was not set before the first snapshot, nor between two of them.
        at = self.find(uptime_s)
        time_s = float(self.times_s[at] + uptime_s - self.uptimes_s[at])
        date, _, clock = format_time(time_s).partition(" ")
        is_today = date == format_time(float(self.times_s[-1])).partition(" ")[0]
        return clock if is_today else f"{date[5:]} {clock}"

    def points(self, snapshot: Snapshot) -> Points | None:
        """Returns live bytes over the whole time; if merged, up to the shown snapshot."""
        if snapshot.merged is not None:
            return snapshot.series
        return self.newest.snapshot_of(snapshot.target.number).series
