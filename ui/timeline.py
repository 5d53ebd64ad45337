"""The time line of a recording: its moments, and which of them is shown."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracelloc.model.figures import Points
from tracelloc.show.recording.times import shown_time
from tracelloc.snapshots.snapshot import Snapshot, TraceSnapshot
from tracelloc.text import NS_PER_S

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class TimeLine:
    """All moments, oldest first, as columns. Nothing in it changes."""

    uptimes_s: F64
    """CLOCK_MONOTONIC of the recorded machine, ascending."""
    times_s: F64
    """Seconds since 1970; may jump back where the clock was set."""
    index: int
    """The moment that is shown."""
    newest: TraceSnapshot
    """For the curves of the whole time."""
    is_growing: bool
    """Whether the recording may still grow."""

    @property
    def start_ns(self) -> int:
        """When tracing began, CLOCK_MONOTONIC."""
        return self.newest.root.started_ns

    @property
    def end_ns(self) -> int:
        """The last moment, CLOCK_MONOTONIC."""
        return self.newest.root.now_ns

    @property
    def is_at_end(self) -> bool:
        """Whether the last moment is shown."""
        return self.index == len(self.uptimes_s) - 1

    def find(self, uptime_s: float) -> int:
        """The last moment that is not later; else the first."""
        return max(0, int(np.searchsorted(self.uptimes_s, uptime_s, side="right")) - 1)

    def find_time(self, time_s: float) -> int:
        """The last moment that is not later, seconds since 1970; else the first."""
        return int(max(np.flatnonzero(self.times_s <= time_s), default=0))

    def clock(self, time_ns: int) -> str:
        """The time of day at a moment, CLOCK_MONOTONIC; with the date if that was another day."""
        uptime_s = time_ns / NS_PER_S
        # Before the first moment, and between two of them, the clock went on as usual.
        at = self.find(uptime_s)
        time_s = float(self.times_s[at] + uptime_s - self.uptimes_s[at])
        date, _, clock = shown_time(time_s).partition(" ")
        is_today = date == shown_time(float(self.times_s[-1])).partition(" ")[0]
        return clock if is_today else f"{date[5:]} {clock}"

    def points(self, snapshot: Snapshot) -> Points | None:
        """Returns live bytes over the whole time; if merged, up to the shown snapshot."""
        if snapshot.merged is not None:
            return snapshot.series
        return self.newest.of(snapshot.target.number).series
