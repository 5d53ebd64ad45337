"""Memory that is dead though it is in use: nobody reads it before it is written again.

Words in it are stale, and no roots. It is found by structures that prove themselves:

- Stacks of ended threads, which glibc keeps until a new thread needs one, or the old one is joined
  (``struct pthread``, nptl/descr.h). Threads' records are in lists. A record tells where its stack
  is, and the thread's id, which the kernel sets to 0 at the thread's end.
- Free memory in libstdc++'s emergency pool (``class pool``, libsupc++/eh_alloc.cc).
- Unused elements of the loader's tables of modules (``dlfo_mappings_segment``,
  elf/dl-find_object.c).
- Buffers of glibc's streams, except for the bytes to be read or written (``struct _IO_FILE``).
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from tracelloc.model.codefiles import base_name
from tracelloc.model.process import MallocLibrary
from tracelloc.record.heapwalk.arenas import WalkedHeap
from tracelloc.record.heapwalk.pieces import AddressRuns, PieceReader
from tracelloc.record.heapwalk.ranges import BlockRanges, are_in_use
from tracelloc.record.process.memory import U64, Mask
from tracelloc.record.process.regions import Region, variables_of

_LIBRARIES: Final = re.compile(r"ld[-.]|lib(c|pthread)[-.]|libstdc\+\+")
_LOADER: Final = re.compile(r"ld[-.]")
_MOST_DATA_BYTES: Final = 16 << 20
_MOST_TRIED: Final = 1024
_PAGE: Final = 4095
_MOST_THREADS: Final = 1 << 16
_SIGN: Final = 1 << 31
_RECORD_BYTES: Final = 1536  # Bytes of a thread's record that are read, from its list node on
_BEFORE_NODE: Final = 704  # Most bytes of a thread's record before the list node
_RECORD_ROOM: Final = 1 << 16  # Most bytes from the list node to the end of the stack
_POOL_MUTEX_WORDS: Final = 5  # Before a pool's pointers; zeros while nobody holds it
_POOL_BYTES: Final = range(1 << 10, 1 << 24)
_MOST_POOLS: Final = 16
_MOST_PIECES: Final = 1 << 12
_TABLE_HEADER_BYTES: Final = 32
_TABLE_ALIGNMENT: Final = 128
_ELEMENT_BYTES: Final = 32  # `struct dl_find_object_internal`
_STREAM_MAGIC: Final = np.uint64(0xFBAD)
_STREAM_BYTES: Final = 120
_USER_BUFFER: Final = 1  # Flag of a stream: the program owns its buffer

_LEAST_UNWRITTEN: Final = 1024  # Smaller blocks hardly hide anything
_LINKS_BYTES: Final = 16  # Both links of a free chunk

_Range = tuple[int, int]


def unused_parts(reader: PieceReader, heap: WalkedHeap) -> list[_Range]:
    """Returns (start, end) of the parts of C libraries' blocks that they don't use."""
    found: list[_Range] = []
    for start, words, is_loader in _variables(reader, reader.regions()):
        found += _free_in_pools(reader, heap, words)
        found += _stream_buffers(reader, heap, start, words)
        found += _unused_in_tables(reader, heap, words) if is_loader else ()
    return found


def ended_stacks(reader: PieceReader, regions: list[Region]) -> Iterator[_Range]:
    """Yields (start, end) of the stacks of ended threads, without the threads' records."""
    edges = np.array([(r.start, r.end) for r in regions if r.is_anonymous], np.uint64).reshape(-1)
    steps = iter(range(_MOST_THREADS))
    for start, words, _ in _variables(reader, regions):
        is_inside = np.searchsorted(edges, words, side="right") % 2 == 1
        for at in np.flatnonzero(is_inside[:-1] & is_inside[1:])[:_MOST_TRIED].tolist():
            node, last = words[at : at + 2].tolist()
            yield from _ended_in_list(reader, steps, start + 8 * at, (node, last))


