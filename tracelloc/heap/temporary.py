"""Temporary allocations: freed soon after by the thread that made them.

Soon means: before that thread has made more than so many other allocations, or within
some time. Code that makes many of them could often do without, or reuse one block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracelloc.heap.blocks import U64, Mask, Rows
from tracelloc.heap.chunk import Chunk
from tracelloc.heap.ends import Ends
from tracelloc.heap.threads import ThreadRows

I64 = npt.NDArray[np.int64]

MOST_BETWEEN: Final = 64
"""Largest number of other allocations that can be asked for."""
_NEVER: Final = np.iinfo(np.intp).max


@dataclass(frozen=True, slots=True)
class Soon:
    """What counts as temporary."""

    between: int = 1
    """At most this many other allocations of the thread came between."""
    life_ns: int | None = None
    """If given, this counts instead: it lived at most so long, by the kernel's ticks, which
    are 1 to 10 ms apart."""


SOON: Final = Soon()


class TemporaryFinder:
    """Remembers the last allocations of each thread. Not thread safe."""

    def __init__(self, soon: Soon) -> None:
        self.soon = soon
        self._kept = soon.between + 1
        # By thread: how many allocations it has made, and the addresses of the last ones,
        # the n-th one in column n modulo the number of columns.
        self._made = np.zeros(0, np.int64)
        self._last = np.zeros((0, self._kept), np.uint64)

    def find(self, chunk: Chunk, ends: Ends, thread: ThreadRows, threads: int) -> Mask:
        """Which of the blocks that ended were temporary. See ``needs_order``.

        ``thread``: a number for the thread of each event, below ``threads``.
        """
        if self.soon.life_ns is not None:
            # Below zero if the tick came late: that is soon enough.
            lives_ns = (chunk.time_ns[ends.row] - ends.birth_ns(chunk)).view(np.int64)
            return ~ends.is_remote & (lives_ns <= self.soon.life_ns)
        self._grow(threads)
        made = _Made(chunk.made, thread.take(chunk.made), threads)
        # The row from which on a block is no longer among the last ones of its thread.
        limit = np.empty(len(chunk), np.intp)
        limit[made.row] = made.nth_next(self._kept)
        here = ends.here
        found = np.empty(len(ends), np.bool_)
        np.less(ends.row[:here], limit.take(ends.made_row), out=found[:here])
        found[here:] = self._was_last(chunk, made, ends.row[here:], thread)
        found &= ~ends.is_remote
        self._remember(made, chunk.address)
        return found

    @property
    def needs_order(self) -> bool:
        """Whether chunks have to be in order."""
        return self.soon.life_ns is None

    def forget(self, chunk: Chunk, ends: Ends, thread: ThreadRows) -> Mask:
        """What threads did meanwhile is not known, the chunk is not in order.

        Returns which of the earlier blocks that ended may have been temporary.
        """
        unknown = ~ends.is_remote
        unknown[: ends.here] = False
        # Threads that are new have made nothing before.
        unknown &= thread.take(ends.row) < len(self._last)
        at = np.flatnonzero(unknown)
        row = ends.row[at]
        unknown[at] = (self._last[thread[row]] == chunk.address[row, None]).any(axis=1)
        self._last[:] = 0
        return unknown

    def _grow(self, threads: int) -> None:
        old = len(self._made)
        if threads > old:
            room = max(threads, 2 * old)
            made, last = np.zeros(room, np.int64), np.zeros((room, self._kept), np.uint64)
            made[:old], last[:old] = self._made, self._last
            self._made, self._last = made, last

    def _was_last(self, chunk: Chunk, made: _Made, row: Rows, thread: ThreadRows) -> Mask:
        """Which blocks, ended by these events, are among the last that the thread of the
        event had made, if those in this chunk count as well.
        """
        thread, address = thread.take(row).astype(np.intp), chunk.address.take(row)
        found = np.zeros(len(row), np.bool_)
        for back in range(self._kept):
            # The last but so many before this chunk: few can be in it before the end.
            column = (self._made - 1 - back) % self._kept
            last = self._last[np.arange(len(column)), column]
            at = np.flatnonzero(last.take(thread) == address)
            if len(at):
                found[at] |= row[at] < made.nth_first(self._kept - back - 1)[thread[at]]
        return found

    def _remember(self, made: _Made, address: U64) -> None:
        for back in range(self._kept):
            thread, row = made.last_but(back)
            column = (self._made[thread] + made.count[thread] - 1 - back) % self._kept
            self._last[thread, column] = address[row]
        self._made[: len(made.count)] += made.count


class _Made:
    """The allocations of a chunk, thread by thread, each thread's in their order."""

    def __init__(self, row: Rows, thread: ThreadRows, threads: int) -> None:
        self.count: I64 = np.bincount(thread, minlength=threads)
        self._ends = np.cumsum(self.count)
        if self.count.max(initial=0) < len(row):
            order = np.argsort(thread, kind="stable")
            row, thread = row.take(order), thread.take(order)
        self.row = row
        self._thread = thread

    def nth_next(self, n: int) -> npt.NDArray[np.intp]:
        """For each, the row of the allocation of its thread that is the n-th one after it."""
        rows = np.full(len(self.row), _NEVER, np.intp)
        if n < len(rows):
            same = self._thread[n:] == self._thread[:-n]
            np.copyto(rows[:-n], self.row[n:], where=same)
        return rows

    def nth_first(self, n: int) -> npt.NDArray[np.intp]:
        """By thread, the row of its allocation that has n others before it in the chunk."""
        rows = np.full(len(self.count), _NEVER, np.intp)
        threads = np.flatnonzero(self.count > n)
        rows[threads] = self.row[self._ends[threads] - self.count[threads] + n]
        return rows

    def last_but(self, n: int) -> tuple[npt.NDArray[Any], Rows]:
        """Threads, and the row of each one's last allocation but n."""
        threads = np.flatnonzero(self.count > n)
        return threads, self.row[self._ends[threads] - 1 - n]
