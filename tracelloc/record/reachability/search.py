"""Searches a process's memory for pointers to its blocks, without stopping it.

If the heap can be walked, its free memory is no root, nor is what the malloc library keeps there:
pointers in it are stale. A search may miss a moving pointer: one that is copied from unread memory
to memory already read, and then overwritten. So a block counts as unreachable only if two searches
agree, and only old blocks are searched for; all others count as reachable. What is swapped out is
not read, so that nothing is swapped in: if pointers may be there, the search can't tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracelloc.model.blocks import Blocks
from tracelloc.record.heapwalk.classes import ClassTally
from tracelloc.record.heapwalk.pieces import PieceReader
from tracelloc.record.heapwalk.ranges import BlockRanges
from tracelloc.record.heapwalk.walk import walk_heap
from tracelloc.record.heapwalk.walked import NotWalkableError, WalkedHeap
from tracelloc.record.process.memory import U64, Mask, RemoteMemory
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.residency import read_resident
from tracelloc.record.reachability.areas import searched_areas
from tracelloc.record.reachability.blockbits import BlockBits
from tracelloc.record.reachability.roots import QUIET, ROOT, MemoryKinds, RootWords, kinds_of
from tracelloc.record.reachability.scanning import MemoryScanner

_MOST_EDGES: Final = 1 << 24  # Most pointers between blocks that are stored: 128 MiB


class PointerSearch:
    """One search of a process's memory for pointers to some of its blocks.

    All other blocks are roots.
    """

    def __init__(
        self,
        process: Process,
        some_blocks: Callable[[], Iterable[Blocks]],
        may_go_on: Callable[[], bool] = lambda: True,
        root_words: RootWords | None = None,
    ) -> None:
        """``some_blocks`` yields the blocks, some at a time, in any order.

        ``root_words``: reads the roots that are not in memory. ``is_whole`` is False if
        ``may_go_on``, which is called after each MiB, returned False. Raises TargetError,
        PrivilegeError, OSError and MemoryError.
        """
        whole = process
        # A main thread that has ended has no memory.
        process = Process(process.thread_id, process.root)
        reader = PieceReader(RemoteMemory(process))
        heap = walked(reader)
        self._bits = BlockBits(_MOST_EDGES)
        self.swapped_bytes = 0
        """Memory that is swapped out in which there may be pointers to blocks: in roots, and in
        blocks that are reachable."""
        roots = self._add_blocks(heap, some_blocks)
        kinds = MemoryKinds() if heap is None else kinds_of(process, reader, heap, roots)
        del heap
        scanner = MemoryScanner(reader.memory, self._bits, may_go_on=may_go_on)
        if root_words is not None:
            scanner.mark(root_words.read(whole))
        self.is_whole = scanner.scan_all(kinds)
        if self.is_whole:
            self._bits.finish()
            self.swapped_bytes = swapped_bytes(reader.memory, kinds, self._bits.has_reachable)

    @property
    def edges_left_out(self) -> int:
        """Pointers between blocks that were not stored: their targets count as reachable."""
        return self._bits.edges_left_out

    def are_reachable(self, addresses: U64) -> Mask:
        """Which blocks can be reached, by their addresses."""
        found = np.empty(len(addresses), np.uint8)
        self._bits.are_reachable(addresses, found)
        return found.view(np.bool_)

    def _add_blocks(
        self, heap: WalkedHeap | None, some_blocks: Callable[[], Iterable[Blocks]]
    ) -> list[tuple[int, int]]:
        """Adds the heap's blocks, and those that were cut from them or lie elsewhere.

        A block's walked size wins. Returns the blocks of the heap from which others were cut.
        """
        for walked_blocks in () if heap is None else BlockRanges.some_in_use(heap):
            self._bits.add(walked_blocks.starts, walked_blocks.reaches)
        others = [(NOTHING, NOTHING)]
        for some in some_blocks():
            found = np.empty(len(some), np.uint8)
            self._bits.ask(some.address, found)
            rest = some.select(found == 0)
            others.append((rest.address, rest.address + np.maximum(rest.size, np.uint64(1))))
        starts, ends = (np.concatenate(column) for column in zip(*others, strict=True))
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
        # After a lost free, two blocks may overlap: the later one is live.
        ends[:-1] = np.minimum(ends[:-1], starts[1:])
        roots = self._bits.cut(starts)
        self._bits.add(starts[starts < ends], ends[starts < ends])
        self._bits.ask(starts, np.empty(len(starts), np.uint8))
        return roots


def swapped_bytes(
    memory: RemoteMemory, kinds: MemoryKinds, has_reachable: Callable[[int, int], bool]
) -> int:
    """The memory that is swapped out and may lead to blocks.

    ``has_reachable``: whether there are reachable blocks from one address to another.
    """
    resident = read_resident(memory.process)
    if resident is None or not resident.swapped:
        return 0
    areas = (area[:2] for area in searched_areas(memory.process.maps_text()))
    runs = [run[1:] for run in memory.resident_runs(areas, lambda: True, swapped=True)]
    return sum(
        end - start
        for start, end, kind in kinds.split(runs)
        if kind == ROOT or (kind == QUIET and has_reachable(start, end))
    )


def walked(reader: PieceReader) -> WalkedHeap | None:
    """The heap; None if it can't be walked."""
    try:
        return walk_heap(reader, ClassTally([]))
    except NotWalkableError:
        return None


