"""Searches the processes' memory for pointers to their old blocks.

A block without any pointer to it is unreachable (``heap.unreachable``); verdicts use this. A
search costs the target only memory bandwidth. It costs tracelloc the time to read the target's
resident memory, so there is a pause after each search.
"""

import os
from collections.abc import Callable
from errno import ENOMEM
from functools import partial
from typing import Final

import numpy as np

from tracelloc.errors import PrivilegeError
from tracelloc.heap.unreachable import SearchResult, UnreachableBlocks
from tracelloc.model.blocks import Blocks
from tracelloc.model.figures import I64, U64
from tracelloc.record.facets.facet import OLD_NS, Facet, InspectionBudget
from tracelloc.record.process.memory import RemoteMemory
from tracelloc.record.process.procfs import Process
from tracelloc.record.reachability.roots import kernel_queue
from tracelloc.record.reachability.search import PointerSearch
from tracelloc.text import NS_PER_S

_SAMPLES: Final = 64  # Blocks of each stack whose contents are read
_READ_BYTES: Final = 512  # Of each block
_AT_ONCE: Final = 1 << 14  # Addresses that are looked up at a time
_LEAST_SHARE: Final = 0.1  # Of a stack's blocks, that another's point to; and all others'
_LEAST_SUM: Final = 0.5


class ObjectParts:
    """Samples of some stacks' blocks."""

    def __init__(self, stacks: I64) -> None:
        self._stacks = np.sort(stacks)
        self._counts = np.zeros(len(self._stacks), np.int64)
        self._taken = np.zeros(len(self._stacks), np.int64)
        self._parts = [Blocks.empty()]

    def add(self, blocks: Blocks) -> None:
        """Adds some blocks. They have random addresses, so that the first ones are a sample."""
        some = np.flatnonzero(np.isin(blocks.stack, self._stacks))
        order = some[np.argsort(blocks.stack[some], kind="stable")]
        starts, ends = (
            np.searchsorted(blocks.stack[order], self._stacks, side) for side in ("left", "right")
        )
        for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            taken = order[start : min(end, start + _SAMPLES - int(self._taken[row]))]
            self._taken[row] += len(taken)
            self._parts.append(blocks.select(taken))
        self._counts += ends - starts

    def find(self, memory: RemoteMemory, stacks_at: Callable[[U64], I64]) -> dict[int, int]:
        """Returns, by stack, the lowest stack of its object; stacks without others are left out.

        ``stacks_at`` returns the stack of the live block at each address, -1 if there is none.
        Raises TargetError, PrivilegeError.
        """
        blocks, count = Blocks.concatenate(self._parts), len(self._stacks)
        if count < 2:
            return {}
        words, was_read = memory.read(blocks.address, _READ_BYTES)
        ends = np.arange(8, _READ_BYTES + 1, 8, dtype=np.uint64)
        is_inside = was_read[:, None] & (ends <= blocks.size[:, None])
        rows, columns = np.nonzero(is_inside & (words > 0))
        source = np.searchsorted(self._stacks, blocks.stack[rows])
        targets, target = np.unique(words[rows, columns], return_inverse=True)
        stacks = [stacks_at(targets[at : at + _AT_ONCE]) for at in range(0, len(targets), _AT_ONCE)]
        stack = np.concatenate([np.empty(0, np.int64), *stacks])
        led_to = np.minimum(np.searchsorted(self._stacks, stack), count - 1)
        # Each block that samples of a stack point to counts once.
        source, target = np.divmod(np.unique(source * len(targets) + target), max(1, len(targets)))
        pairs = (source * count + led_to[target])[self._stacks[led_to[target]] == stack[target]]
        pointed_to = np.bincount(pairs, minlength=count * count).reshape(count, count)
        np.fill_diagonal(pointed_to, 0)
        shares = pointed_to * (self._counts / np.maximum(self._taken, 1))[:, None]
        shares /= np.maximum(self._counts, 1)
        is_part = (shares >= _LEAST_SHARE) & (shares.sum(axis=0) >= _LEAST_SUM)
        lowest = np.arange(count)
        for one, two in zip(*np.nonzero(is_part), strict=True):
            lowest[lowest == max(lowest[one], lowest[two])] = min(lowest[one], lowest[two])
        several = np.flatnonzero(np.bincount(lowest, minlength=count)[lowest] > 1)
        found = zip(self._stacks[several].tolist(), lowest[several].tolist(), strict=True)
        return {stack: int(self._stacks[first]) for stack, first in found}


_PAUSE_NS: Final = 10 * NS_PER_S  # Least time from one search to the next
_LEAST_SEARCHES: Final = 2  # Searches after which lost blocks can be known
_SETTLED: Final = 4  # Searches, after which there are no more if nothing happens: all that count
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
        """Returns ns to the next search; None until there are old blocks, or if there is none."""
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
        findings = self.process.findings
        found = np.empty(0, np.int64) if findings is None else findings.sites.growing()
        return found[:_MOST_STACKS]

    def accept(self, result: SearchResult) -> None:
        self._asked.accept(result)
