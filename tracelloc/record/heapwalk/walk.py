"""Walks a process's heap, whichever malloc library it has, and sums it up."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np

from tracelloc.errors import TargetError
from tracelloc.model.codefiles import base_name
from tracelloc.model.heapusage import ArenaUsage, BlockSum, HeapUsage, LargeBlock, SizeUsage
from tracelloc.model.process import MallocLibrary
from tracelloc.record.heapwalk.classes import ClassNames, ClassTally
from tracelloc.record.heapwalk.glibc import walk_glibc
from tracelloc.record.heapwalk.jemalloc import walk_jemalloc
from tracelloc.record.heapwalk.musl import walk_musl
from tracelloc.record.heapwalk.pieces import PieceReader, ResidentRuns
from tracelloc.record.heapwalk.walked import (
    ADDRESS_BITS,
    STATE_BITS,
    Arena,
    BlockState,
    NotWalkableError,
    WalkedHeap,
    user_offset,
)
from tracelloc.record.process.memory import PAGE_BYTES, RemoteMemory
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.residency import read_resident

_UNKNOWN: Final = {"libmimalloc": "mimalloc", "libtcmalloc": "tcmalloc"}
"""Malloc libraries whose heaps can't be walked, by the names of their files."""
_IN_USE: Final = (BlockState.IN_USE, BlockState.MAPPED)
_FREE: Final = (BlockState.FREE, BlockState.CACHED, BlockState.FAST, BlockState.TOP)
_TRIM_HEADER_BYTES: Final = 48
"""Bytes of a free chunk that malloc_trim(3) keeps (``mtrim`` in malloc/malloc.c)."""
_TRIM_TOP_BYTES: Final = 33
"""Bytes that it keeps of the main arena's top (``systrim``)."""
_MOST_SIZES: Final = 1 << 16


def walk_heap(reader: PieceReader, tally: ClassTally) -> WalkedHeap:
    """Walks the heaps of all malloc libraries that are known.

    Raises NotWalkableError, with the reason, if nothing can be walked; OSError, TargetError and
    PrivilegeError.
    """
    found: list[WalkedHeap] = []
    refused: list[NotWalkableError] = []
    for walk in (walk_glibc, walk_jemalloc, walk_musl):
        if walk is walk_musl and found:
            break
        try:
            if (one := walk(reader, tally)) is not None:
                found.append(one)
        except NotWalkableError as error:
            refused.append(error)
    paths = {base_name(region.path) for region in reader.regions() if region.inode}
    others = sorted({
        f"{name} ({path})" for path in paths for prefix, name in _UNKNOWN.items()
        if path.startswith(prefix)
    })  # fmt: skip
    if not found:
        if refused:
            raise refused[0]
        names = " and ".join(others)
        raise NotWalkableError(
            f"the heap of {names} can't be walked"
            if names
            else "it has no heap of glibc, jemalloc or musl, or has not used it yet",
            hint="tracelloc -p PID traces what is allocated from now on",
        )
    heap = found[0]
    for more in found[1:]:
        heap.arenas += more.arenas
        heap.metadata += more.metadata
    heap.notes += [f"the heap of {name} is not included: it can't be walked" for name in others]
    heap.notes += [f"not included: {error.message}" for error in refused]
    return heap


def measure_heap(process: Process, *, largest: int = 0, contents_bytes: int = 0) -> HeapUsage:
    """Walks a process's heap and sums it up.

    ``largest``: how many of the largest blocks to list, with so many bytes of their contents.
    Raises NotWalkableError, OSError, TargetError and PrivilegeError.
    """
    with while_alive(process):
        return _measured(process, largest, contents_bytes)


@contextmanager
def while_alive(process: Process) -> Iterator[None]:
    """Raises TargetError if the process ends meanwhile: what was found then is not whole."""
    try:
        yield
    except (ProcessLookupError, FileNotFoundError) as error:
        raise _ended(process) from error
    except NotWalkableError as error:
        if not process.maps_text():
            raise _ended(process) from error
        raise
    if not process.maps_text():
        raise _ended(process)


def _ended(process: Process) -> TargetError:
    return TargetError(f"process {process.pid} has ended")


def _measured(process: Process, largest: int, contents_bytes: int) -> HeapUsage:
    # A main thread that has ended has no memory.
    reader = PieceReader(RemoteMemory(Process(process.thread_id, process.root)))
    tally = ClassTally(reader.regions())
    heap = walk_heap(reader, tally)
    names = ClassNames(reader)
    kinds = read_resident(process)
    return HeapUsage(
        time_s=time.time(),
        arenas=tuple(_usage(reader, arena) for arena in heap.arenas),
        sizes=_sizes(heap),
        classes=tally.usage(names),
        largest=_largest(reader, heap, names, largest, contents_bytes),
        trimmable_bytes=_trimmable(reader, heap),
        notes=tuple(heap.notes),
        retries=heap.retries,
        swapped_bytes=kinds.swapped if kinds else 0,
        anonymous_bytes=kinds.anonymous if kinds else 0,
        rss_bytes=kinds.rss if kinds else 0,
    )


