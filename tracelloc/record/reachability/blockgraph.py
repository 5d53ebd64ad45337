"""The heap of a process as a graph: roots, blocks, and all pointers to blocks."""

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.dataclass import dataclass
from tracelloc.errors import TargetError
from tracelloc.model.blocks import BlockSum, HeapRoot
from tracelloc.model.process import MallocLibrary
from tracelloc.record.heapwalk.arenas import NotWalkableError, WalkedHeap
from tracelloc.record.heapwalk.classes import ClassNames, ClassTally
from tracelloc.record.heapwalk.pieces import PieceReader
from tracelloc.record.heapwalk.ranges import BlockRanges, PackedBlocks
from tracelloc.record.heapwalk.walk import walk_heap
from tracelloc.record.process.memory import U64, RemoteMemory
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.regions import Region, read_mapping_usages
from tracelloc.record.process.residency import read_resident
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.reachability.deadmemory import unused_parts, unwritten_blocks
from tracelloc.record.reachability.heaproots import RootParts, RootReader, Titles, parts_of, rank_of
from tracelloc.record.reachability.links import MARKED, NO_ROOT, Links
from tracelloc.record.reachability.rootnames import NamedWords, name_words
from tracelloc.record.reachability.roots import DEAD, QUIET, MemoryKinds, kinds_of
from tracelloc.record.reachability.wordlog import searched_areas
from tracelloc.record.runtimes.ownheaps import runtime_heaps
from tracelloc.system.memorylimits import closest_limit
from tracelloc.text import format_size

_GROWTH_BYTES: Final = 64 << 20  # How far mappings may grow in a search: `HEAP_MAX_SIZE`, arena.c
_MOST_BYTES: Final = 64 << 20  # Most memory of newer blocks that is read
_READ_COST_BYTES: Final = 1 << 10  # Reading a block costs as much as so many bytes
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
    costs = newer.reaches - newer.starts + np.uint64(_READ_COST_BYTES)
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


U32 = npt.NDArray[np.uint32]

_PIECE_BYTES: Final = 1 << 20  # Bytes read at once: the target's mappings can't change meanwhile
_BLOCK_BYTES: Final = 110  # Memory taken per block, with two pointers to each
_LINK_BYTES: Final = 24  # Memory taken per pointer
_MOST_LINKS: Final = 1 << 30
AT_ONCE: Final = 1 << 18  # Blocks of which figures are computed at the same time
_SMALL: Final = 1 << 19  # Bytes: smaller blocks have a kind for each multiple of 8


@dataclass(slots=True)
class BlockGraph:
    """Blocks by address, roots, then the *top*. Node n leads to ``targets[begins[n]:…[n + 1]]``."""

    blocks: PackedBlocks
    roots: list[HeapRoot]
    begins: U32
    targets: U32
    kinds: U32  # Kind of each node: equal for blocks of one size and class, unique for roots
    # (class, usable bytes) by kind, except for small blocks without a class.
    kind_names: dict[int, tuple[str, int]]
    wholes: dict[int, int]  # For a root that is part of another root: by its node, the whole's node
    time_s: float
    coverage: float
    swapped_bytes: int
    left_out: int  # Pointers for which there was no memory
    notes: list[str]

    @property
    def count(self) -> int:
        """Number of blocks, and the node of the first root."""
        return len(self.blocks)

    @property
    def top(self) -> int:
        """Number of the top: the node that leads to all roots."""
        return self.count + len(self.roots)

    def sums(self, rows: npt.NDArray[np.intp] | U32) -> BlockSum:
        return BlockSum(len(rows), sum(
            int(self.blocks.size_bytes[rows[at : at + AT_ONCE]].sum())
            for at in range(0, len(rows), AT_ONCE)
        ))  # fmt: skip

    def kind_of(self, kind: int) -> tuple[str, int]:
        """Returns (C++ class, usable bytes) of a kind of blocks."""
        return self.kind_names.get(kind, ("", 8 * kind))


