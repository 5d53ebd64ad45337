"""The time line of a recording: the times of its snapshots, and which one is shown."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracelloc.dataclass import dataclass, fields
from tracelloc.model.figures import HeapPoints
from tracelloc.snapshots.snapshot import Snapshot, TraceSnapshot
from tracelloc.text import NS_PER_S, format_time

F64 = npt.NDArray[np.float64]
# Times between two snapshots, CLOCK_MONOTONIC, that are much longer than those around them.
Gaps = Sequence[tuple[int, int]]
_AROUND: Final = 4  # Distances before and after one that it is compared with
_LONGER: Final = 4  # So many times longer than usual is a gap
_LEAST_GAP_S: Final = 4.0


def find_gaps(uptimes_s: F64) -> Gaps:
    """Returns the gaps in which snapshots are missing; old snapshots are sparser anyway."""
    distances = np.diff(uptimes_s)
    if not len(distances):
        return ()
    padded = np.pad(distances, _AROUND, mode="reflect" if len(distances) > _AROUND else "edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * _AROUND + 1)
    usual = np.median(windows, axis=1)
    found = np.flatnonzero(distances > np.maximum(_LONGER * usual, _LEAST_GAP_S))
    ns = np.rint(uptimes_s * NS_PER_S).astype(np.int64)
    return [(int(ns[at]), int(ns[at + 1])) for at in found.tolist()]


def are_in_gaps(gaps: Gaps, times_ns: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Returns a mask of the times that lie in a gap."""
    inside = np.zeros(len(times_ns), np.bool_)
    for begin_ns, end_ns in gaps:
        inside |= (times_ns > begin_ns) & (times_ns < end_ns)
    return inside


def _with_gaps(points: HeapPoints, gaps: Gaps) -> HeapPoints:
    """Returns points with unknown values, which are negative, in gaps."""
    if not gaps:
        return points
    kept = ~are_in_gaps(gaps, points.time_ns)
    begins = np.array([begin_ns + 1 for begin_ns, _ in gaps], np.int64)
    times = np.append(points.time_ns[kept], begins)
    order = np.argsort(times, kind="stable")
    unknown = np.full(len(begins), -1, np.int64)
    columns = {
        field.name: np.append(getattr(points, field.name)[kept], unknown)[order]
        for field in fields(HeapPoints)
        if field.name != "time_ns"
    }
    return HeapPoints(time_ns=times[order], **columns)


@dataclass(frozen=True, slots=True, eq=False)
class TimeLine:
    """The times of all snapshots as columns, oldest first. Immutable."""

    uptimes_s: F64  # CLOCK_MONOTONIC of the recorded machine, ascending
    times_s: F64  # Seconds since 1970; they jump if the clock was set
    index: int  # Number of the snapshot that is shown
    newest: TraceSnapshot  # The last snapshot, which has the curves of the whole time
    is_growing: bool  # Whether the recording may still grow
    gaps: Gaps = ()  # Where snapshots are missing: the recorder was starved, or did not run

    @property
    def is_at_end(self) -> bool:
        return self.index == len(self.uptimes_s) - 1

    def find(self, uptime_s: float) -> int:
        """Returns the number of the last snapshot up to an uptime; 0 if all are later."""
        return max(0, int(np.searchsorted(self.uptimes_s, uptime_s, side="right")) - 1)

    def find_time(self, time_s: float) -> int:
        """Returns the number of the last snapshot up to a time in seconds since 1970."""
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

    def points(self, snapshot: Snapshot) -> HeapPoints | None:
        """Returns live bytes over the whole time; if merged, up to the shown snapshot."""
        series = snapshot.series
        if snapshot.merged is None:
            series = self.newest.snapshot_of(snapshot.target.number).series
        return None if series is None else _with_gaps(series, self.gaps)
