"""Accounts for the memory of the traced processes.

Each time, the process's heap is walked (``record.heapwalk``), so that a snapshot can tell memory in
use from memory that was freed and is kept by the malloc library. The process pays nothing for it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tracelloc.heap.heap import Heap
from tracelloc.model.heapusage import NO_MEMORY, HeapUsage, HeapUsages, StackClass
from tracelloc.record.facets.seam import Facet, InspectionBudget
from tracelloc.record.heapwalk.measuring import measure_memory
from tracelloc.text import NS_PER_S

_PAUSE_NS: Final = 10 * NS_PER_S
# Least time between accounts of a process whose memory has changed.
_CHANGED_PAUSE_NS: Final = 2 * NS_PER_S
_CHANGED: Final = 0.05
_BYTES_A_BYTE: Final = 1 / 4  # Memory for each byte of RSS at most: 8 bytes for blocks of 32


class HeapFacet(Facet[HeapUsages]):
    """Where its resident memory is: now, and at the first account."""

    name = "heap"
    task = "accounting for memory"
    share = 1 / 128
    at_ends = True
    _first: HeapUsage | None = None

    def begin_program(self) -> None:
        """Compares with a heap that was empty."""
        self._first = NO_MEMORY

    def pause_ns(self, _now_ns: int) -> int | None:
        """Some seconds, less if its memory has changed much since the last account."""
        if not self.context.reads_memory:
            return None
        if self.result is None:
            return _CHANGED_PAUSE_NS
        if self.has_settled(1):
            return None
        before = self.result.now.account.rss_bytes
        change = abs((self.process.process.rss_bytes() or 0) - before)
        return _CHANGED_PAUSE_NS if change > _CHANGED * before else _PAUSE_NS

    def inspect(self, budget: InspectionBudget) -> HeapUsages | None:
        """Raises OSError, TargetError, PrivilegeError."""
        process = self.process.process
        if not budget.may_take((process.rss_bytes() or 0) * _BYTES_A_BYTE):
            return None
        usage = measure_memory(process, self.process.stacks_at)
        return HeapUsages(usage, self._first or usage)

    def accept(self, result: HeapUsages) -> None:
        """Compares classes with the counts of stacks, which the session's lock guards."""
        now = replace(result.now, stack_classes=_of_most(result.now, self.process.heap))
        self._first = self._first or now
        self.result = HeapUsages(now, self._first)


def _of_most(usage: HeapUsage, heap: Heap) -> tuple[StackClass, ...]:
    """The classes with which most blocks of a stack begin."""
    totals = heap.table.totals
    if totals.sample_bytes is not None:
        return ()
    live = totals.live_count
    return tuple(
        each
        for each in usage.stack_classes
        if each.stack < len(live) and 2 * each.count > live[each.stack]
    )
