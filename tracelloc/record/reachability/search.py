"""Searches a process's memory for pointers to its blocks, without stopping it.

If the heap can be walked, its free memory is no root, nor is the malloc library's own data there:
pointers in both are stale. A search may miss a moving pointer: copied from unread memory to memory
already read, and then overwritten. So a block counts as unreachable only if two searches
agree, and only old blocks are searched for; all others count as reachable. What is swapped out is
not read, so that nothing is swapped in: if pointers may be there, the search can't tell.
"""

from collections.abc import Callable, Iterable
from typing import Final

import numpy as np

from tracelloc.model.blocks import Blocks
from tracelloc.model.process import MallocLibrary
from tracelloc.record.heapwalk.arenas import NO_ENTRIES, NotWalkableError, WalkedHeap
from tracelloc.record.heapwalk.classes import ClassTally
from tracelloc.record.heapwalk.pieces import PieceReader
from tracelloc.record.heapwalk.ranges import BlockRanges
from tracelloc.record.heapwalk.walk import walk_heap
from tracelloc.record.process.memory import U64, Mask, RemoteMemory
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.residency import read_resident
from tracelloc.record.reachability.blockbits import BlockBits
from tracelloc.record.reachability.deadmemory import unused_parts
from tracelloc.record.reachability.roots import QUIET, ROOT, MemoryKinds, kinds_of
from tracelloc.record.reachability.scanning import MemoryScanner
from tracelloc.record.reachability.wordlog import searched_areas

MOST_EDGES: Final = 1 << 26  # Most pointers between blocks that are stored: 512 MiB


class PointerSearch:
    """One search of a process's memory for pointers to some of its blocks.

    All other blocks are roots.
    """

    def __init__(
        self,
        process: Process,
        some_blocks: Callable[[], Iterable[Blocks]],
        may_go_on: Callable[[], bool] = lambda: True,
        *,
        root_words: Callable[[], U64] | None = None,
        most_edges: int = MOST_EDGES,
    ) -> None:
        """``some_blocks`` yields the blocks, some at a time, in any order.

        ``process``: one of its threads that has not ended, and so has memory. ``root_words``: reads
        the roots that are not in memory. ``is_whole`` is False if ``may_go_on``, which is called
        after each MiB, returned False. ``most_edges``: how many pointers between blocks are stored,
        8 bytes each. Raises TargetError, PrivilegeError, OSError and MemoryError.
        """
        reader = PieceReader(RemoteMemory(process))
        heap = _walked(reader)
        self.bits = BlockBits(most_edges, unit_bits=unit_bits(heap))
        self.swapped_bytes = 0
        """Memory that is swapped out in which there may be pointers to blocks: in roots, and in
        blocks that are reachable."""
        unused = [] if heap is None else unused_parts(reader, heap)
        roots = self._add_blocks(heap, some_blocks)
        kinds = kinds_of(process, reader, heap, unused, roots)
        del heap
        scanner = MemoryScanner(reader.memory, self.bits, may_go_on=may_go_on)
        if root_words is not None:
            scanner.mark(root_words())
        self.is_whole = scanner.scan_all(kinds)
        if self.is_whole:
            self.bits.finish()
            self.swapped_bytes = self._swapped_bytes(reader.memory, kinds)

    @property
    def edges_left_out(self) -> int:
        """Number of pointers between blocks that were not stored: targets count as reachable."""
        return self.bits.edges_left_out

    def are_reachable(self, addresses: U64) -> Mask:
        """Returns a mask of the blocks, given by address, that can be reached."""
        found = np.empty(len(addresses), np.uint8)
        self.bits.are_reachable(addresses, found)
        return found.view(np.bool_)

    def _add_blocks(
        self, heap: WalkedHeap | None, some_blocks: Callable[[], Iterable[Blocks]]
    ) -> list[tuple[int, int]]:
        """Adds the heap's blocks, and traced blocks that were cut from them or lie elsewhere.

        A block's walked size wins. Returns the blocks of the heap from which others were cut.
        """
        for walked_blocks in () if heap is None else BlockRanges.some_in_use(heap, forget=True):
            self.bits.add(walked_blocks.starts, walked_blocks.reaches)
        others = [(NO_ENTRIES, NO_ENTRIES)]
        for some in some_blocks():
            found = np.empty(len(some), np.uint8)
            self.bits.ask(some.address, found)
            rest = some.select(found == 0)
            others.append((rest.address, rest.address + np.maximum(rest.size, np.uint64(1))))
        starts, ends = (np.concatenate(column) for column in zip(*others, strict=True))
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
        # After a lost free, two blocks may overlap: the later one is live.
        ends[:-1] = np.minimum(ends[:-1], starts[1:])
        roots = self.bits.cut(starts)
        self.bits.add(starts[starts < ends], ends[starts < ends])
        self.bits.ask(starts, np.empty(len(starts), np.uint8))
        return roots

    def _swapped_bytes(self, memory: RemoteMemory, kinds: MemoryKinds) -> int:
        resident = read_resident(memory.process)
        if resident is None or not resident.swapped:
            return 0
        areas = (area[:2] for area in searched_areas(memory.process.maps_text()))
        runs = [run[1:] for run in memory.resident_runs(areas, lambda: True, swapped=True)]
        return sum(
            end - start
            for start, end, kind in kinds.split(runs)
            if kind == ROOT or (kind == QUIET and self.bits.has_reachable(start, end))
        )


def unit_bits(heap: WalkedHeap | None) -> int:
    """Returns the unit of ``BlockBits`` (its log2) that tells the blocks of a heap apart."""
    wide = MallocLibrary.GLIBC, MallocLibrary.MUSL
    return 4 if heap is not None and all(each.library in wide for each in heap.arenas) else 3


def _walked(reader: PieceReader) -> WalkedHeap | None:
    try:
        return walk_heap(reader, ClassTally([]))
    except NotWalkableError:
        return None
