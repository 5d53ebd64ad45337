"""Blocks of glibc that are mappings of their own: the large ones.

Format: ``sysmalloc_mmap`` in malloc/malloc.c. The header's first word is the distance of the chunk
from the start of its mapping (0, or what aligned it), the second its size with the flag
IS_MMAPPED alone: to the end of a page, from glibc 2.42 on 16 bytes less. Mappings that lie side by
side are one line of maps.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from tracelloc.model.process import MallocLibrary
from tracelloc.record.heapwalk.classes import ClassTally
from tracelloc.record.heapwalk.pieces import PieceReader
from tracelloc.record.heapwalk.walked import NO_ENTRIES, Arena, BlockState
from tracelloc.record.process.memory import PAGE_BYTES, U64
from tracelloc.record.process.regions import Region

_FLAG: Final = 2
_PLACES: Final = (0, *(alignment - 16 for alignment in (32, 64, 128, 256, 512, 1024, 2048, 4096)))
"""Where a header may be in a page."""
_PAGES_AT_ONCE: Final = 1 << 14


def find_mapped(
    reader: PieceReader,
    regions: list[Region],
    skipped: list[tuple[int, int]],
    said_bytes: int | None,
    tally: ClassTally,
) -> Arena:
    """Finds all such blocks outside the ``skipped`` ranges. ``said_bytes``: their sum by glibc."""
    rows: list[tuple[int, int, int]] = []
    for region in regions:
        if not region.is_anonymous or any(a < region.end and region.start < b for a, b in skipped):
            continue
        rows += _chunks_in(reader, region)
    found = sum(end - start for _, start, end in rows)
    entries = np.empty(2 * len(rows), np.uint64)
    for number, (chunk, _, end) in enumerate(rows):
        entries[2 * number] = chunk | BlockState.MAPPED
        entries[2 * number + 1] = end | BlockState.END
    arena = Arena(
        "mappings", MallocLibrary.GLIBC, entries if rows else NO_ENTRIES,
        found if said_bytes is None else said_bytes,
        header_bytes=sum(chunk - start for chunk, start, _ in rows),
    )  # fmt: skip
    if rows:
        words, _ = reader.memory.read(entries[::2] & ~np.uint64(7), 24)
        tally.note(entries, np.arange(0, len(entries), 2), words[:, 2])
    return arena


def _chunks_in(reader: PieceReader, region: Region) -> list[tuple[int, int, int]]:
    """(chunk, start and end of its mapping) of all blocks in one line of maps."""
    found: list[tuple[int, int, int]] = []
    at = low = region.start
    runs = list(reader.memory.resident_runs([(region.start, region.end)], lambda: True))
    for _, first, last in runs:
        at = max(at, first)
        while at < last:
            pages = np.arange(at, min(last, at + _PAGES_AT_ONCE * PAGE_BYTES), PAGE_BYTES)
            chunk = _first_header(reader, pages.astype(np.uint64), region, low)
            if chunk is None:
                at = int(pages[-1]) + PAGE_BYTES
                continue
            found.append(chunk)
            at = low = chunk[2]
    return found


def _first_header(
    reader: PieceReader, pages: U64, region: Region, low: int
) -> tuple[int, int, int] | None:
    """The first block whose header lies in one of these pages."""
    # Most often a block begins just here.
    for some in (pages[:1], pages[1:]):
        if not len(some):
            continue
        places = (some[:, None] + np.array(_PLACES, np.uint64)).reshape(-1)
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
                    return chunk, start, end
    return None