def _variables(reader: PieceReader, regions: list[Region]) -> Iterator[tuple[int, U64, bool]]:
    """Yields (address, words, whether it may be the loader's) of C libraries' data."""
    is_static = not any(r.inode and _LOADER.match(base_name(r.path)) for r in regions)
    name = ""
    for region in variables_of(regions):
        name = base_name(region.path) if region.inode else name
        if is_static or _LIBRARIES.match(name):
            words = reader.words(region.start, min(region.end - region.start, _MOST_DATA_BYTES))
            yield region.start, words, is_static or bool(_LOADER.match(name))


def _ended_in_list(
    reader: PieceReader, steps: Iterator[int], head: int, ends: tuple[int, int]
) -> list[_Range]:
    """Returns the stacks of ended threads in a list, given its head, first and last node.

    The list of stacks that are a program's own memory is refused: it has the main thread's record,
    which tells of no stack.
    """
    node, before, found = ends[0], head, list[_Range]()
    for _ in steps:
        if node == head:
            return found if before == ends[1] else []
        record = reader.words(node, _RECORD_BYTES) if node & 7 == 0 else np.zeros(3, np.uint64)
        low = _stack_of(record, node)
        if record[1] != before or not low:
            break
        # Not positive: the kernel's 0 at its end, or -1 after pthread_join(3)
        if (int(record[2]) - 1) & _SIGN:
            found.append((low, max(low, node - _BEFORE_NODE)))
        node, before = int(record[0]), node
    return []


def _stack_of(record: U64, node: int) -> int:
    """Returns where the stack of a thread's record begins, behind its guard; 0 if it has none."""
    base, size, guard = record[:-2], record[1:-1], record[2:]
    fits = ((base | size | guard) & np.uint64(_PAGE) == 0) & (guard < size) & (base > 0)
    fits &= (np.uint64(node) - base < size) & (base + size - np.uint64(node) < _RECORD_ROOM)
    rows = np.flatnonzero(fits)
    return int(base[rows[0]] + guard[rows[0]]) if len(rows) else 0


def _free_in_pools(reader: PieceReader, heap: WalkedHeap, words: U64) -> Iterator[_Range]:
    first, arena, size = words[:-2], words[1:-1], words[2:]
    fits = (size >= _POOL_BYTES.start) & (size < _POOL_BYTES.stop) & (first - arena < size)
    fits &= (arena > 0) & ((first | arena) & np.uint64(15) == 0)
    for at in np.flatnonzero(fits)[:_MOST_POOLS].tolist():
        start, end = int(arena[at]), int(arena[at] + size[at])
        mutex = words[max(0, at - _POOL_MUTEX_WORDS) : at]
        if not mutex.any() and 0 <= _end_of_block(heap, start) - end < _TABLE_ALIGNMENT:
            yield from _free_pieces(reader, int(first[at]), end)


def _free_pieces(reader: PieceReader, piece: int, end: int) -> list[_Range]:
    found: list[_Range] = []
    while piece:
        size, following = reader.words(piece, 16).tolist()
        is_next = not following or piece + size < following < end
        if size < 16 or piece + size > end or (piece | following) & 15 or not is_next:
            return []
        found.append((piece + 16, piece + size & -8))
        if len(found) > _MOST_PIECES:
            return []
        piece = following
    return found


def _unused_in_tables(reader: PieceReader, heap: WalkedHeap, words: U64) -> Iterator[_Range]:
    for table in sorted(set(words[are_in_use(heap, words)].tolist()))[:_MOST_TRIED]:
        if table & 7:
            continue
        _, block, used, room = reader.words(table, _TABLE_HEADER_BYTES).tolist()
        first, end = table + _TABLE_HEADER_BYTES, _end_of_block(heap, block)
        is_aligned = 0 <= table - block < _TABLE_ALIGNMENT
        if is_aligned and used <= room and first + _ELEMENT_BYTES * room <= end:
            yield block, table
            yield first + _ELEMENT_BYTES * used, end


