"""Searches a process's memory for pointers to its blocks, without stopping it.

What moves meanwhile may be missed: a pointer that is copied from what is yet to be read to what
has been read, and then overwritten. So a block counts as unreachable only when two searches say
so, and only old blocks are asked about; the memory of all others is a root.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.heap.blocks import Blocks
from tracelloc.objects.memory import PAGE_BYTES, RemoteMemory
from tracelloc.reachability.areas import Area, searched_areas
from tracelloc.reachability.marking import Marks
from tracelloc.target.procfs import Process

Mask = npt.NDArray[np.bool_]

_PIECE_BYTES: Final = 1 << 20
"""Read at once: the target's mappings can't change meanwhile."""
_STRETCH_BYTES: Final = 1 << 30
"""Address space whose pages are asked about at once: there may be terabytes, mostly empty."""
_MOST_EDGES: Final = 1 << 22
"""Pointers from block to block that are kept: 32 MiB."""


@dataclass(frozen=True, slots=True)
class PointerSearch:
    """What one search has found."""

    blocks: Blocks
    """What was asked about, by address."""
    reachable: Mask
    """A row per block."""
    edges_left_out: int
    """Pointers between blocks that were not kept: their targets count as reachable."""


def search(
    process: Process, blocks: Blocks, may_go_on: Callable[[], bool] = lambda: True
) -> PointerSearch | None:
    """Searches for pointers to these blocks; what is in no block is a root.

    None if ``may_go_on`` said no, which is asked after each MiB. Raises TargetError,
    PrivilegeError.
    """
    # A main thread that has ended has no memory.
    process = Process(process.thread_id, process.root)
    blocks = blocks.select(np.argsort(blocks.address, kind="stable"))
    ends = blocks.address + np.maximum(blocks.size, 1)
    # Where a free was lost, two blocks may overlap: the later one is there.
    ends[:-1] = np.minimum(ends[:-1], blocks.address[1:])
    marks = Marks(blocks.address, ends, _MOST_EDGES)
    memory = RemoteMemory(process)
    words = np.empty(_PIECE_BYTES // 8 + 1, np.uint64)
    for area in searched_areas(process.maps_text()):
        for first, last in _present_runs(memory, area):
            for address in range(first, last, _PIECE_BYTES):
                if not may_go_on():
                    return None
                piece = np.array([[address, min(_PIECE_BYTES, last - address)]], np.uint64)
                size_bytes = memory.fetch(piece, words)
                for shift in range(8 if area.is_code else 1):
                    shifted = words.view(np.uint8)[shift : shift + size_bytes // 8 * 8]
                    marks.scan(shifted.view(np.uint64), address)
    reachable = np.zeros(len(blocks), np.uint8)
    marks.finish(reachable)
    return PointerSearch(blocks, reachable.view(np.bool_), marks.edges_left_out)


def _present_runs(memory: RemoteMemory, area: Area) -> Iterator[tuple[int, int]]:
    """Contiguous pages that are in memory: others hold nothing, or would have to be fetched."""
    for start in range(area.start, area.end, _STRETCH_BYTES):
        pages = memory.present_pages(start, min(start + _STRETCH_BYTES, area.end))
        present = np.concatenate([[False], pages, [False]])
        turns = start + PAGE_BYTES * np.flatnonzero(present[1:] != present[:-1])
        yield from zip(turns[::2].tolist(), turns[1::2].tolist(), strict=True)