@dataclass(slots=True)
class SearchedRanges:
    """Address ranges of blocks that do not overlap: those searched for, and others in use."""

    starts: U64
    ends: U64
    is_asked: Mask  # Whether it is one of the blocks searched for; they are in their order
    # Blocks of the heap from which another library has cut blocks: start and end.
    roots: list[tuple[int, int]]

    def is_any(self, chosen: Mask) -> Callable[[int, int], bool]:
        """Whether any of the chosen blocks lies between one address and another."""

        def is_there(start: int, end: int) -> bool:
            first = np.searchsorted(self.ends, np.uint64(start), side="right")
            last = np.searchsorted(self.starts, np.uint64(end))
            return bool(chosen[first:last].any())

        return is_there

    @classmethod
    def join(cls, blocks: Blocks, heap: WalkedHeap | None) -> SearchedRanges:
        """Merges traced blocks, by address, and walked ones; the walked size wins."""
        starts, ends = blocks.address, blocks.address + np.maximum(blocks.size, np.uint64(1))
        roots: list[tuple[int, int]] = []
        others = NOTHING, NOTHING
        if heap is not None:
            found = BlockRanges.in_use(heap)
            at = np.searchsorted(starts, found.starts)
            following = np.searchsorted(starts, found.starts, side="right")
            later = np.append(starts, np.uint64(_NOWHERE))
            is_cut = later[following] < found.reaches
            roots = _pairs(found.starts[is_cut], found.reaches[is_cut])
            is_known = (following > at) & ~is_cut
            ends[at[is_known]] = found.reaches[is_known]
            rest = (following == at) & ~is_cut
            others = found.starts[rest], found.reaches[rest]
        # After a lost free, two blocks may overlap: the later one is live.
        ends[:-1] = np.minimum(ends[:-1], starts[1:])
        others = _outside(*others, starts, ends)
        order = np.argsort(np.concatenate([starts, others[0]]), kind="stable")
        return cls(
            np.concatenate([starts, others[0]])[order],
            np.concatenate([ends, others[1]])[order],
            order < len(starts),
            roots,
        )


NOTHING: Final = np.empty(0, np.uint64)
_NOWHERE: Final = (1 << 64) - 1


def _outside(starts: U64, ends: U64, taken_from: U64, taken_to: U64) -> tuple[U64, U64]:
    """Selects ranges that do not begin within the others, all by address."""
    if not len(taken_from):
        return starts, ends
    before = np.searchsorted(taken_from, starts, side="right") - 1
    kept = (before < 0) | (taken_to[before] <= starts)
    return starts[kept], ends[kept]


def _pairs(starts: U64, ends: U64) -> list[tuple[int, int]]:
    return list(zip(starts.tolist(), ends.tolist(), strict=True))