def read_graph(
    space: AddressSpace,
    thread: Process,
    roots: RootReader,
    check: Callable[[], object],
    memory_bytes: int | None = None,
) -> BlockGraph:
    """Walks the heap of a process, and finds all pointers to its blocks.

    ``thread``: the thread through which memory is read. ``check``: called for each MiB of memory;
    what it raises ends the search. ``memory_bytes``: most memory to use; None: what is available.
    Raises NotWalkableError, OSError, MemoryError, TargetError and PrivilegeError.
    """
    whole = space.process
    reader = PieceReader(RemoteMemory(thread))
    regions = reader.regions()
    time_s = time.time()
    tally = ClassTally(regions, keeps_blocks=True)
    heap = walk_heap(reader, tally)
    blocks = BlockRanges.in_use(heap)
    most = _room_for_links(len(blocks.starts), memory_bytes)
    titles = Titles(whole)
    threads = roots.threads(whole)
    parts = parts_of(regions, threads, titles)
    for name, ranges in runtime_heaps(reader.memory, list(read_mapping_usages(thread))):
        command = " (tracelloc objects)" if "Python" in name else ""
        parts.name_anonymous(f"{name}{command}", ranges)
    links = Links(blocks.starts, blocks.reaches, most, growth=growth_of(regions, heap))
    for root, words in roots.words(whole, threads, titles):
        links.scan(np.ascontiguousarray(words), 8, parts.number(root))
    unused = unused_parts(reader, heap)
    dead = [*unused, *unwritten_blocks(reader, heap, unused).pairs(), *room_of(heap)]
    for piece in _pieces(reader, kinds_of(thread, reader, heap, dead), parts):
        check()
        scan_memory(reader, links, piece)
    notes, coverage = list(heap.notes), heap.coverage
    del heap
    if roots.missing:
        notes.append(
            f"registers were not searched ({roots.missing}): blocks that only they hold "
            "have no holder, and thread-local variables no names"
        )
    origins, held = pointers_of(reader, links, blocks, len(parts.roots) + 1)
    words = np.unique(origins[(origins > len(parts.roots)) & (origins < MARKED)])
    named = name_words(space, parts, words)
    notes += named.notes
    resident = read_resident(whole)
    begins, targets = _connect(links, len(blocks.starts), parts, named, (origins, held))
    node_kinds, kind_names = _kinds(reader, tally, blocks, len(parts.roots))
    first = len(blocks.starts) - 1
    return BlockGraph(
        PackedBlocks(blocks), parts.roots, begins, targets, node_kinds, kind_names,
        {first + part: first + outer for part, outer in named.wholes.items()},
        time_s, coverage, resident.swapped if resident else 0, links.left_out, notes,
    )  # fmt: skip


