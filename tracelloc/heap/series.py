"""Live bytes, RSS and kept memory of the whole heap over time: a bounded number of points.

As in ``History``, the points always cover the whole traced time: if there is no room, two points
are merged, and the interval doubles.
"""

from typing import Final

import numpy as np

from tracelloc.model.figures import HeapPoints
from tracelloc.text import NS_PER_S

POINTS: Final = 600  # Most points kept; even
_FIRST_DISTANCE_NS: Final = NS_PER_S // 4
_NONE: Final = -1


class HeapSeries:
    """Collects points: live bytes, RSS and kept memory at one time. Not thread safe."""

    def __init__(self, start_ns: int, points: int = POINTS) -> None:
        self._distance_ns = _FIRST_DISTANCE_NS
        self._next_ns = start_ns
        # Rows: time, outstanding, resident, kept.
        self._columns = np.zeros((4, points), np.int64)
        self._used = 0

    def is_due(self, now_ns: int) -> bool:
        """Whether it is time for another point."""
        return now_ns >= self._next_ns

    def add(self, now_ns: int, live_bytes: int, rss_bytes: int | None, kept_bytes: int = 0) -> None:
        """Adds a point. ``kept_bytes``: freed memory that is still resident; 0: unknown."""
        if self._used == self._columns.shape[1]:
            # Keeps the first point, and the later one of each further pair.
            half = self._used // 2
            last = self._columns[:, -1].copy()
            self._columns[:, 1:half] = self._columns[:, 2::2].copy()
            # The number is even, so the newest has no partner yet.
            self._columns[:, half] = last
            self._used = half + 1
            self._distance_ns *= 2
        resident = _NONE if rss_bytes is None else rss_bytes
        self._columns[:, self._used] = now_ns, live_bytes, resident, kept_bytes
        self._used += 1
        # Missed points are not taken later.
        self._next_ns = max(self._next_ns + self._distance_ns, now_ns + 1)

    def add_before(self, live_bytes: int) -> None:
        """Adds bytes that were live since the start, but were found only now, to all points."""
        self._columns[1, : self._used] += live_bytes

    def points(self) -> HeapPoints:
        return HeapPoints(*self._columns[:, : self._used].copy())
