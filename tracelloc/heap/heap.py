"""The heap of one memory image: everything that a forked child gets a copy of, in one value."""

from __future__ import annotations

from typing import Final

import numpy as np

from tracelloc.dataclass import fields
from tracelloc.heap.ranges import RangeTable
from tracelloc.heap.stacks import Stacks
from tracelloc.heap.table import LiveTable
from tracelloc.heap.unreachable import UnreachableBlocks
from tracelloc.model.figures import U32, U64, HeapPoints, History, Mask
from tracelloc.model.process import DEFAULT_POLICY, TemporaryPolicy
from tracelloc.text import NS_PER_S


class Heap:
    """Blocks, totals, lifetimes and history with call stacks, guarded by the session's lock."""

    def __init__(
        self,
        now_ns: int,
        stacks: Stacks | None = None,
        sample_bytes: int | None = None,
        temporary: TemporaryPolicy = DEFAULT_POLICY,
    ) -> None:
        """Starts empty at ``now_ns`` (CLOCK_MONOTONIC). Other parameters: see ``LiveTable``."""
        self.stacks = Stacks() if stacks is None else stacks
        self.table = LiveTable(self.stacks, sample_bytes, temporary)
        self.table.cohorts.begin(now_ns)
        self.ranges = RangeTable(self.stacks)
        self.history = History(now_ns)
        self.unreachable = UnreachableBlocks()

    def fork(self, now_ns: int) -> Heap:
        """Returns a forked child's heap; blocks freed before ``now_ns`` do not count for it."""
        child = Heap.__new__(Heap)
        child.stacks = self.stacks
        child.table = self.table.fork()
        child.ranges = self.ranges.fork()
        child.history = History(now_ns, self.table.totals.live_bytes)
        child.unreachable = UnreachableBlocks()
        return child

    def renewed(self, now_ns: int, stacks: Stacks) -> Heap:
        """Returns an empty heap for the program executed at ``now_ns``, with these call stacks."""
        return Heap(now_ns, stacks, self.table.totals.sample_bytes, self.table.temporary)

    def add_earlier(self, addresses: U64, sizes: U64, stacks: U32) -> Mask:
        """Adds blocks that existed when tracing began (``LiveTable.add_earlier``)."""
        before = self.table.totals.live_bytes
        added = self.table.add_earlier(addresses, sizes, stacks)
        more = self.table.totals.live_bytes
        more[: len(before)] -= before
        self.history.add_before(more)
        return added

    @property
    def live_bytes(self) -> int:
        return self.table.live_bytes


POINTS: Final = 600  # Most points kept; even
_FIRST_DISTANCE_NS: Final = NS_PER_S // 4
_NONE: Final = -1


class HeapSeries:
    """Collects the points of a series. Not thread safe."""

    def __init__(self, start_ns: int, points: int = POINTS) -> None:
        self._distance_ns = _FIRST_DISTANCE_NS
        self._next_ns = start_ns
        self._columns = np.zeros((len(fields(HeapPoints)), points), np.int64)
        self._used = 0

    def is_due(self, now_ns: int) -> bool:
        return now_ns >= self._next_ns

    def add(self, now_ns: int, live_bytes: int, rss_bytes: int | None, *others: int) -> None:
        """Adds a point. ``others``: the remaining columns of ``HeapPoints``; 0: unknown."""
        if self._used == self._columns.shape[1]:
            half = self._used // 2  # Keeps the first point, and the later one of each pair
            last = self._columns[:, -1].copy()
            self._columns[:, 1:half] = self._columns[:, 2::2].copy()
            # The number is even, so the newest has no partner yet.
            self._columns[:, half] = last
            self._used = half + 1
            self._distance_ns *= 2
        point = now_ns, live_bytes, _NONE if rss_bytes is None else rss_bytes, *others
        self._columns[: len(point), self._used] = point
        self._used += 1
        # Missed points are not taken later.
        self._next_ns = max(self._next_ns + self._distance_ns, now_ns + 1)

    def add_before(self, live_bytes: int) -> None:
        """Adds bytes that were live since the start, but were found only now, to all points."""
        self._columns[1, : self._used] += live_bytes

    def points(self) -> HeapPoints:
        return HeapPoints(*self._columns[:, : self._used].copy())