def _room_for_links(blocks: int, memory_bytes: int | None) -> int:
    """Returns the most pointers to keep. Raises TargetError without memory for the blocks."""
    limit = closest_limit(Process(os.getpid()).directory)
    free_bytes = limit.free_bytes if limit else _MOST_LINKS * _LINK_BYTES
    if memory_bytes is not None:
        free_bytes = min(free_bytes, memory_bytes)
    needed = blocks * _BLOCK_BYTES
    if needed > free_bytes:
        raise TargetError(
            f"finding the holders of {blocks:,} blocks takes about {format_size(needed)} of "
            f"memory, and {format_size(free_bytes)} are available"
        )
    # Two pointers to each block are included.
    return min((free_bytes - needed) // _LINK_BYTES + 2 * blocks + 1024, _MOST_LINKS)


_Piece = tuple[int, int, int, bool]  # Start, end, root for `Links.scan`, whether it may be code


def _pieces(reader: PieceReader, kinds: MemoryKinds, parts: RootParts) -> Iterator[_Piece]:
    """Yields all resident memory that is not dead, at most a MiB at a time."""
    memory = reader.memory
    areas = list(searched_areas(memory.process.maps_text()))
    for number, first, last in memory.resident_runs((area[:2] for area in areas), lambda: True):
        for start, end, kind in kinds.split([(first, last)]):
            if kind == DEAD:
                continue
            whole = [(start, end, NO_ROOT)] if kind == QUIET else parts.split(start, end)
            for low, high, root in whole:
                for address in range(low, high, _PIECE_BYTES):
                    yield address, min(address + _PIECE_BYTES, high), root, areas[number].is_code


def _connect(
    links: Links, count: int, parts: RootParts, named: NamedWords, pointers: tuple[U64, U64]
) -> tuple[U32, U32]:
    """Returns the graph's ``begins`` and ``targets``. ``pointers``: see ``pointers_of``."""
    origins, held = pointers
    numbers = origins.copy()
    is_word = np.isin(numbers, named.addresses)
    numbers[is_word] = named.numbers[np.searchsorted(named.addresses, numbers[is_word])]
    first, top = count - 1, count + len(parts.roots)
    numbers[origins >= MARKED] -= np.uint64(MARKED + first)
    outer = np.array(list(named.wholes.values()), np.uint64)
    inner = np.array(list(named.wholes), np.uint64)
    is_part = np.zeros(len(parts.roots) + 1, np.bool_)
    is_part[inner.astype(np.intp)] = True
    others = np.array(
        sorted(np.flatnonzero(~is_part[1:]), key=lambda n: rank_of(parts.roots[n])), np.int64
    )
    others += count
    below = np.uint64(first % (1 << 64))
    sources = np.concatenate([numbers, outer]) + below
    order = np.argsort(sources, kind="stable")
    nodes = np.concatenate([sources[order], np.full(len(others), top, np.uint64)])
    leads = np.concatenate([held, inner + below])[order]
    leads = np.concatenate([leads, others.astype(np.uint64)])
    begins = np.zeros(top + 2, np.uint32)
    targets = np.empty(links.edge_count + len(nodes), np.uint32)
    links.graph(nodes.astype(np.uint32), leads.astype(np.uint32), begins, targets)
    return begins, targets


def _kinds(
    reader: PieceReader, tally: ClassTally, blocks: BlockRanges, roots: int
) -> tuple[U32, dict[int, tuple[str, int]]]:
    count = len(blocks.starts)
    kinds = np.empty(count + roots + 1, np.uint32)
    some_large = [(np.empty(0, np.intp), np.empty(0, np.uint64))]
    for at in range(0, count, AT_ONCE):
        usable = blocks.select(slice(at, at + AT_ONCE)).usable_bytes()
        kinds[at : at + len(usable)] = np.minimum(usable, np.uint64(_SMALL)) // np.uint64(8)
        rows = np.flatnonzero(usable >= _SMALL)
        some_large.append((rows + at, usable[rows]))
    large, large_bytes = (np.concatenate(column) for column in zip(*some_large, strict=True))
    sizes, which = np.unique(large_bytes, return_inverse=True)
    after = _SMALL // 8
    kinds[large] = which.astype(np.uint32) + np.uint32(after)
    names = {after + n: ("", size) for n, size in enumerate(sizes.tolist())}
    after += len(sizes)
    class_names = ClassNames(reader)
    known: dict[str, int] = {}
    for starts, tables in tally.blocks or ():
        unique, which = np.unique(tables, return_inverse=True)
        numbers = np.zeros(len(unique), np.uint32)
        for at, table in enumerate(unique.tolist()):
            if name := class_names.name(table):
                numbers[at] = known.setdefault(name, after + len(known))
        rows = np.searchsorted(blocks.starts, starts)
        rows[rows == len(blocks.starts)] = 0
        is_named = (blocks.starts[rows] == starts) & (numbers[which] > 0)
        kinds[rows[is_named]] = numbers[which][is_named]
    # A class's blocks differ in size only if they are arrays, or of classes of one name.
    for name, number in known.items():
        names[number] = name, 0
    after += len(known)
    kinds[count:] = after + np.arange(roots + 1, dtype=np.uint32)
    return kinds, names
