"""Walks mimalloc's heap: all blocks of all pages.

Format: mimalloc 2.0.9 to 2.4 and 3.0 to 3.4, 64 bits: types.h, segment.c, page-map.c. A *page* has
blocks of one size; its record (``mi_page_t``) has three lists of its free blocks, and counts them.

- Version 2: a segment is at a multiple of 32 MiB, and begins with the records of its pages: one for
  each 64 KiB, of which a page's first one tells how many belong to it. All add up to the segment.
- Version 3: a table leads by bits 29 to 46 of an address, and a second one by bits 16 to 28, to the
  record of the page in which the address is. A variable of the library points to it.

Pages prove themselves: their lists have as many blocks as they count. Builds that encode their
lists (``MI_SECURE``, debug builds), and other versions, are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Final

import numpy as np

from tracelloc.dataclass import dataclass, field
from tracelloc.model.figures import I64
from tracelloc.model.process import MallocLibrary
from tracelloc.record.heapwalk.arenas import (
    Arena,
    BlockState,
    WalkedHeap,
)
from tracelloc.record.heapwalk.classes import ClassTally
from tracelloc.record.heapwalk.libraryfiles import find_library, is_named, refusal
from tracelloc.record.heapwalk.pagemaps import MOST_DATA_BYTES, BlockPages, States
from tracelloc.record.heapwalk.pieces import PieceReader
from tracelloc.record.process.memory import U64, Mask
from tracelloc.record.process.regions import Region, variables_of

_TEXT: Final = b"mimalloc: "  # Begins what it prints
_NAME: Final = "mimalloc"
_SEGMENT_BYTES: Final = 32 << 20
_SLICE_BITS: Final = 16
_SLICES: Final = 512, 1024  # In a segment, unless it has one large page only
_MOST_SLICES: Final = _SLICES[-1]
_LARGE_PARTS: Final = 2  # The header, and the large page
_HEADER_BYTES: Final = 1 << 17
_RECORD_WORDS: Final = 10, 12
_FIRST_RECORDS: Final = range(8, 128)  # In a segment, the word at which the records begin
_TABLE_BITS: Final = 13
_ROOT_BYTES: Final = 1 << 21, 1 << 22  # With addresses of 47 or 48 bits
_MOST_TABLES: Final = 1 << 12
_MOST_TRIED: Final = 256
_RECORD_BYTES: Final = 128
_LEAST_SHARE: Final = 0.25  # Of pages that add up: all, unless the process is busy
_LEAST_BLOCK: Final = np.uint64(8)
_LOW32: Final = np.uint64(0xFFFFFFFF)
_LOW16: Final = np.uint64(0xFFFF)
_PAGE: Final = np.uint64(4095)
_LIST_BITS: Final = ~np.uint64(3)
_DELAYED: Final = 8, 2840  # 2.x: where a heap has its list of what others freed (`mi_heap_t`)


@dataclass(slots=True)
class _Pages(BlockPages):
    reserved: I64  # Number of blocks for which it has room
    used: I64  # Blocks that are not in the first two lists
    lists: U64  # Rows of three: where each page's lists of free blocks begin
    heaps: U64  # The address of each page's heap, in version 2
    metadata: list[tuple[int, int]]
    # Rows of (start, end): free memory behind the blocks of pages, and between pages
    spare: U64 = field(default_factory=lambda: np.empty((0, 2), np.uint64))
    damaged: int = 0  # Bytes of pages and segments that don't add up, which are left out

    def select(self, rows: Mask, begins: U64, rooms: U64) -> _Pages:
        """Returns some pages, by address. ``begins``, ``rooms``: all memory of each page."""
        ends = self.starts + self.counts.astype(np.uint64) * self.sizes
        damaged = ~rows & ((self.counts > 0) | (self.used > 0) | (self.lists > 0).any(axis=1))
        ends = np.where(rows, ends, np.where(damaged, begins + rooms, begins))
        spare = np.stack([ends, begins + rooms], axis=1)[ends < begins + rooms]
        order = np.flatnonzero(rows)
        order = order[np.argsort(self.starts[order], kind="stable")]
        return _Pages(
            self.starts[order], self.sizes[order], self.counts[order], self.reserved[order],
            self.used[order], self.lists[order] & _LIST_BITS, self.heaps[order] & _LIST_BITS,
            self.metadata, spare, int(rooms[damaged].sum()),
        )  # fmt: skip

    def fit(self, begins: U64, rooms: U64, *, is_full: bool = False) -> Mask:
        """Returns a mask of pages with blocks in their memory; ``is_full``: as many as fit."""
        before, sizes = self.starts - begins, np.maximum(self.sizes, _LEAST_BLOCK)
        fits: Mask = (before < rooms) & (sizes == self.sizes) & (self.counts > 0)
        if is_full:
            fits &= self.reserved == ((rooms - before) // sizes).astype(np.int64)
            fits &= self.counts <= self.reserved
        return fits & (self.counts <= (rooms // sizes).astype(np.int64))


def walk_mimalloc(reader: PieceReader, tally: ClassTally) -> WalkedHeap | None:
    """Walks mimalloc's heap; returns None without. Other layouts: NotWalkableError."""
    regions = reader.regions()
    numbers = find_library(reader.memory.process, regions, _NAME, _TEXT)
    if not numbers:
        return None
    found = [*_segments(reader, regions), *_mapped_pages(reader, regions)]
    heap = WalkedHeap([], [])
    for pages in found:
        states, is_sound = _free_blocks(reader, pages)
        if is_sound.mean() < _LEAST_SHARE:
            continue
        spare = np.concatenate([
            pages.spare[:, 0] | np.uint64(BlockState.FREE),
            pages.spare[:, 1] | np.uint64(BlockState.END),
        ])  # fmt: skip
        entries = pages.entries(states, is_sound, spare)
        tally.add_entries(reader.memory, entries)
        arena = Arena("all pages", MallocLibrary.MIMALLOC, 0).add(entries)
        # Pages that changed meanwhile are left out: what is in them counts as pointing.
        left_out = pages.counts[~is_sound].astype(np.uint64) * pages.sizes[~is_sound]
        arena.system_bytes = arena.seen_bytes + int(left_out.sum()) + pages.damaged
        if len(left_out):
            arena.unseen.append(f"{len(left_out):,} pages that changed while they were read")
        if pages.damaged:
            arena.unseen.append(f"{pages.damaged:,} bytes that do not add up")
        heap.arenas.append(arena)
        heap.metadata += pages.metadata
    if not heap.arenas and is_named(regions[numbers[0]], _NAME):
        raise refusal(_NAME, regions[numbers[0]])
    return heap if heap.arenas else None


