"""Who allocates and who frees: figures per thread, and what goes from one to another.

The sums over all threads are those over all stacks: what can't be assigned to a thread
stands in the first row. (Stale blocks, whose address was handed out again, are freed by
nobody.) Thread ids that the kernel gives to another thread later on stand for both.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracelloc.heap.blocks import U32
from tracelloc.heap.totals import Amount, sums_by

I64 = npt.NDArray[np.int64]
ThreadRows = npt.NDArray[np.uint16]

NOBODY: Final = 0
"""The row of what came by in no thread's order, and of threads beyond ``MOST_THREADS``."""
MOST_THREADS: Final = 1 << 16
"""Rows, at most."""
MOST_FLOWS: Final = 1 << 14
"""Pairs of threads, at most; what goes between others is counted from and to ``NOBODY``."""
_TIDS_AT_ONCE: Final = 1 << 10
"""Thread ids that room is made for; those of a process are often close together."""
_DENSE: Final = 1 << 16
"""Pairs of threads that are counted in an array, not by sorting."""


@dataclass(slots=True)
class ThreadTotals:
    """One array per figure: a row per thread. Bytes are as requested, counts are blocks."""

    tid: I64
    """0 in the first row."""
    allocated_bytes: I64
    allocated_count: I64
    freed_bytes: I64
    """By this thread, whoever had allocated them; as the next."""
    freed_count: I64

    def __len__(self) -> int:
        return len(self.tid)


@dataclass(slots=True)
class Flow:
    """Blocks that one thread allocated and another one freed."""

    count: int = 0
    size_bytes: int = 0


class ThreadBook:
    """The threads of one address space. Not thread safe.

    Counts are whatever the amounts count in: blocks, or parts of sampled ones.
    """

    def __init__(self) -> None:
        # By thread id, from the first one that there is room for.
        self._first_tid = 0
        self._row_of = np.zeros(0, np.uint16)
        self._totals = ThreadTotals(*(np.zeros(16, np.int64) for _ in fields(ThreadTotals)))
        self.count = 1
        """Rows in use."""
        self.flows: dict[tuple[int, int], Flow] = {}
        """By the rows of who allocated and who freed."""

    def totals(self) -> ThreadTotals:
        """A copy."""
        return ThreadTotals(
            *(getattr(self._totals, f.name)[: self.count].copy() for f in fields(ThreadTotals))
        )

    @property
    def tids(self) -> I64:
        """Of the rows in use; not to be written to."""
        return self._totals.tid[: self.count]

    def rows(self, tids: U32) -> ThreadRows:
        """The rows of threads, new ones included."""
        if not len(tids):
            return np.zeros(0, np.uint16)
        self._make_room(int(tids.min()), int(tids.max()))
        at = tids - np.uint32(self._first_tid)
        rows = self._row_of.take(at)
        unknown = rows == NOBODY
        if unknown.any():
            fresh = np.unique(tids[unknown])
            fresh = fresh[fresh > 0][: MOST_THREADS - self.count]
            if len(fresh):
                self._grow(self.count + len(fresh))
                new = np.arange(self.count, self.count + len(fresh))
                self._totals.tid[new] = fresh
                self._row_of[fresh - np.uint32(self._first_tid)] = new
                self.count += len(fresh)
                rows = self._row_of[at]
        return rows

    def _make_room(self, lowest: int, highest: int) -> None:
        """For these thread ids and all in between."""
        first, end = self._first_tid, self._first_tid + len(self._row_of)
        if first <= lowest and highest < end:
            return
        if not len(self._row_of):
            first = end = lowest
        first = min(first, lowest) // _TIDS_AT_ONCE * _TIDS_AT_ONCE
        end = -(-max(end, highest + 1) // _TIDS_AT_ONCE) * _TIDS_AT_ONCE
        wider = np.zeros(end - first, np.uint16)
        at = self._first_tid - first
        wider[at : at + len(self._row_of)] = self._row_of
        self._first_tid, self._row_of = first, wider

    def _grow(self, rows: int) -> None:
        if rows <= len(self._totals):
            return
        room = max(rows, 2 * len(self._totals))
        for column in fields(ThreadTotals):
            old = getattr(self._totals, column.name)
            grown = np.zeros(room, np.int64)
            grown[: len(old)] = old
            setattr(self._totals, column.name, grown)

    def allocate(self, rows: ThreadRows, amount: Amount) -> None:
        """Counts new blocks for the threads that made them."""
        _add(self._totals.allocated_count, self._totals.allocated_bytes, rows, amount, 1)

    def free(self, rows: ThreadRows, amount: Amount, sign: int = 1) -> None:
        """Counts blocks for the threads that freed them; -1 takes that back."""
        _add(self._totals.freed_count, self._totals.freed_bytes, rows, amount, sign)

    def pass_by(self, count: int, size_bytes: int) -> None:
        """Counts blocks as made and freed by nobody knows whom."""
        self.inherit(count, size_bytes)
        self._totals.freed_count[NOBODY] += count
        self._totals.freed_bytes[NOBODY] += size_bytes

    def inherit(self, count: int, size_bytes: int) -> None:
        """Counts blocks that were there when the threads came to be."""
        self._totals.allocated_count[NOBODY] += count
        self._totals.allocated_bytes[NOBODY] += size_bytes

    def pass_on(
        self, makers: ThreadRows, enders: ThreadRows, amount: Amount, sign: int = 1
    ) -> None:
        """Counts blocks that others freed than had made them."""
        if not len(makers):
            return
        keys = makers.astype(np.int64) * self.count + enders
        distinct = None
        if self.count * self.count > _DENSE:
            distinct, keys = np.unique(keys, return_inverse=True)
        counts, sizes = _sums(keys, amount)
        for at in np.flatnonzero(counts).tolist():
            key = at if distinct is None else int(distinct[at])
            flow = self._flow(*divmod(key, self.count))
            flow.count += sign * int(counts[at])
            flow.size_bytes += sign * int(sizes[at])

    def _flow(self, maker: int, ender: int) -> Flow:
        flow = self.flows.get((maker, ender))
        if flow is None:
            if len(self.flows) >= MOST_FLOWS:
                maker = ender = NOBODY
            flow = self.flows.setdefault((maker, ender), Flow())
        return flow


def _add(counts: I64, sizes: I64, rows: ThreadRows, amount: Amount, sign: int) -> None:
    if len(rows):
        more_counts, more_sizes = _sums(rows, amount)
        counts[: len(more_counts)] += sign * more_counts
        sizes[: len(more_sizes)] += sign * more_sizes


def _sums(keys: npt.NDArray[Any], amount: Amount) -> tuple[I64, I64]:
    parts, size_bytes = amount
    if parts is None:
        return sums_by(keys, size_bytes)
    counts = np.bincount(keys, parts).astype(np.int64)
    return counts, np.bincount(keys, size_bytes).astype(np.int64)
