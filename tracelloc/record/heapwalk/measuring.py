"""Sums up a walked heap: by arena, size and class, where resident memory is, what pins pages."""

import heapq
import time
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.dataclass import dataclass
from tracelloc.model.blocks import BlockSum
from tracelloc.model.heapusage import (
    ArenaUsage,
    HeapUsage,
    LargeBlock,
    MemoryPart,
    PinnedPages,
    PinningStack,
    SizeUsage,
)
from tracelloc.model.process import MallocLibrary
from tracelloc.record.heapwalk.accounting import account_for
from tracelloc.record.heapwalk.arenas import (
    Arena,
    BlockState,
    NotWalkableError,
    WalkedHeap,
    overhead_bytes,
    user_offset,
)
from tracelloc.record.heapwalk.chunks import MOST_PAGE_BLOCKS, ArenaTally
from tracelloc.record.heapwalk.classes import ClassNames, ClassTally, StacksAt
from tracelloc.record.heapwalk.pieces import AddressRuns, PieceReader, merged
from tracelloc.record.heapwalk.walk import walk_heap, while_alive
from tracelloc.record.process.memory import PAGE_BYTES, U64, RemoteMemory
from tracelloc.record.process.procfs import Process

_MOST_PINS: Final = 8
_NO_BLOCKS: Final = BlockSum()


@dataclass(slots=True)
class _PinSum:
    kept_bytes: float = 0.0
    blocks: BlockSum = _NO_BLOCKS

    def add(self, kept_bytes: float, count: int, size_bytes: int) -> None:
        self.kept_bytes += kept_bytes
        self.blocks += BlockSum(count, size_bytes)


class PinnedPageSums:
    """Sums up pinned pages of a heap: resident, and at most a quarter of each in use."""

    def __init__(self, stacks_at: StacksAt | None = None) -> None:
        self._stacks_at = stacks_at
        self._all = _PinSum()
        self._by_size: dict[int, _PinSum] = defaultdict(_PinSum)
        self._by_stack: dict[int, _PinSum] = defaultdict(_PinSum)

    def sum_up(self, arena: Arena, tally: ArenaTally) -> None:
        """Adds an arena's entries to ``tally``, and the blocks that pin its pages to this sum."""
        for entries in arena.entries():
            room = _room(len(entries))
            self._add(arena, tally.add(entries, *room), *room)
        room = _room(0)
        self._add(arena, tally.finish(*room), *room)

    def _add(
        self, arena: Arena, count: int, starts: U64, sizes: U64, kept: npt.NDArray[np.float64]
    ) -> None:
        if not count:
            return
        starts, sizes, kept = starts[:count], sizes[:count], kept[:count]
        self._all.add(float(kept.sum()), count, int(sizes.sum()))
        usable = sizes - np.uint64(overhead_bytes(arena))
        _add_by(self._by_size, usable.astype(np.int64), sizes, kept)
        if self._stacks_at is not None:
            stacks = self._stacks_at(starts + np.uint64(user_offset(arena)))
            known = stacks >= 0
            _add_by(self._by_stack, stacks[known], sizes[known], kept[known])

    def pages(self) -> PinnedPages:

        def most(sums: dict[int, _PinSum]) -> list[tuple[int, _PinSum]]:
            return sorted(sums.items(), key=lambda row: (-row[1].kept_bytes, row[0]))[:_MOST_PINS]

        return PinnedPages(
            round(self._all.kept_bytes),
            self._all.blocks,
            tuple((size, found.blocks) for size, found in most(self._by_size)),
            tuple(
                PinningStack(stack, round(found.kept_bytes), found.blocks)
                for stack, found in most(self._by_stack)
            ),
        )


def _room(entries: int) -> tuple[U64, U64, npt.NDArray[np.float64]]:
    """Returns arrays for ``ArenaTally`` to fill: addresses, sizes and kept bytes of blocks."""
    most = entries + MOST_PAGE_BLOCKS
    return np.empty(most, np.uint64), np.empty(most, np.uint64), np.empty(most)


def _add_by(
    sums: dict[int, _PinSum],
    keys: npt.NDArray[np.int64],
    sizes: U64,
    kept: npt.NDArray[np.float64],
) -> None:
    unique, rows, counts = np.unique(keys, return_inverse=True, return_counts=True)
    held = np.bincount(rows, kept, len(unique)).tolist()
    size_bytes = np.bincount(rows, sizes.astype(np.float64), len(unique)).tolist()
    for key, each, count, size in zip(
        unique.tolist(), held, counts.tolist(), size_bytes, strict=True
    ):
        sums[key].add(each, count, int(size))


_IN_USE: Final = (BlockState.IN_USE, BlockState.MAPPED)
_MOST_SIZES: Final = 1 << 16


def measure_heap(process: Process, *, largest: int = 0, contents_bytes: int = 0) -> HeapUsage:
    """Walks a process's heap; returns sums by arena, size and class.

    ``largest``: how many of the largest blocks to list, with ``contents_bytes`` of each.
    Raises NotWalkableError, OSError, TargetError and PrivilegeError.
    """
    return while_alive(process, lambda thread: _measured(thread, largest, contents_bytes))


def measure_memory(process: Process, stacks_at: StacksAt | None = None) -> HeapUsage:
    """Accounts for a process's memory, whether or not its heap can be walked.

    The result has no block sizes, and classes of traced blocks only. ``stacks_at``: None if the
    process is not traced. Raises OSError, TargetError and PrivilegeError.
    """
    return while_alive(process, lambda thread: _accounted(thread, stacks_at))


