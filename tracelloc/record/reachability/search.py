"""Searches a process's memory for pointers to its blocks, without stopping it.

A search may miss a moving pointer: one that is copied from unread memory to memory already read,
and then overwritten. So a block counts as unreachable only if two searches agree, and only old
blocks are searched for; the memory of all others is a root.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.model.blocks import Blocks
from tracelloc.record.process.memory import RemoteMemory
from tracelloc.record.process.procfs import Process
from tracelloc.record.reachability.areas import searched_areas
from tracelloc.record.reachability.marking import Marks

Mask = npt.NDArray[np.bool_]

_PIECE_BYTES: Final = 1 << 20
"""Bytes read at once: the target's mappings can't change meanwhile."""
_MOST_EDGES: Final = 1 << 22
"""Most pointers between blocks that are stored: 32 MiB."""


@dataclass(frozen=True, slots=True)
class PointerSearch:
    """Result of one search."""

    blocks: Blocks
    """The blocks searched for, by address."""
    reachable: Mask
    """Whether each block is reachable."""
    edges_left_out: int
    """Pointers between blocks that were not stored: their targets count as reachable."""


def search(
    process: Process, blocks: Blocks, may_go_on: Callable[[], bool] = lambda: True
) -> PointerSearch | None:
    """Searches for pointers to these blocks; memory outside them is a root.

    Returns None if ``may_go_on``, which is called after each MiB, returned False. Raises
    TargetError, PrivilegeError, OSError.
    """
    # A main thread that has ended has no memory.
    process = Process(process.thread_id, process.root)
    blocks = blocks.select(np.argsort(blocks.address, kind="stable"))
    ends = blocks.address + np.maximum(blocks.size, 1)
    # After a lost free, two blocks may overlap: the later one is live.
    ends[:-1] = np.minimum(ends[:-1], blocks.address[1:])
    marks = Marks(blocks.address, ends, _MOST_EDGES)
    memory = RemoteMemory(process)
    words = np.empty(_PIECE_BYTES // 8 + 1, np.uint64)
    areas = list(searched_areas(process.maps_text()))
    for number, first, last in memory.resident_runs((area[:2] for area in areas), may_go_on):
        for address in range(first, last, _PIECE_BYTES):
            if not may_go_on():
                return None
            piece = np.array([[address, min(_PIECE_BYTES, last - address)]], np.uint64)
            size_bytes = memory.fetch(piece, words)
            for shift in range(8 if areas[number].is_code else 1):
                shifted = words.view(np.uint8)[shift : shift + size_bytes // 8 * 8]
                marks.scan(shifted.view(np.uint64), address)
    if not may_go_on():
        return None
    reachable = np.zeros(len(blocks), np.uint8)
    marks.finish(reachable)
    return PointerSearch(blocks, reachable.view(np.bool_), marks.edges_left_out)
