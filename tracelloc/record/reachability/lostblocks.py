"""Finds the blocks of a heap to which nothing points, and the structures that they form.

A pointer that moves while memory is read may be missed, so several searches must agree: at least
two, and more while blocks drop out of the result. The heap is walked again for each. What the first
search reached can't be lost, so later ones look for pointers to the others only.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from tracelloc.dataclass import dataclass, replace
from tracelloc.model.blocks import Blocks, BlockSum
from tracelloc.model.lostmemory import ExitLeaks, LeakedStack, LostGroup, LostMemory
from tracelloc.record.heapwalk.arenas import NO_ENTRIES
from tracelloc.record.heapwalk.classes import ClassTally
from tracelloc.record.heapwalk.pieces import PieceReader
from tracelloc.record.heapwalk.ranges import BlockRanges
from tracelloc.record.heapwalk.walk import walk_heap, while_alive
from tracelloc.record.kernel.registers import ThreadRegisters
from tracelloc.record.process.memory import U64, Mask, RemoteMemory
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.regions import read_regions
from tracelloc.record.process.residency import read_resident
from tracelloc.record.reachability.blockbits import BlockBits
from tracelloc.record.reachability.deadmemory import unused_parts, unwritten_blocks
from tracelloc.record.reachability.lostgroups import BlockLinks, LostStructures
from tracelloc.record.reachability.roots import RootWords, kernel_queue, kernel_words, kinds_of
from tracelloc.record.reachability.search import MOST_EDGES, MemoryScanner, PointerSearch, unit_bits
from tracelloc.record.reachability.structures import gather
from tracelloc.record.reachability.wordlog import LoggingReader, WordLog, searched_areas

_NONE: Final = BlockSum()
_MOST_SEARCHES: Final = 5
_STACK_BITS: Final = 32  # Of a stack's index
_PIECE_BYTES: Final = 1 << 20
_APART_S: Final = 0.5  # Between the beginnings of searches: a moved pointer has come to rest


@dataclass(slots=True)
class _Search:
    coverage: float
    notes: list[str]
    tally: ClassTally
    lost: BlockRanges
    unwritten: BlockRanges  # Blocks in which pointers did not count
    bits: BlockBits
    searched: BlockSum  # All blocks that the search looked for pointers to


@dataclass(slots=True)
class _FoundGroups:
    lost: BlockSum
    groups: tuple[LostGroup, ...]
    known: BlockSum
    suppressed: BlockSum


class LostBlockSearch:
    """Searches a process for lost blocks repeatedly, and reports new ones each time."""

    def __init__(
        self,
        process: Process,
        is_suppressed: Callable[[LostGroup], bool],
        *,
        contents_bytes: int = 0,
        debug: bool = False,
    ) -> None:
        """``contents_bytes``: how many bytes to read of each group's example block."""
        self._process = process
        """The thread through which memory is read, once it is."""
        self._whole = process
        self._is_suppressed = is_suppressed
        self._contents_bytes = contents_bytes
        self._root_words = RootWords(debug=debug)
        self._known = NO_ENTRIES
        """Addresses of the lost blocks of earlier reports."""

    def close(self) -> None:
        self._root_words.close()

    def find(self) -> LostMemory:
        """Searches until two or more searches agree; returns lost blocks that are new.

        Raises NotWalkableError and MemoryError, too.
        """
        return while_alive(self._whole, self._find)

    def _find(self, thread: Process) -> LostMemory:
        self._process = thread
        lost: BlockRanges | None = None
        in_use = _NONE
        number = 0
        while True:
            number += 1
            began_s = time.monotonic()
            search = self._search(lost)
            if lost is None:
                in_use = search.searched
            count = len(search.lost.starts)
            is_settled = not count or (lost is not None and count == len(lost.starts))
            lost = search.lost
            if is_settled or number == _MOST_SEARCHES:
                return self._report(search, in_use, number, is_settled=is_settled)
            del search  # the next one takes as much memory
            time.sleep(max(0.0, began_s + _APART_S - time.monotonic()))

    def _search(self, candidates: BlockRanges | None) -> _Search:
        """Searches for pointers to the candidates that are still in use; None: to all blocks."""
        memory = RemoteMemory(self._process)
        maps_text = self._process.maps_text()
        regions = read_regions(maps_text)
        log = WordLog(regions, list(searched_areas(maps_text)), candidates)
        tally = ClassTally(regions)
        heap = walk_heap(LoggingReader(memory, log), tally)
        reader = PieceReader(memory)
        unused = unused_parts(reader, heap)
        unwritten = unwritten_blocks(reader, heap, unused)
        unused += unwritten.pairs()
        blocks = None if candidates is None else candidates.still_in_use(heap)
        bits, in_use = BlockBits(MOST_EDGES, unit_bits=unit_bits(heap)), _NONE
        for some in BlockRanges.some_in_use(heap) if blocks is None else [blocks]:
            bits.add(some.starts, some.reaches)
            bits.ask(some.starts, np.empty(len(some.starts), np.uint8))
            in_use += BlockSum(len(some.starts), int(some.size_bytes().sum()))
        scanner = MemoryScanner(memory, bits, others=None if blocks is None else heap)
        scanner.mark(self._root_words.read(self._whole))
        scanner.scan_all(kinds_of(self._process, reader, heap, unused), log)
        bits.finish()
        found = []
        for some in BlockRanges.some_in_use(heap) if blocks is None else [blocks]:
            reachable = np.empty(len(some.starts), np.uint8)
            bits.are_reachable(some.starts, reachable)
            found.append(some.select(reachable == 0) if reachable.any() else some)
        lost = BlockRanges.concatenate(found)
        return _Search(heap.coverage, list(heap.notes), tally, lost, unwritten, bits, in_use)

    def _report(
        self, search: _Search, in_use: BlockSum, searches: int, *, is_settled: bool
    ) -> LostMemory:
        reader = PieceReader(RemoteMemory(self._process))
        is_probable = _are_led_to(reader, search)
        sure, probable = (
            self._gather(reader, search, search.lost.select(rows))
            for rows in (~is_probable, is_probable)
        )
        self._known = search.lost.starts
        resident = read_resident(self._whole)
        notes = search.notes
        if self._root_words.missing:
            notes.append(
                f"registers were not searched ({self._root_words.missing}): "
                "blocks that only a register points to count as lost"
            )
        if queue := kernel_queue(self._whole):
            notes.append(
                f"the program uses {queue}: blocks that only its requests in the kernel point to "
                "count as lost"
            )
        if not is_settled:
            notes.append(
                f"the last of {searches} searches still found pointers to blocks that the others "
                "had not: search again to see which blocks stay lost"
            )
        return LostMemory(
            time_s=time.time(),
            in_use=in_use,
            lost=sure.lost,
            groups=sure.groups,
            searches=searches,
            known=sure.known,
            suppressed=sure.suppressed,
            coverage=search.coverage,
            swapped_bytes=resident.swapped if resident else 0,
            pointers_left_out=search.bits.edges_left_out,
            probably_lost=probable.lost,
            probable=probable.groups,
            notes=tuple(notes),
        )

    def _gather(self, reader: PieceReader, search: _Search, blocks: BlockRanges) -> _FoundGroups:
        links = BlockLinks.among(search.bits, blocks.starts)
        structures = LostStructures.gather(reader, search.tally, blocks, links)
        is_old = np.isin(blocks.starts[structures.firsts], self._known, assume_unique=True)
        suppressed, groups = BlockSum(), []
        for group in structures.groups(~is_old):
            if self._is_suppressed(group):
                suppressed += group.blocks
            else:
                groups.append(self._with_contents(reader, group))
        total = BlockSum(len(blocks.starts), int(blocks.size_bytes().sum()))
        return _FoundGroups(total, tuple(groups), structures.sum(is_old), suppressed)

    def _with_contents(self, reader: PieceReader, group: LostGroup) -> LostGroup:
        size_bytes = min(self._contents_bytes, group.usable_bytes) & ~7
        if not size_bytes:
            return group
        return replace(group, contents=reader.words(group.example, size_bytes).tobytes())


