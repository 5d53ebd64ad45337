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
from tracelloc.record.reachability.scanning import MemoryScanner

Mask = npt.NDArray[np.bool_]

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
    memory = RemoteMemory(process)
    scanner = MemoryScanner(memory, blocks.address, ends, _MOST_EDGES, may_go_on)
    areas = list(searched_areas(process.maps_text()))
    for number, first, last in memory.resident_runs((area[:2] for area in areas), may_go_on):
        if not scanner.scan(first, last, is_code=areas[number].is_code):
            return None
    if not may_go_on():
        return None
    return PointerSearch(blocks, scanner.finish(), scanner.marks.edges_left_out)