def _usage(reader: PieceReader, arena: Arena) -> ArenaUsage:
    resident = ResidentRuns.read(reader.memory, _stretches(arena))
    counts = np.zeros(len(BlockState), np.int64)
    sums, held = np.zeros_like(counts), np.zeros_like(counts)
    for some in arena.slices():
        kept = resident.bytes_of(some.addresses, some.addresses + some.sizes)
        counts += np.bincount(some.states, minlength=len(BlockState))
        for state in BlockState:
            rows = some.states == state
            sums[state] += int(some.sizes[rows].sum())
            held[state] += int(kept[rows].sum())

    def total(*states: BlockState) -> BlockSum:
        return BlockSum(int(counts[[*states]].sum()), int(sums[[*states]].sum()))

    return ArenaUsage(
        arena.name,
        arena.library,
        arena.system_bytes,
        int(sums.sum()) + arena.header_bytes + arena.foreign_bytes,
        in_use=total(*_IN_USE),
        cached=total(BlockState.CACHED),
        free=total(BlockState.FREE, BlockState.FAST),
        top_bytes=int(sums[BlockState.TOP]),
        own_bytes=int(sums[BlockState.OWN]) + arena.header_bytes + arena.foreign_bytes,
        free_resident_bytes=int(held[[*_FREE]].sum()),
        resident_bytes=int(held.sum()),
        unseen=tuple(arena.unseen),
    )


def _stretches(arena: Arena) -> list[tuple[int, int]]:
    """Contiguous entries, as ranges of whole pages."""
    found: list[tuple[int, int]] = []
    for first, last in arena.stretches():
        low, high = first & -PAGE_BYTES, -(-last // PAGE_BYTES) * PAGE_BYTES
        if found and low <= found[-1][1]:
            found[-1] = found[-1][0], max(high, found[-1][1])
        else:
            found.append((low, high))
    return found


def _sizes(heap: WalkedHeap) -> tuple[SizeUsage, ...]:
    """Blocks in use by size, those with the most bytes first."""
    sums: dict[int, tuple[int, int]] = {}
    for arena in heap.arenas:
        for some in arena.slices():
            for state in _IN_USE:
                overhead = user_offset(arena) - (8 if state == BlockState.IN_USE else 0)
                unique, counts = np.unique(some.sizes[some.states == state], return_counts=True)
                for size, count in zip(unique.tolist(), counts.tolist(), strict=True):
                    usable = size - max(overhead, 0)
                    before = sums.get(usable, (0, 0))
                    sums[usable] = before[0] + count, before[1] + count * size
    rows = [SizeUsage(usable, BlockSum(*found)) for usable, found in sums.items()]
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


def _trimmable(reader: PieceReader, heap: WalkedHeap) -> int | None:
    """What malloc_trim(0) would return: whole resident pages of free memory.

    Free chunks keep their headers; fastbins are merged with their neighbours first; the rest at
    the end is returned in the main arena only; thread caches are kept.
    """
    arenas = [a for a in heap.arenas if a.library is MallocLibrary.GLIBC and a.name != "mappings"]
    if not arenas:
        return None
    total, page = 0, np.uint64(PAGE_BYTES - 1)
    for arena in arenas:
        states = (arena.entries & STATE_BITS).astype(np.uint8)
        is_top = states == BlockState.TOP
        free = (states == BlockState.FREE) | (states == BlockState.FAST) | is_top
        # Stretches of free chunks: from the first of each to what follows the last.
        edges = np.flatnonzero(np.diff(free, prepend=False, append=False))
        first, last = edges[::2], edges[1::2]
        ends_in_top = is_top[last - 1]
        if arena is not arenas[0]:
            rows = ~ends_in_top
            first, last, ends_in_top = first[rows], last[rows], ends_in_top[rows]
        header = np.where(ends_in_top, _TRIM_TOP_BYTES, _TRIM_HEADER_BYTES).astype(np.uint64)
        begin = ((arena.entries[first] & ADDRESS_BITS) + header + page) & ~page
        end = np.maximum(arena.entries[last] & ~page, begin)
        resident = ResidentRuns.read(reader.memory, _stretches(arena))
        total += int(resident.bytes_of(begin, end).sum())
    return total
