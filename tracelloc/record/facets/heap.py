"""Accounts for the memory of the traced processes.

For each account, the process's heap is walked (``record.heapwalk``), so that a snapshot can tell
memory in use from freed memory that the malloc library keeps. The process pays nothing for that.
"""

from dataclasses import replace
from typing import Final

from tracelloc.heap.heap import Heap
from tracelloc.model.heapusage import NO_MEMORY, HeapUsage, HeapUsages, StackClass
from tracelloc.record.facets.facet import Facet, InspectionBudget
from tracelloc.record.heapwalk.measuring import measure_memory
from tracelloc.text import NS_PER_S

_PAUSE_NS: Final = 10 * NS_PER_S
_CHANGED_PAUSE_NS: Final = 2 * NS_PER_S  # Between accounts if memory has changed much
_CHANGED: Final = 0.05
_BYTES_A_BYTE: Final = 1 / 4  # Memory for each byte of RSS at most: 8 bytes for blocks of 32


class HeapFacet(Facet[HeapUsages]):
    """Where a process's resident memory is: now, and at the first account."""

    name = "heap"
    task = "accounting for memory"
    share = 1 / 128
    at_ends = True
    _first: HeapUsage | None = None

    def begin_program(self) -> None:
        """Makes later accounts compare with an empty heap, since a new program begins."""
        self._first = NO_MEMORY

    def pause_ns(self, _now_ns: int) -> int | None:
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
        """Walks the heap and accounts for memory. Raises OSError, TargetError, PrivilegeError."""
        process = self.process.process
        if not budget.may_take((process.rss_bytes() or 0) * _BYTES_A_BYTE):
            return None
        usage = measure_memory(process, self.process.stacks_at)
        return HeapUsages(usage, self._first or usage)

    def accept(self, result: HeapUsages) -> None:
        """Keeps an account, with the classes of most blocks of each stack. Needs the lock."""
        now = replace(result.now, stack_classes=_of_most(result.now, self.process.heap))
        self._first = self._first or now
        self.result = HeapUsages(now, self._first)


def _of_most(usage: HeapUsage, heap: Heap) -> tuple[StackClass, ...]:
    """Returns the classes of those stacks most of whose blocks begin with one class."""
    totals = heap.table.totals
    if totals.sample_bytes is not None:
        return ()
    live = totals.live_count
    return tuple(
        each
        for each in usage.stack_classes
        if each.stack < len(live) and 2 * each.count > live[each.stack]
    )
