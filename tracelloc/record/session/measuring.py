"""Finds the usable sizes of a process's live blocks.

glibc stores a block's size beside it. Tracelloc reads it from the process, with no lock held. A
block's size never changes, so each is read once.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import numpy as np

from tracelloc.heap.usable import main_library
from tracelloc.model.blocks import Blocks, ReadSizes, UsableSizes
from tracelloc.model.process import FoundLibrary, MallocLibrary
from tracelloc.record.mallocs.chunks import read_chunks
from tracelloc.record.process.space import AddressSpace
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import NS_PER_S

LONGEST_S: Final = 0.25  # Time limit of one reading; the remaining blocks are read the next time
# Births have the resolution of a timer tick, in which several blocks may have had one address.
_YOUNG_NS: Final = NS_PER_S // 10
# Blocks of at least this size are read first: the request does not tell how they were made.
_LARGE_BYTES: Final = 128 << 10


class Measuring:
    """Measures one process. Call it without the session's lock: it takes its time."""

    def __init__(self, space: AddressSpace) -> None:
        """``space``: the process's address space."""
        self._space = space
        self._read = ReadSizes()

    def measured(self, snapshot: Snapshot, longest_s: float = LONGEST_S) -> Snapshot:
        """Returns the snapshot with usable sizes of its blocks, if it has blocks."""
        if snapshot.blocks is None:
            return snapshot
        blocks = snapshot.blocks
        mapped = {module.path for module in self._space.mapped_modules}
        # Programs that the process executed before may have had other malloc libraries.
        found = [a for a in snapshot.allocators if a.file in mapped] or snapshot.allocators
        return replace(snapshot, usable=self.measure(blocks, snapshot.now_ns, found, longest_s))

    def measure(
        self,
        blocks: Blocks,
        now_ns: int,
        found: Iterable[FoundLibrary],
        longest_s: float = LONGEST_S,
    ) -> UsableSizes | None:
        """Usable sizes of blocks live at ``now_ns``; None if no malloc library was found."""
        main = main_library(found)
        if main is None:
            return None
        if main.library is MallocLibrary.GLIBC:
            read = self._read_more(blocks, longest_s)
            born_before = np.uint64(max(0, now_ns - _YOUNG_NS))
            self._read = read.select(read.birth_ns < born_before)
            return UsableSizes(main, read)
        is_unusual = main.library is MallocLibrary.JEMALLOC and _is_finer(blocks)
        return UsableSizes(main, ReadSizes(), is_unusual)

    def _read_more(self, blocks: Blocks, longest_s: float) -> ReadSizes:
        """Sizes of these blocks: those read before, and those that can be read now."""
        there, sizes = self._read.find(blocks)
        end_s = time.monotonic() + longest_s
        large = blocks.size >= np.uint64(_LARGE_BYTES)
        for chosen in (~there & large, ~there & ~large):
            rows = np.flatnonzero(chosen)
            rows = rows[np.argsort(blocks.address[rows])]
            sizes[rows], there[rows] = read_chunks(
                self._space.process.thread_id, blocks.address[rows], blocks.size[rows], end_s
            )
        rows = np.flatnonzero(there)
        rows = rows[np.argsort(blocks.address[rows])]
        return ReadSizes(blocks.address[rows], blocks.birth_ns[rows], sizes[rows])


def _is_finer(blocks: Blocks) -> bool:
    """Whether a jemalloc has size classes 8 bytes apart (``--with-lg-quantum=3``).

    With the usual ones, every block of more than 8 bytes lies at a multiple of 16.
    """
    return bool(((blocks.address & np.uint64(15) != 0) & (blocks.size > np.uint64(8))).any())
