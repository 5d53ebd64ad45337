"""Searches a process's memory for pointers to its blocks, without stopping it.

If the heap can be walked, its free memory is no root, nor is the malloc library's own data there:
pointers in both are stale. A search may miss a moving pointer: copied from unread memory to memory
already read, and then overwritten. So a block counts as unreachable only if two searches
agree, and only old blocks are searched for; all others count as reachable. What is swapped out is
not read, so that nothing is swapped in: if pointers may be there, the search can't tell.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

import numpy as np

from tracelloc.model.blocks import Blocks
from tracelloc.model.process import MallocLibrary
from tracelloc.record.heapwalk.arenas import NO_ENTRIES, NotWalkableError, WalkedHeap
from tracelloc.record.heapwalk.classes import ClassTally
from tracelloc.record.heapwalk.pieces import PieceReader
from tracelloc.record.heapwalk.ranges import BlockRanges, are_in_use
from tracelloc.record.heapwalk.walk import walk_heap
from tracelloc.record.process.memory import U64, Mask, RemoteMemory
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.residency import read_resident
from tracelloc.record.reachability.blockbits import BlockBits
from tracelloc.record.reachability.deadmemory import unused_parts
from tracelloc.record.reachability.roots import DEAD, QUIET, ROOT, MemoryKinds, kinds_of
from tracelloc.record.reachability.wordlog import LoggedPiece, WordLog, searched_areas

_ANYWHERE: Final = 8  # An address at which no memory can be: of words that are not in memory
_PIECE_BYTES: Final = 1 << 20  # Bytes read at once: the target's mappings can't change meanwhile


class MemoryScanner:
    """Scans one process's memory for pointers, and marks the blocks that they lead to."""

    def __init__(
        self,
        memory: RemoteMemory,
        marks: BlockBits,
        *,
        may_go_on: Callable[[], bool] = lambda: True,
        others: WalkedHeap | None = None,
    ) -> None:
        """``marks``: where pointers are recorded. ``may_go_on``: called for each MiB.

        ``others``: the whole heap, if ``marks`` has only some of its blocks. Pointers in the other
        blocks count then.
        """
        self.marks = marks
        self._memory = memory
        self._may_go_on = may_go_on
        self._others = others
        self._words = np.empty(_PIECE_BYTES // 8 + 1, np.uint64)

    def scan(self, start: int, end: int, *, is_code: bool, are_roots: bool = True) -> bool:
        """Scans resident memory, code at any byte. Returns False if ``may_go_on`` did."""
        for address in range(start, end, _PIECE_BYTES):
            if not self._may_go_on():
                return False
            words = self._read(address, end)
            for shift in range(8 if is_code else 1):
                shifted = self._words.view(np.uint8)[shift : shift + words.nbytes]
                self.marks.scan(shifted.view(np.uint64), address, are_roots)
        return True

    def _read(self, address: int, end: int) -> U64:
        piece = np.array([[address, min(_PIECE_BYTES, end - address)]], np.uint64)
        return self._words[: self._memory.fetch(piece, self._words) // 8]

    def mark(self, words: U64) -> None:
        self.marks.scan(np.ascontiguousarray(words), _ANYWHERE)

    def scan_all(self, kinds: MemoryKinds, log: WordLog | None = None) -> bool:
        """Scans memory that is not dead, or its words in ``log``. False if ``may_go_on`` did."""
        areas = list(searched_areas(self._memory.process.maps_text()))
        runs: dict[bool, list[tuple[int, int]]] = {False: [], True: []}
        for number, first, last in self._memory.resident_runs(
            (area[:2] for area in areas), self._may_go_on
        ):
            runs[areas[number].is_code].append((first, last))
        unread = kinds if log is None else kinds.without([piece[:2] for piece in log.pieces])
        parts = [
            (*part, is_code)
            for is_code, some in ((False, unread), (True, kinds))
            for part in some.split(runs[is_code])
        ]
        # With roots first, few pointers between blocks must be stored.
        parts.sort(key=lambda part: part[2])
        for start, end, kind, is_code in parts:
            if kind == QUIET and self._others is not None and log is not None and not is_code:
                is_scanned = self._scan_logged(start, end, log)
            else:
                is_scanned = kind == DEAD or self.scan(
                    start, end, is_code=is_code, are_roots=kind == ROOT or self._others is not None
                )
            if not is_scanned:
                return False
        for piece in [] if log is None else log.pieces:
            for start, end, kind in kinds.split([(piece.start, piece.end)]):
                self._follow(piece, start, end, kind)
        return self._may_go_on()

    def _scan_logged(self, start: int, end: int, log: WordLog) -> bool:
        for address in range(start, end, _PIECE_BYTES):
            if not self._may_go_on():
                return False
            piece = log.pack(self._read(address, end), address)
            self._follow(piece, piece.start, piece.end, QUIET)
        return True

    def _follow(self, piece: LoggedPiece, start: int, end: int, kind: int) -> None:
        """Marks the blocks that the logged words of a part of a piece, of one kind, point to."""
        if kind == DEAD:
            return
        words = piece.part(start, end)
        if kind == QUIET and self._others is not None:
            words = words[are_in_use(self._others, piece.addresses(words))]
            kind = ROOT
        self.marks.scan_packed(words, piece.start, kind == ROOT)


MOST_EDGES: Final = 1 << 26  # Most pointers between blocks that are stored: 512 MiB


class PointerSearch:
    """One search of memory for pointers to some blocks; all others are roots."""

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
        heap = None
        with suppress(NotWalkableError):
            heap = walk_heap(reader, ClassTally([]))
        self.bits = BlockBits(most_edges, unit_bits=unit_bits(heap))
        self.swapped_bytes = 0
        """Memory that is swapped out in which there may be pointers to blocks: in roots, and in
        blocks that are reachable."""
        unused = [] if heap is None else unused_parts(reader, heap)
        kinds = kinds_of(process, reader, heap, unused, self._add_blocks(heap, some_blocks))
        del heap
        scanner = MemoryScanner(reader.memory, self.bits, may_go_on=may_go_on)
        if root_words is not None:
            scanner.mark(root_words())
        self.is_whole = scanner.scan_all(kinds)
        if self.is_whole:
            self.bits.finish()
            self.swapped_bytes = self._swapped_bytes(reader.memory, kinds)

    def are_reachable(self, addresses: U64) -> Mask:
        found = np.empty(len(addresses), np.uint8)
        self.bits.are_reachable(addresses, found)
        return found.view(np.bool_)

    def _add_blocks(
        self, heap: WalkedHeap | None, some_blocks: Callable[[], Iterable[Blocks]]
    ) -> list[tuple[int, int]]:
        """Adds the heap's blocks and other traced ones; returns blocks from which some were cut."""
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
