"""Searches the processes' memory for pointers to their old blocks.

A block without any pointer to it is unreachable (``heap.unreachable``); verdicts use this. A
search costs the target only memory bandwidth. It costs tracelloc the time to read the target's
resident memory, so there is a pause after each search.
"""

import os
from errno import ENOMEM
from functools import partial
from typing import Final

import numpy as np

from tracelloc.errors import PrivilegeError
from tracelloc.heap.unreachable import SearchResult, UnreachableBlocks
from tracelloc.model.figures import I64
from tracelloc.record.facets.facet import OLD_NS, Facet, InspectionBudget
from tracelloc.record.process.memory import RemoteMemory
from tracelloc.record.process.procfs import Process
from tracelloc.record.reachability.objectparts import ObjectParts
from tracelloc.record.reachability.roots import kernel_queue
from tracelloc.record.reachability.search import PointerSearch
from tracelloc.text import NS_PER_S

_PAUSE_NS: Final = 10 * NS_PER_S  # Least time from one search to the next
_LEAST_SEARCHES: Final = 2  # Searches after which lost blocks can be known
# Searches of a process in which nothing happens, after which there are no more: all that count.
_SETTLED: Final = 4
_QUIET_NS: Final = 60 * NS_PER_S  # Time between searches of processes in which nothing grows
_MOST_EDGES: Final = 1 << 24  # Most pointers between blocks that are stored: 128 MiB
_BYTES_A_BYTE: Final = 1 / 16  # Memory for each byte of RSS at most
_MOST_STACKS: Final = 64  # Growing stacks that are compared with each other


class PointersFacet(Facet[SearchResult]):
    """Which old blocks nothing points to. Snapshots have the result in findings, by stack."""

    name = "pointers"
    task = "pointer search"
    share = 1 / 64
    needs_memory = False
    final_errors = PrivilegeError, OSError  # If memory can't be read now, it can't be read later

    _asked: UnreachableBlocks

    def give_up(self) -> None:
        """Makes verdicts rely on the history of blocks alone, without pointer searches."""
        self.process.heap.unreachable.is_refused = True

    def pause_ns(self, now_ns: int) -> int | None:
        """Returns ns to the next search; None until there are old blocks, or if none is possible.

        For the first search, blocks are old after some seconds: the next one may be much later.
        """
        unreachable = self.process.heap.unreachable
        unreachable.is_refused |= not self.context.reads_memory
        began_ns = self.process.heap.table.cohorts.start_ns
        if unreachable.is_refused or began_ns is None or now_ns - began_ns <= OLD_NS * 3 // 2:
            return None
        if self.has_settled(_SETTLED):
            return None
        # Lost blocks need two searches to be known, those from before tracing as well.
        is_soon = self.process.is_growing or unreachable.searches < _LEAST_SEARCHES
        return _PAUSE_NS if is_soon else _QUIET_NS

    def inspect(self, budget: InspectionBudget) -> SearchResult | None:
        """Searches memory for pointers to the old blocks; returns None if interrupted."""
        process, self._asked = self.process, self.process.heap.unreachable
        if not budget.may_take((process.process.rss_bytes() or 0) * _BYTES_A_BYTE):
            raise OSError(ENOMEM, os.strerror(ENOMEM))
        old_blocks = partial(process.old_blocks, budget.now_ns - OLD_NS)
        reader, whole = self.context.root_words(), process.process
        found = PointerSearch(
            # A main thread that has ended has no memory.
            Process(whole.thread_id, whole.root), old_blocks, budget.may_go_on,
            root_words=None if reader is None else partial(reader.read, whole),
            most_edges=_MOST_EDGES,
        )  # fmt: skip
        if not found.is_whole:
            budget.check()
            return None
        queue = kernel_queue(whole)
        comparison, parts = self._asked.comparison(), ObjectParts(self._growing_stacks())
        for some in old_blocks():
            comparison.add(some, found.are_reachable(some.address))
            parts.add(some)
        objects = parts.find(RemoteMemory(whole), process.stacks_at)
        return comparison.result(
            swapped_bytes=found.swapped_bytes, kernel_queue=queue, objects=objects
        )

    def _growing_stacks(self) -> I64:
        """Returns the stacks that grow, the fastest ones if there are many."""
        findings = self.process.findings
        found = np.empty(0, np.int64) if findings is None else findings.sites.growing()
        return found[:_MOST_STACKS]

    def accept(self, result: SearchResult) -> None:
        """Adds a search to the heap's unreachable blocks, for verdicts."""
        self._asked.accept(result)
