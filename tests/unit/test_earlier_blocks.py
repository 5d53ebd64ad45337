"""Blocks from before tracing: what a walk of the heap is believed."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from tracelloc.heap.heap import Heap
from tracelloc.model.frames import RuntimeFrames
from tracelloc.record.heapwalk.kinds import BlockKind
from tracelloc.record.heapwalk.ranges import BlockRanges
from tracelloc.record.process.procfs import Process
from tracelloc.record.session import earlierblocks
from tracelloc.record.session.earlierblocks import EarlierBlockReader, SizeLimits


class MadeUpReader(EarlierBlockReader):
    """Walks that find given addresses, and threads in given states."""

    def __init__(self, walks: list[list[int]], states: str) -> None:
        self.heap = Heap(0)
        super().__init__(
            Process(os.getpid()), self.heap, RuntimeFrames(), threading.RLock(), lambda: None,
            is_current=lambda: True, note_added=lambda _: None, limits=SizeLimits(),
            memory_bytes=None,
        )  # fmt: skip
        self._walks: Iterator[list[int]] = iter(walks)
        self.states = states
        self.waits = 0

    def _walk(self) -> earlierblocks._WalkedBlocks:
        starts = np.array(next(self._walks), np.uint64)
        overhead_bytes = np.zeros(len(starts), np.uint8)
        ranges = BlockRanges(starts, starts + np.uint64(32), overhead_bytes)
        kinds = [BlockKind("", 32, 32)]
        return earlierblocks._WalkedBlocks(ranges, np.zeros(len(starts), np.uint32), kinds, 1.0, [])

    def _runs(self) -> bool:
        return self.states in "RD"

    def _await_progress(self) -> None:
        self.waits += 1


@pytest.mark.parametrize(
    ("states", "walks", "live", "waits"),
    [
        ("S", [[64, 128]], 2, 0),
        # It was within a call when it was read: what only one walk saw is not believed.
        ("R", [[64, 128, 192], [64, 128]], 2, 1),
    ],
)
def test_a_process_that_runs_is_read_twice(
    states: str, walks: list[list[int]], live: int, waits: int
) -> None:
    reader = MadeUpReader(walks, states)
    found = reader.read()
    assert found is not None
    assert [kind.count for kind in found.kinds] == [live]
    assert reader.heap.table.count == live
    assert reader.waits == waits