def _accounted(process: Process, stacks_at: StacksAt | None) -> HeapUsage:
    reader = PieceReader(RemoteMemory(process))
    tally = ClassTally([] if stacks_at is None else reader.regions(), keeps_blocks=True)
    try:
        heap = walk_heap(reader, tally)
    except NotWalkableError as error:
        heap = WalkedHeap([], [], [error.message])
    usage = _summed_up(reader, heap, stacks_at)
    if stacks_at is None:
        return usage
    return replace(usage, stack_classes=tuple(tally.by_stack(ClassNames(reader), stacks_at)))


def _measured(process: Process, largest: int, contents_bytes: int) -> HeapUsage:
    reader = PieceReader(RemoteMemory(process))
    tally = ClassTally(reader.regions())
    heap = walk_heap(reader, tally)
    names = ClassNames(reader)
    return replace(
        _summed_up(reader, heap),
        sizes=_sizes(heap),
        classes=tally.usage(names),
        largest=_largest(reader, heap, names, largest, contents_bytes),
    )


def _summed_up(
    reader: PieceReader, heap: WalkedHeap, stacks_at: StacksAt | None = None
) -> HeapUsage:
    memory = reader.memory
    resident = AddressRuns.read_resident(memory, _pages(heap))
    pins = PinnedPageSums(stacks_at)
    arenas: list[ArenaUsage] = []
    trimmable: int | None = None
    for arena in heap.arenas:
        trims = arena.library is MallocLibrary.GLIBC and arena.name != "mappings"
        tally = ArenaTally(resident.starts, resident.ends, trims and trimmable is None)
        pins.sum_up(arena, tally)
        arenas.append(_usage(arena, tally))
        if trims:
            trimmable = (trimmable or 0) + tally.trimmable_bytes
    stretches = [stretch for arena in heap.arenas for stretch in arena.stretches()]
    return HeapUsage(
        time_s=time.time(),
        arenas=tuple(arenas),
        trimmable_bytes=trimmable,
        notes=tuple(heap.notes),
        retries=heap.retries,
        account=account_for(memory, arenas, AddressRuns.from_ranges(stretches).intersect(resident)),
        pinned=pins.pages(),
    )


_PARTS: Final = {
    BlockState.IN_USE: MemoryPart.IN_USE,
    BlockState.MAPPED: MemoryPart.IN_USE,
    BlockState.CACHED: MemoryPart.CACHED,
    BlockState.FREE: MemoryPart.FREE,
    BlockState.FAST: MemoryPart.FREE,
    BlockState.TOP: MemoryPart.TOP,
    BlockState.OWN: MemoryPart.OWN,
}


def _usage(arena: Arena, tally: ArenaTally) -> ArenaUsage:
    def total(*states: BlockState) -> BlockSum:
        return BlockSum(sum(tally.counts[n] for n in states), sum(tally.sums[n] for n in states))

    parts: Counter[MemoryPart] = Counter()
    for state, part in _PARTS.items():
        parts[part] += tally.resident[state]
    return ArenaUsage(
        arena.name,
        arena.library,
        arena.system_bytes,
        sum(tally.sums) + arena.header_bytes + arena.foreign_bytes,
        in_use=total(*_IN_USE),
        cached=total(BlockState.CACHED),
        free=total(BlockState.FREE, BlockState.FAST),
        top_bytes=tally.sums[BlockState.TOP],
        own_bytes=tally.sums[BlockState.OWN] + arena.header_bytes + arena.foreign_bytes,
        resident=dict(parts),
        unseen=tuple(arena.unseen),
    )


def _pages(heap: WalkedHeap) -> list[tuple[int, int]]:
    return merged(
        (first & -PAGE_BYTES, -(-last // PAGE_BYTES) * PAGE_BYTES)
        for arena in heap.arenas
        for first, last in arena.stretches()
    )


def _sizes(heap: WalkedHeap) -> tuple[SizeUsage, ...]:
    sums: dict[int, BlockSum] = defaultdict(BlockSum)
    for arena in heap.arenas:
        for some in arena.slices():
            for state in _IN_USE:
                overhead = overhead_bytes(arena, state)
                unique, counts = np.unique(some.sizes[some.states == state], return_counts=True)
                for size, count in zip(unique.tolist(), counts.tolist(), strict=True):
                    sums[size - overhead] += BlockSum(count, count * size)
    rows = [SizeUsage(usable, found) for usable, found in sums.items()]
    rows.sort(key=lambda row: (-row.blocks.size_bytes, row.usable_bytes))
    return tuple(rows[:_MOST_SIZES])


def _largest(
    reader: PieceReader, heap: WalkedHeap, names: ClassNames, most: int, contents_bytes: int
) -> tuple[LargeBlock, ...]:
    if not most:
        return ()
    rows: list[tuple[int, int]] = []  # usable bytes, address for the program
    for arena in heap.arenas:
        offset = user_offset(arena)
        for some in arena.slices():
            used = np.flatnonzero(np.isin(some.states, _IN_USE))
            if len(used) > most:
                used = used[np.argpartition(some.sizes[used], len(used) - most)[len(used) - most :]]
            rows += [
                (size - offset + 8 * (state == BlockState.IN_USE and offset > 0), address + offset)
                for address, size, state in zip(
                    some.addresses[used].tolist(), some.sizes[used].tolist(),
                    some.states[used].tolist(), strict=True,
                )
            ]  # fmt: skip
            rows = heapq.nlargest(most, rows)
    found = []
    for size, start in rows:
        words = reader.words(start, min(-(-max(contents_bytes, 8) // 8) * 8, size & ~7))
        name = names.name(int(words[0])) if len(words) else ""
        found.append(LargeBlock(start, size, name, words.tobytes()[:contents_bytes]))
    return tuple(found)
