"""Searches the processes' memory for pointers to their old blocks.

A block without any pointer to it is unreachable (``heap.unreachable``); verdicts use this. A
search costs the target only memory bandwidth. It costs tracelloc the time to read the target's
resident memory, so there is a pause after each search.
"""

from __future__ import annotations

from typing import Final

from tracelloc.errors import PrivilegeError
from tracelloc.heap.unreachable import SearchResult, UnreachableBlocks
from tracelloc.model.blocks import Blocks
from tracelloc.record.facets.seam import OLD_NS, Facet, InspectionBudget
from tracelloc.record.reachability.search import search
from tracelloc.text import NS_PER_S

_PAUSE_NS: Final = 10 * NS_PER_S  # Least time from one search to the next
_FIRST: Final = 2
_QUIET_NS: Final = 60 * NS_PER_S  # Time between searches of processes in which nothing grows
_LEAST: Final = 1 << 20  # How many blocks one search looks for if memory is short
_MOST: Final = 1 << 24  # Most blocks that one search looks for
_BYTES_A_BLOCK: Final = 256  # Memory to be left for each; a search takes about 120 bytes


class PointersFacet(Facet[SearchResult]):
    """Which blocks nothing points to. Snapshots have it in their findings, by stack."""

    name = "pointers"
    task = "pointer search"
    share = 1 / 64
    needs_memory = False
    final_errors = PrivilegeError, OSError  # If memory can't be read now, it can't be later

    _asked: UnreachableBlocks

    def give_up(self) -> None:
        """Has verdicts rely on the past of blocks alone."""
        self.process.heap.unreachable.is_refused = True

    def pause_ns(self, now_ns: int) -> int | None:
        """Some seconds; None until there are blocks that are old, or if nothing can be known.

        The first search finds blocks of some seconds to be old: the next one may be much later.
        """
        unreachable = self.process.heap.unreachable
        unreachable.is_refused |= not self.context.reads_memory
        began_ns = self.process.heap.table.cohorts.start_ns
        if unreachable.is_refused or began_ns is None or now_ns - began_ns <= OLD_NS * 3 // 2:
            return None
        # Lost blocks need two searches to be known, those from before tracing as well.
        is_soon = self.process.is_growing or unreachable.searches < _FIRST
        return _PAUSE_NS if is_soon else _QUIET_NS

    def inspect(self, budget: InspectionBudget) -> SearchResult | None:
        """Searches for pointers to the old blocks, as many as memory allows."""
        self._asked, roots = self.process.heap.unreachable, self.context.root_words()
        parts: list[Blocks] = []
        count, most = 0, _LEAST
        if budget.memory_bytes is not None:
            most = min(max(most, budget.memory_bytes // _BYTES_A_BLOCK), _MOST)
        has_all = True
        for some in self.process.old_blocks(budget.now_ns - OLD_NS):
            has_all = count < most
            if not has_all:
                break
            parts.append(some)
            count += len(some)
        old = Blocks.concatenate(parts)
        found = search(self.process.process, old, budget.may_go_on, roots)
        if found is None:
            budget.check()
            return None
        return self._asked.compare(
            found.blocks, found.reachable, has_all=has_all, swapped_bytes=found.swapped_bytes
        )

    def accept(self, result: SearchResult) -> None:
        """Makes the judge see it."""
        self._asked.accept(result)
