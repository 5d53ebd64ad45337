"""Blocks of glibc that are mappings of their own: the large ones.

Format: ``sysmalloc_mmap`` in malloc/malloc.c. The header's first word is the distance of the chunk
from the start of its mapping (0, or what aligned it), the second its size with the flag
IS_MMAPPED alone: to the end of a page, from glibc 2.42 on 16 bytes less. Mappings that lie side by
side are one line of maps.
"""

from itertools import compress
from typing import Final, NamedTuple

import numpy as np

from tracelloc.model.process import MallocLibrary
from tracelloc.record.heapwalk.arenas import Arena, BlockState
from tracelloc.record.heapwalk.classes import ClassTally
from tracelloc.record.heapwalk.pieces import PieceReader
from tracelloc.record.process.memory import PAGE_BYTES, U64
from tracelloc.record.process.regions import Region
from tracelloc.text import format_size, plural

_FLAG: Final = 2
# Where a header may be in a page.
_PLACES: Final = (0, *(alignment - 16 for alignment in (32, 64, 128, 256, 512, 1024, 2048, 4096)))
_MOST_PAGES: Final = 1 << 14  # Most pages that are searched at once


class _Mapping(NamedTuple):
    chunk: int  # Address of the header
    start: int
    end: int

    @property
    def size_bytes(self) -> int:
        return self.end - self.start


def find_mapped(
    reader: PieceReader,
    regions: list[Region],
    skipped: list[tuple[int, int]],
    sum_at: int | None,
    tally: ClassTally,
) -> tuple[Arena, list[str]]:
    """Finds glibc's mapped blocks outside ``skipped`` ranges. ``sum_at``: address of their sum.

    A virtual machine's memory, or a copy of a heap, may have headers of such blocks, too. If more
    is found than glibc has mapped, only blocks that begin or end a line of maps count, or that
    lie side by side with one that does. Also returns notes on other blocks.
    """
    regions = [
        region for region in regions
        if region.is_anonymous and not any(a < region.end and region.start < b for a, b in skipped)
    ]  # fmt: skip
    sum_bytes = None if sum_at is None else reader.word(sum_at)
    # Most often, all lie side by side where lines of maps begin, or there are none; else nearly
    # all headers begin pages.
    found = [] if sum_bytes is None else _at_starts(reader, regions)
    certain = set(found)
    for in_page in (_PLACES[:1], _PLACES):
        if sum(each.size_bytes for each in found) == sum_bytes:
            break
        found = []
        for region in regions:
            some = _mappings_in(reader, region, in_page)
            found += some
            certain |= _at_borders(some, region)
    # The search takes a while, and the sum is of now.
    heads, was_read = reader.memory.read(np.array([each.chunk for each in found], np.uint64), 16)
    found = list(compress(found, (was_read & (heads[:, 1] & np.uint64(7) == _FLAG)).tolist()))
    total = sum(each.size_bytes for each in found)
    sum_bytes = total if sum_at is None else reader.word(sum_at)
    notes: list[str] = []
    if total > sum_bytes and not certain.issuperset(found):
        others = [each for each in found if each not in certain]
        found = [each for each in found if each in certain]
        size = format_size(sum(each.size_bytes for each in others))
        note = f"{size} that looks like {plural(len(others), 'block')} of glibc is not counted: "
        notes.append(
            note + "glibc has mapped less; it may be memory of a virtual machine, or a copy"
        )
    return _arena_of(reader, found, sum_bytes, tally), notes


def _at_starts(reader: PieceReader, regions: list[Region]) -> list[_Mapping]:
    """Finds blocks that lie side by side from the start of a line of maps on, by address."""
    found: list[_Mapping] = []
    firsts = [(region.start, region.start + PAGE_BYTES) for region in regions]
    for number, first, _ in reader.memory.resident_runs(firsts, lambda: True):
        region, at = regions[number], first
        while at < region.end:
            mapping = _first_header(reader, np.array([at], np.uint64), region, at, _PLACES)
            if mapping is None or mapping.start != at:
                break
            found.append(mapping)
            at = mapping.end
    return found


def _at_borders(mappings: list[_Mapping], region: Region) -> set[_Mapping]:
    """Selects blocks that are side by side from the start of a line of maps on, or to its end."""
    found = set[_Mapping]()
    start, end = region.start, region.end
    for each in mappings:
        if each.start != start:
            break
        found.add(each)
        start = each.end
    for each in reversed(mappings):
        if each.end != end:
            break
        found.add(each)
        end = each.start
    return found


def _arena_of(
    reader: PieceReader, mappings: list[_Mapping], sum_bytes: int, tally: ClassTally
) -> Arena:
    entries = np.empty(2 * len(mappings), np.uint64)
    for number, each in enumerate(mappings):
        entries[2 * number] = each.chunk | BlockState.MAPPED
        entries[2 * number + 1] = each.end | BlockState.END
    arena = Arena(
        "mappings", MallocLibrary.GLIBC, sum_bytes,
        header_bytes=sum(each.chunk - each.start for each in mappings),
    ).add(entries)  # fmt: skip
    if mappings:
        words, _ = reader.memory.read(entries[::2] & ~np.uint64(7), 24)
        tally.add_rows(entries, np.arange(0, len(entries), 2), words[:, 2])
    return arena


def _mappings_in(reader: PieceReader, region: Region, places: tuple[int, ...]) -> list[_Mapping]:
    """Finds blocks in a line of maps, by address, with headers at given places of a page."""
    found: list[_Mapping] = []
    at = low = region.start
    runs = list(reader.memory.resident_runs([(region.start, region.end)], lambda: True))
    ahead = 1  # Most often a block begins where the one before it ends; else it may be far
    for _, first, last in runs:
        at = max(at, first)
        while at < last:
            pages = np.arange(at, min(last, at + ahead * PAGE_BYTES), PAGE_BYTES)
            mapping = _first_header(reader, pages.astype(np.uint64), region, low, places)
            if mapping is None:
                at = int(pages[-1]) + PAGE_BYTES
                ahead = min(2 * ahead, _MOST_PAGES)
                continue
            found.append(mapping)
            at = low = mapping.end
            ahead = 1
    return found


def _first_header(
    reader: PieceReader, pages: U64, region: Region, low: int, in_page: tuple[int, ...]
) -> _Mapping | None:
    """Returns the first block whose header lies in one of the pages; None if there is none."""
    places = (pages[:, None] + np.array(in_page, np.uint64)).reshape(-1)
    heads, was_read = reader.memory.read(places, 16)
    distance, size = heads[:, 0], heads[:, 1]
    good = was_read & (size & np.uint64(7) == _FLAG) & (size >= PAGE_BYTES - 64)
    good &= distance <= places
    good &= (places - distance) & np.uint64(PAGE_BYTES - 1) == 0
    for n in np.flatnonzero(good).tolist():
        start, chunk = int(places[n] - distance[n]), int(places[n])
        for less in (0, 16):
            end = chunk + int(size[n] & ~np.uint64(7)) + less
            if end % PAGE_BYTES == 0 and end <= region.end and start >= low:
                return _Mapping(chunk, start, end)
    return None