def _are_led_to(reader: PieceReader, search: _Search) -> Mask:
    """Returns a mask of the lost blocks to which blocks lead that the program has not written."""
    lost, found = search.lost, np.zeros(len(search.lost.starts), np.bool_)
    sources = search.unwritten.select(~np.isin(search.unwritten.starts, lost.starts))
    for start, end in sources.pairs() if len(found) else ():
        for at in range(start, end, _PIECE_BYTES):
            words = reader.words(at, min(end - at, _PIECE_BYTES) & ~7)
            rows = np.searchsorted(lost.starts, words, side="right") - 1
            found[rows[(rows >= 0) & (words < lost.reaches[rows])]] = True
    links, firsts = BlockLinks.among(search.bits, lost.starts), np.flatnonzero(found)
    structure, kinds = np.zeros((2, len(found)), np.uint32)
    about = np.zeros((len(firsts), 4), np.uint32)
    gather(links.begins, links.targets, firsts.astype(np.uint32), kinds, structure, about)
    return structure < len(firsts)


def find_leaks(
    process: Process,
    blocks: Blocks,
    threads: Sequence[ThreadRegisters],
    since_ns: int = 0,
    begins_ns: U64 = NO_ENTRIES,
) -> ExitLeaks:
    """Searches for pointers to blocks of a program whose threads are stopped.

    ``since_ns``: blocks that were allocated before that are not reported (CLOCK_MONOTONIC).
    ``begins_ns``: when parts of its run began; leaks of each part are told apart.
    Raises TargetError, PrivilegeError, OSError and MemoryError.
    """
    process = Process(threads[0].thread_id, process.root)  # One that has ended has no memory
    blocks = blocks.select(np.argsort(blocks.address, kind="stable"))
    in_use = BlockSum(len(blocks), int(blocks.size.sum()))
    is_own = blocks.birth_ns >= np.uint64(since_ns)
    if not is_own.any():
        return ExitLeaks(in_use=in_use)
    words = np.concatenate([kernel_words(process), *(one.words for one in threads)])
    search = PointerSearch(process, lambda: [blocks], root_words=lambda: words)
    lost = blocks.select(~search.are_reachable(blocks.address) & is_own)
    # A structure's first block was leaked directly.
    first_blocks, _ = BlockLinks.among(search.bits, lost.address).first_blocks()
    is_direct = np.zeros(len(lost), np.bool_)
    is_direct[first_blocks] = True
    return ExitLeaks(
        tuple(_by_stack(lost, is_direct, begins_ns)),
        in_use,
        search.swapped_bytes,
        search.bits.edges_left_out,
    )


