"""Follows pointers through blocks that are newer than the walk of a heap.

What grows at its head points to a block that the walk has not seen when its memory is read later.
That block leads to the one before it, and so on to blocks that the walk has seen.
"""

from collections import defaultdict
from contextlib import suppress
from typing import Final

import numpy as np

from tracelloc.model.process import MallocLibrary
from tracelloc.record.heapwalk.arenas import NotWalkableError, WalkedHeap
from tracelloc.record.heapwalk.classes import ClassTally
from tracelloc.record.heapwalk.pieces import PieceReader
from tracelloc.record.heapwalk.ranges import BlockRanges
from tracelloc.record.heapwalk.walk import walk_heap
from tracelloc.record.process.memory import U64
from tracelloc.record.process.regions import Region
from tracelloc.record.reachability.links import MARKED, Links

# How far a heap's mappings may grow during a search: `HEAP_MAX_SIZE`, malloc/arena.c
_GROWTH_BYTES: Final = 64 << 20
_MOST_BYTES: Final = 64 << 20  # Most memory of newer blocks that is read
_BLOCK_BYTES: Final = 1 << 10  # Reading a block costs as much as so many bytes
_MOST_WAYS: Final = 1 << 18  # Most ways from a pointer to a newer block that are followed


def growth_of(regions: list[Region], heap: WalkedHeap) -> U64:
    """Returns where memory begins, and ends, in which there may be blocks soon after a walk."""
    used = [region[:2] for region in regions if not region.rights.startswith("---")]
    starts, ends = np.array([(0, 0), *used, (1 << 62, 1 << 62)], np.uint64).T
    stretches = np.array([at for arena in heap.arenas for at, _ in arena.stretches()], np.uint64)
    rows = np.unique(np.searchsorted(starts, stretches, side="right")) - 1
    growth = np.uint64(_GROWTH_BYTES)
    lows = np.maximum(ends[rows - 1], starts[rows] - np.minimum(growth, starts[rows]))
    return np.stack([lows, np.minimum(starts[rows + 1], ends[rows] + growth)])


def room_of(heap: WalkedHeap) -> list[tuple[int, int]]:
    """Returns the memory into which arenas of glibc grow: newer blocks, which are read later."""
    begins = {first: at + _GROWTH_BYTES for at, first in heap.metadata if at % _GROWTH_BYTES == 0}
    arenas = (each for each in heap.arenas if each.library is MallocLibrary.GLIBC)
    stretches = (run for arena in arenas for run in arena.stretches())
    return [(end, begins[start]) for start, end in stretches if end < begins.get(start, 0)]


def newer_than(reader: PieceReader, blocks: BlockRanges) -> BlockRanges:
    """Returns the blocks in use now that begin where none of the given ones does, by address."""
    found = [blocks.select(slice(0))]
    with suppress(NotWalkableError):
        for some in BlockRanges.some_in_use(walk_heap(reader, ClassTally([]))):
            rows = np.searchsorted(blocks.starts, some.starts)
            is_new = blocks.starts[np.minimum(rows, len(blocks.starts) - 1)] != some.starts
            found.append(some.select(is_new))
    newer = BlockRanges.concatenate(found)
    return newer.select(np.argsort(newer.starts, kind="stable"))


def scan_memory(reader: PieceReader, links: Links, piece: tuple[int, int, int, bool]) -> None:
    """Scans memory. ``piece``: start, end, root for ``Links.scan``, whether it may be code."""
    start, end, root, is_code = piece
    words = np.empty((end - start) // 8 + 1, np.uint64)
    size_bytes = reader.memory.fetch(np.array([[start, end - start]], np.uint64), words)
    for shift in range(8 if is_code else 1):
        shifted = words.view(np.uint8)[shift : shift + size_bytes // 8 * 8]
        links.scan(shifted.view(np.uint64), start, root)


def pointers_of(
    reader: PieceReader, links: Links, blocks: BlockRanges, unused: int
) -> tuple[U64, U64]:
    """Returns the origins of pointers from roots, and the blocks to which they lead.

    An origin is the number of a root, or the address of a pointer if that tells the root. Ways
    through newer blocks count as pointers; that of an older block is its number, ``MARKED``.
    ``unused``: no root has this number or a higher one; the newer blocks get these.
    """
    origins, held = _pointers(links)
    is_known = held < MARKED
    if is_known.all():
        return origins, held
    newer = newer_than(reader, blocks)
    costs = newer.reaches - newer.starts + np.uint64(_BLOCK_BYTES)
    read = np.argsort(costs, kind="stable")
    read = read[np.cumsum(costs[read]) <= _MOST_BYTES].tolist()
    links.left_out += len(costs) - len(read)
    for row in read:
        piece = int(newer.starts[row]), int(newer.reaches[row]), unused + row, False
        scan_memory(reader, links, piece)
    leads: dict[int, list[int]] = defaultdict(list)
    for origin, target in _with_rows(newer, *(some[len(held) :] for some in _pointers(links))):
        leads[origin].append(target)
    seen = set(_with_rows(newer, origins[~is_known], held[~is_known]))
    ways, found = list(seen), set()
    while ways and len(seen) < _MOST_WAYS:
        origin, row = ways.pop()
        for target in leads[unused + row - MARKED]:
            if target < MARKED:
                found.add((origin, target))
            elif (origin, target) not in seen:
                seen.add((origin, target))
                ways.append((origin, target))
    links.left_out += len(ways)
    through = np.array(sorted(found), np.uint64).reshape(-1, 2).T
    pairs = np.concatenate([np.stack([origins, held])[:, is_known], through], axis=1)
    return pairs[0], pairs[1]


def _pointers(links: Links) -> tuple[U64, U64]:
    origins, held = np.empty((2, links.root_count), np.uint64)
    links.roots(origins, held)
    return origins, held


def _with_rows(newer: BlockRanges, origins: U64, held: U64) -> list[tuple[int, int]]:
    """Returns pointers with the rows of newer blocks, ``MARKED``, instead of addresses in them."""
    addresses, targets = held & np.uint64(MARKED - 1), held.copy()
    rows = np.searchsorted(newer.starts, addresses, side="right") - 1
    is_any = (held < MARKED) | (rows >= 0)
    is_newer = np.flatnonzero((held >= MARKED) & is_any)
    is_any[is_newer] = addresses[is_newer] < newer.reaches[rows[is_newer]]
    targets[is_newer] = rows[is_newer].astype(np.uint64) | np.uint64(MARKED)
    return list(zip(origins[is_any].tolist(), targets[is_any].tolist(), strict=True))
