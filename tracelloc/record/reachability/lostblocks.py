"""Finds the blocks of a heap to which nothing points, and what they were part of.

A pointer that moves while memory is read may be missed, so several searches must agree: at least
two, and more while blocks drop out of the result. The heap is walked again for each.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.errors import TargetError
from tracelloc.model.heapusage import BlockSum
from tracelloc.model.lostmemory import LostGroup, LostMemory
from tracelloc.record.heapwalk.chunks import in_use_blocks
from tracelloc.record.heapwalk.classes import ClassTally, Rows
from tracelloc.record.heapwalk.pieces import PieceReader
from tracelloc.record.heapwalk.walk import walk_heap
from tracelloc.record.heapwalk.walked import NO_ENTRIES, WalkedHeap, user_offset
from tracelloc.record.process.memory import U64, Mask, RemoteMemory
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.residency import read_resident
from tracelloc.record.reachability.areas import searched_areas
from tracelloc.record.reachability.lostgroups import BlockLinks, LostBlocks, LostStructures
from tracelloc.record.reachability.marking import Marks
from tracelloc.record.reachability.roots import (
    DEAD,
    ROOT,
    MemoryKinds,
    RootWords,
    dead_stacks,
)
from tracelloc.record.reachability.scanning import MemoryScanner

_MOST_EDGES: Final = 1 << 26
"""Most pointers between blocks that are stored: 512 MiB."""
_MOST_SEARCHES: Final = 5
_APART_S: Final = 0.5
"""Time between the beginnings of searches: a pointer that moved has come to rest."""
_MAPPED_HEADER_BYTES: Final = 16
_ANYWHERE: Final = 8
"""An address at which no memory can be: of words that are not in memory."""


@dataclass(slots=True)
class BlockRanges:
    """Blocks by address: where the program's part of each begins, and how far pointers may lead.

    A pointer to the end of an array leads to the next block's header, so a block of glibc reaches
    to where the next block's contents begin.
    """

    starts: U64
    reaches: U64
    overhead_bytes: npt.NDArray[np.uint8]
    """Bytes of the malloc library in each."""

    @classmethod
    def in_use(cls, heap: WalkedHeap) -> BlockRanges:
        """All blocks in use of a heap."""
        most = sum(len(arena.entries) for arena in heap.arenas)
        found = cls(np.empty(most, np.uint64), np.empty(most, np.uint64), np.empty(most, np.uint8))
        count = 0
        for arena in heap.arenas:
            rest = found.select(slice(count, None))
            count += in_use_blocks(
                arena.entries, user_offset(arena), rest.starts, rest.reaches, rest.overhead_bytes
            )
        found = found.select(slice(count))
        if np.any(found.starts[1:] < found.starts[:-1]):
            found = found.select(np.argsort(found.starts, kind="stable"))
        # Only in a heap that changed or lies, blocks overlap.
        found.reaches[:-1] = np.minimum(found.reaches[:-1], found.starts[1:])
        kept = found.reaches > found.starts
        return found if kept.all() else found.select(np.flatnonzero(kept))

    def select(self, rows: Rows | Mask | slice) -> BlockRanges:
        """Returns some blocks."""
        return BlockRanges(self.starts[rows], self.reaches[rows], self.overhead_bytes[rows])

    def size_bytes(self) -> U64:
        """The size of each, with headers: of a mapped block, its own header is before it."""
        found: U64 = self.reaches - self.starts
        found[self.overhead_bytes == _MAPPED_HEADER_BYTES] += np.uint64(_MAPPED_HEADER_BYTES)
        return found


@dataclass(slots=True)
class _Search:
    """One search of a process's memory."""

    heap: WalkedHeap
    blocks: BlockRanges
    tally: ClassTally
    reachable: Mask
    marks: Marks

    def lost(self) -> LostBlocks:
        """The blocks that it did not reach."""
        gone = self.blocks.select(~self.reachable)
        return LostBlocks(gone.starts, gone.size_bytes(), gone.overhead_bytes)