def _stream_buffers(
    reader: PieceReader, heap: WalkedHeap, start: int, words: U64
) -> Iterator[_Range]:
    wanted = [start + 8 * at for at in np.flatnonzero(_are_streams(words)).tolist()]
    wanted += sorted({*words[are_in_use(heap, words)].tolist()})
    seen: set[int] = set()
    while wanted and len(seen) < _MOST_PIECES:
        at = wanted.pop()
        if at in seen or at & 7:
            continue
        seen.add(at)
        stream = reader.words(at, _STREAM_BYTES)
        if not _are_streams(stream[:1])[0]:
            continue
        flags, unread, read_end, _, written, write_end, _, base, end, *_ = stream.tolist()
        wanted.append(int(stream[13]))  # the stream that was opened before
        is_own = flags & _USER_BUFFER or not 0 <= int(stream[14]) & 0xFFFFFFFF < 1 << 31
        if is_own or not base < end <= _end_of_block(heap, base):
            continue
        for low, high in sorted([(unread, read_end), (written, write_end), (end, end)]):
            if base <= low <= high <= end:
                yield base + 7 & -8, low & -8
                base = max(base, high)


def _are_streams(words: U64) -> Mask:
    """Returns a mask of words that may be the first one of a stream: its flags."""
    found: Mask = words >> np.uint64(16) & np.uint64(0xFFFF) == _STREAM_MAGIC
    return found


def unwritten_blocks(
    reader: PieceReader, heap: WalkedHeap, unused: Sequence[_Range]
) -> BlockRanges:
    """Returns glibc's larger blocks that still begin as what they were: free memory in a list.

    The program has hardly written to them since: what they hold is most likely stale. Blocks with
    ``unused`` parts are left out: their structure is known. Raises OSError, TargetError and
    PrivilegeError.
    """
    stretches = [
        stretch
        for arena in heap.arenas
        if arena.library is MallocLibrary.GLIBC
        for stretch in arena.stretches()
    ]
    pages = AddressRuns.read_resident(
        reader.memory, [(start & ~_PAGE, (end + _PAGE) & ~_PAGE) for start, end in stretches]
    )
    edges = np.array(sorted(stretches), np.uint64).reshape(-1)
    found = [BlockRanges.concatenate([])]
    for some in BlockRanges.some_in_use(heap) if len(pages.starts) else ():
        starts, is_large = some.starts, some.usable_bytes() >= _LEAST_UNWRITTEN
        ends = pages.ends[np.searchsorted(pages.starts, starts, side="right") - 1]
        is_there = (starts >= pages.starts[0]) & (ends >= starts + np.uint64(_LINKS_BYTES))
        rows = np.flatnonzero(is_large & is_there)
        links, was_read = reader.memory.read(starts[rows], _LINKS_BYTES)
        may_be = was_read & (links & np.uint64(15) == 0).all(axis=1) & (links > _PAGE).all(axis=1)
        rows, links = rows[may_be], links[may_be]
        is_chunk = np.searchsorted(edges, links, side="right") % 2 == 1
        others = np.unique(links[~is_chunk])[:_MOST_TRIED].tolist()
        bins = [link for link in others if _is_bin(reader, link)]
        is_bin = np.isin(links, np.array(bins, np.uint64))
        found.append(some.select(rows[(is_bin | is_chunk).all(axis=1) & is_bin.any(axis=1)]))
    blocks = BlockRanges.concatenate(found)
    known = np.sort(np.array([start for start, _ in unused], np.uint64))
    first, last = (np.searchsorted(known, places) for places in (blocks.starts, blocks.reaches))
    return blocks.select(first == last)


def _is_bin(reader: PieceReader, head: int) -> bool:
    """Whether the list of free chunks at an address leads back to it (``bin_at``, malloc.c)."""
    forth, back = reader.words(head + 16, _LINKS_BYTES).tolist()
    return all(
        link == head or (link > 0 and link & 7 == 0 and reader.word(link + place) == head)
        for link, place in ((forth, 24), (back, 16))
    )


def _end_of_block(heap: WalkedHeap, start: int) -> int:
    """Returns where the usable part of the block in use that begins at an address ends; or 0."""
    found = BlockRanges.in_use_between(heap, start, start)
    return start + int(found.usable_bytes()[0]) if len(found.starts) else 0