def _segments(reader: PieceReader, regions: list[Region]) -> Iterator[_Pages]:
    """Reads the pages of version 2."""
    headers = {
        at: words
        for region in regions
        if region.is_anonymous
        for at in range(
            -(-region.start // _SEGMENT_BYTES) * _SEGMENT_BYTES, region.end, _SEGMENT_BYTES
        )
        if (words := reader.words(at, _HEADER_BYTES)).any()
    }
    for layout in product(_FIRST_RECORDS, _RECORD_WORDS):
        if not any(_slices_in(words, *layout) for words in headers.values()):
            continue
        rows: list[tuple[int, int, U64]] = []  # Address, bytes, and record of each page
        metadata: list[tuple[int, int]] = []
        until, marks = 0, list[set[tuple[int, int]]]()
        for at, words in list(headers.items()):
            if at < until:
                del headers[at]  # what looks like a segment in a large block is the block's
                continue
            for number in _slices_in(words, *layout, may_be_large=True):
                record = words[layout[0] + number * layout[1] :][: _RECORD_WORDS[-1]]
                size = int(record[0] & _LOW32) << _SLICE_BITS
                until = at + (number << _SLICE_BITS) + size
                if number:
                    rows.append((at + (number << _SLICE_BITS), size, record))
                else:
                    metadata.append((at, at + size))
                    marks.append(_marks(words, at, layout[0]))
                    del headers[at]
        records = np.array([record for *_, record in rows], np.uint64)
        begins, rooms = np.array([row[:2] for row in rows], np.uint64).T
        ways = list(_decode(records, begins, rooms, metadata))
        pages = ways[int(np.argmax([_fitting(way) for way in ways]))]
        if (good := pages.fit(begins, rooms, is_full=True)).any():
            pages = pages.select(good, begins, rooms)
            common = set.intersection(*marks) if len(marks) > 1 else set()
            others = [at for at, words in headers.items() if common & _marks(words, at, layout[0])]
            pages.damaged += len(others) * _SEGMENT_BYTES
            yield pages


def _marks(words: U64, at: int, first: int) -> set[tuple[int, int]]:
    """Returns words before a segment's records, xor its address: one is equal in all (cookie)."""
    return {(n, word ^ at) for n, word in enumerate(words[:first].tolist())}


def _decode(
    records: U64, begins: U64, rooms: U64, metadata: list[tuple[int, int]]
) -> Iterator[_Pages]:
    """Yields the pages of version 2 as each of its releases would read their records."""
    counts = ((records[:, 1] >> np.uint64(16)) & _LOW16).astype(np.int64)
    reserved = ((records[:, 1] >> np.uint64(32)) & _LOW16).astype(np.int64)
    used, sizes, starts = (records[:, 4] & _LOW16).astype(np.int64), records[:, 5], records[:, 6]
    lists, heaps = records[:, [2, 3, 7]], records[:, 8]
    yield _Pages(starts, sizes, counts, reserved, used, lists, heaps, metadata)  # from 2.1.4 on
    used, sizes = (records[:, 3] & _LOW32).astype(np.int64), records[:, 3] >> np.uint64(32)
    small, zeros = (sizes >= 8) & (sizes <= 1024), np.zeros(len(sizes), np.uint64)
    smaller = np.where(sizes <= 64, np.uint64(3) * sizes, np.where(sizes <= 512, sizes, zeros))
    sizes = np.where(sizes >> np.uint64(31) > 0, rooms, sizes)
    lists, heaps = records[:, [2, 4, 5]], records[:, 6]
    for first in np.where(small, np.uint64(128), zeros), small * np.uint64(384), smaller:
        yield _Pages(begins + first, sizes, counts, reserved, used, lists, heaps, metadata)


def _fitting(pages: _Pages) -> int:
    """Returns how many pages have lists that begin with one of their blocks."""
    inside = (pages.lists & _LIST_BITS) - pages.starts[:, None]
    sizes = np.maximum(pages.sizes, np.uint64(1))[:, None]
    fits = (inside % sizes == 0) & (inside // sizes < pages.counts.astype(np.uint64)[:, None])
    return int(np.count_nonzero((fits & (pages.lists > 0)).any(axis=1)))


def _slices_in(words: U64, first: int, step: int, *, may_be_large: bool = False) -> list[int]:
    """Returns which records of a segment are pages' first ones; none if they don't add up.

    ``first``: the word at which records begin, which have ``step`` words each. ``may_be_large``:
    there may be one page that is larger than the part of the segment that has records.
    """
    number = int(words[first - 2])
    if number > _MOST_SLICES or (number not in _SLICES and not may_be_large):
        return []
    heads = words[first : first + step * number : step].tolist()
    at, found = 0, list[int]()
    while at < len(heads) and heads[at] and not heads[at] >> 32:
        found.append(at)
        last = at + heads[at] - 1  # The last record tells how far it is from the first one
        if at < last < len(heads) and heads[last] != (8 * step * (last - at)) << 32:
            return []
        at += heads[at]
    is_large = may_be_large and len(found) == _LARGE_PARTS and at >= number
    return found if (at == number and len(found) > 1) or is_large else []


def _mapped_pages(reader: PieceReader, regions: list[Region]) -> Iterator[_Pages]:
    """Reads the pages of version 3."""
    edges = np.array([(r.start, r.end) for r in regions if r.is_anonymous], np.uint64).reshape(-1)
    tried: set[int] = set()
    for region in variables_of(regions):
        words = reader.words(region.start, min(region.end - region.start, MOST_DATA_BYTES))
        words = np.unique(words[(words > 0) & (words & _PAGE == 0)])
        inside = words[np.searchsorted(edges, words, side="right") % 2 == 1]
        for table in inside[:_MOST_TRIED].tolist():
            size_bytes = reader.word(table) - table  # The table of the lowest is behind it
            if size_bytes in _ROOT_BYTES and table not in tried:
                tried.add(table)
                yield from _pages_of(reader, reader.words(table, size_bytes))


def _pages_of(reader: PieceReader, root: U64) -> Iterator[_Pages]:
    keys = np.flatnonzero(root & np.uint64(7) == 0)
    keys = keys[root[keys] > 0][:_MOST_TABLES]
    leads_to, slices = [], []
    for key in keys.tolist():
        table = reader.words(int(root[key]), 8 << _TABLE_BITS)
        at = np.flatnonzero(table)
        leads_to.append(table[at])
        slices.append((at + (key << _TABLE_BITS)).astype(np.uint64) << np.uint64(_SLICE_BITS))
    addresses, firsts, rooms = np.unique(
        np.concatenate(leads_to), return_index=True, return_counts=True
    )
    begins = np.concatenate(slices)[firsts]
    records, was_read = reader.memory.read(addresses, _RECORD_BYTES)
    sizes, numbers, starts = records[:, 5], records[:, 2], records[:, 6]
    is_offset = starts - begins >= np.uint64(1 << _SLICE_BITS)  # Words from the record, from 3.4 on
    starts = np.where(is_offset, addresses + (starts & _LOW32) * np.uint64(8), starts)
    good = was_read & (starts - begins < np.uint64(1 << _SLICE_BITS))
    counts = ((numbers >> np.uint64(16)) & _LOW16).astype(np.int64)
    reserved = ((numbers >> np.uint64(32)) & _LOW16).astype(np.int64)
    used = (numbers & _LOW16).astype(np.int64)
    metadata = [(at, at + _RECORD_BYTES) for at in addresses.tolist()]
    lists, heaps = records[:, [1, 3, 4]], np.zeros(len(addresses), np.uint64)
    pages = _Pages(starts, sizes, counts, reserved, used, lists, heaps, metadata)
    room_bytes = rooms.astype(np.uint64) << np.uint64(_SLICE_BITS)
    good &= pages.fit(begins, room_bytes) | (counts == 1)  # a large page has one block
    if good.any():
        yield pages.select(good, begins, room_bytes)


def _free_blocks(reader: PieceReader, pages: _Pages) -> tuple[States, Mask]:
    """Returns the states of all blocks, page by page, and a mask of the pages that add up."""
    states, numbers = pages.states(), np.arange(len(pages.starts))
    counted, is_sound = np.zeros(len(numbers), np.int64), np.ones(len(numbers), np.bool_)
    for kind in range(3):
        found = pages.follow(reader, pages.lists[:, kind], states, BlockState.FREE, pages=numbers)
        counted += found.counts * (kind < 2)
        is_sound &= found.is_whole
    heaps = np.unique(pages.heaps[pages.heaps > 0]).tolist()
    delayed = np.array([reader.word(heap + at) for heap in heaps for at in _DELAYED], np.uint64)
    pages.follow(reader, delayed, states, BlockState.FREE)
    return states, is_sound & (pages.counts - counted == pages.used)