def _by_stack(blocks: Blocks, is_direct: Mask, begins_ns: U64) -> list[LeakedStack]:
    part = np.searchsorted(begins_ns, blocks.birth_ns, side="right").astype(np.uint64)
    keys = part << np.uint64(_STACK_BITS) | blocks.stack

    def sums(of: Mask) -> dict[int, BlockSum]:
        stacks, which = np.unique(keys[of], return_inverse=True)
        counts, sizes = np.bincount(which), np.bincount(which, blocks.size[of].astype(np.float64))
        rows = zip(stacks.tolist(), counts.tolist(), sizes.tolist(), strict=True)
        return {stack: BlockSum(count, int(size)) for stack, count, size in rows}

    direct, indirect = sums(is_direct), sums(~is_direct)
    # Later ones replace earlier ones: of a stack's blocks, a direct one.
    order = np.argsort(is_direct, kind="stable")
    pairs = keys[order].tolist(), blocks.address[order].tolist()
    example = dict(zip(*pairs, strict=True))
    none = BlockSum()
    found = [
        LeakedStack(
            key & (1 << _STACK_BITS) - 1,
            direct.get(key, none),
            indirect.get(key, none),
            example[key],
            key >> _STACK_BITS,
        )
        for key in {**direct, **indirect}
    ]
    return sorted(found, key=lambda one: (not one.direct.count, -one.blocks.size_bytes, one.stack))