class LostBlockSearch:
    """Searches a process again and again, and reports what is new each time."""

    def __init__(
        self,
        process: Process,
        is_suppressed: Callable[[LostGroup], bool],
        *,
        contents_bytes: int = 0,
        debug: bool = False,
    ) -> None:
        """``contents_bytes``: how much of an example of each group to read."""
        # A main thread that has ended has no memory.
        self._process = Process(process.thread_id, process.root)
        self._whole = process
        self._is_suppressed = is_suppressed
        self._contents_bytes = contents_bytes
        self._root_words = RootWords(debug=debug)
        self._known = NO_ENTRIES
        """Addresses of the lost blocks of earlier reports."""

    def close(self) -> None:
        """Frees what is loaded into the kernel."""
        self._root_words.close()

    def find(self) -> LostMemory:
        """Searches until searches agree.

        Raises NotWalkableError, OSError, MemoryError, TargetError and PrivilegeError.
        """
        try:
            return self._find()
        except (ProcessLookupError, FileNotFoundError) as error:
            raise TargetError(f"process {self._whole.pid} has ended") from error

    def _find(self) -> LostMemory:
        lost: LostBlocks | None = None
        number = 0
        while True:
            number += 1
            began_s = time.monotonic()
            search = self._search()
            now, before = search.lost(), lost
            lost = now if before is None else before.agree(now)
            is_settled = before is not None and len(lost.starts) == len(before.starts)
            if not len(lost.starts) or is_settled or number == _MOST_SEARCHES:
                return self._report(search, lost, number)
            del search, now, before  # the next one takes as much memory
            time.sleep(max(0.0, began_s + _APART_S - time.monotonic()))

    def _search(self) -> _Search:
        reader = PieceReader(RemoteMemory(self._process))
        regions = reader.regions()
        tally = ClassTally(regions)
        heap = walk_heap(reader, tally)
        blocks = BlockRanges.in_use(heap)
        kinds = MemoryKinds.merge(
            [stretch for arena in heap.arenas for stretch in arena.stretches()],
            heap.metadata + dead_stacks(self._process, regions),
        )
        scanner = MemoryScanner(reader.memory, blocks.starts, blocks.reaches, _MOST_EDGES)
        scanner.marks.scan(self._root_words.read(self._whole), _ANYWHERE)
        areas = list(searched_areas(self._process.maps_text()))
        runs: dict[bool, list[tuple[int, int]]] = {False: [], True: []}
        for number, first, last in reader.memory.resident_runs(
            (area[:2] for area in areas), lambda: True
        ):
            runs[areas[number].is_code].append((first, last))
        parts = [(*part, is_code) for is_code in runs for part in kinds.split(runs[is_code])]
        # With roots first, few pointers between blocks must be stored.
        parts.sort(key=lambda part: part[2])
        for start, end, kind, is_code in parts:
            if kind == DEAD:
                break
            scanner.scan(start, end, is_code=is_code, are_roots=kind == ROOT)
        return _Search(heap, blocks, tally, scanner.finish(), scanner.marks)

    def _report(self, search: _Search, lost: LostBlocks, searches: int) -> LostMemory:
        reader = PieceReader(RemoteMemory(self._process))
        structures = LostStructures.gather(reader, search.tally, lost, _links(search, lost))
        is_old = np.isin(lost.starts[structures.firsts], self._known, assume_unique=True)
        self._known = lost.starts
        suppressed, groups = BlockSum(), []
        for group in structures.groups(~is_old):
            if self._is_suppressed(group):
                suppressed += group.blocks
            else:
                groups.append(self._with_contents(reader, group))
        resident = read_resident(self._whole)
        notes = list(search.heap.notes)
        if self._root_words.missing:
            notes.append(
                f"registers were not searched ({self._root_words.missing}): "
                "blocks that only a register points to count as lost"
            )
        return LostMemory(
            time_s=time.time(),
            in_use=BlockSum(len(search.blocks.starts), int(search.blocks.size_bytes().sum())),
            lost=BlockSum(len(lost.starts), int(lost.size_bytes.sum())),
            groups=tuple(groups),
            searches=searches,
            known=structures.counts.sum(is_old),
            suppressed=suppressed,
            coverage=search.heap.coverage,
            swapped_bytes=resident.swapped if resident else 0,
            pointers_left_out=search.marks.edges_left_out,
            notes=tuple(notes),
        )

    def _with_contents(self, reader: PieceReader, group: LostGroup) -> LostGroup:
        size_bytes = min(self._contents_bytes, group.usable_bytes) & ~7
        if not size_bytes:
            return group
        return replace(group, contents=reader.words(group.example, size_bytes).tobytes())


def _links(search: _Search, lost: LostBlocks) -> BlockLinks:
    """The pointers between lost blocks."""
    count = len(lost.starts)
    numbers = np.zeros(len(search.blocks.starts), np.uint32)
    rows = np.searchsorted(search.blocks.starts, lost.starts)
    numbers[rows] = np.arange(1, count + 1, dtype=np.uint32)
    pairs = np.empty((search.marks.edge_count, 2), np.uint32)
    found = search.marks.links_among(numbers, pairs)
    return BlockLinks.from_pairs(pairs[:found], count)
