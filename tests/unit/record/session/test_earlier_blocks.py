"""Blocks from before tracing: what a walk of the heap is believed."""

import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.commands import background
from tests.unit.events import Event, F, records
from tracelloc.heap.heap import Heap
from tracelloc.model.frames import RuntimeFrames
from tracelloc.model.process import MallocLibrary
from tracelloc.record.heapwalk.arenas import Arena, BlockState, WalkedHeap
from tracelloc.record.heapwalk.classes import BlockKinds, ClassNames, ClassTally
from tracelloc.record.heapwalk.pieces import PieceReader
from tracelloc.record.kernel.captureconfig import CaptureConfig
from tracelloc.record.process.memory import RemoteMemory
from tracelloc.record.process.procfs import Process
from tracelloc.record.session import earlierblocks
from tracelloc.record.session.earlierblocks import EarlierBlockReader, ReadProgress


class MadeUpReader(EarlierBlockReader):
    """Walks that find given addresses; a negative one has been freed meanwhile."""

    def __init__(
        self, walks: list[list[int]], running: dict[int, int], pid: int = os.getpid()
    ) -> None:
        self.heap = Heap(0)
        super().__init__(
            Process(pid), self.heap, RuntimeFrames(), threading.RLock(), lambda: None,
            is_current=lambda: True, note_added=lambda _: None, note_read=lambda _: None,
            capture=CaptureConfig(), memory_bytes=None,
        )  # fmt: skip
        self._walks: Iterator[list[int]] = iter(walks)
        self._now_running = running
        self.waits = 0

    def _walk(self) -> Any:
        found = next(self._walks)
        freed: list[Event] = [(F, -address, 0, 0, 7) for address in found if address < 0]
        self.heap.table.apply(records(freed, first_time=self.waits + 1))
        starts = [address for address in found if address > 0]
        entries = [
            each for at in starts for each in (at | BlockState.IN_USE, at + 32 | BlockState.END)
        ]
        arena = Arena("", MallocLibrary.MUSL, 0).add(np.array(entries, np.uint64))
        names = ClassNames(PieceReader(RemoteMemory(self._process)))
        return earlierblocks._HeapReading(
            WalkedHeap([arena], []), BlockKinds(ClassTally([]), names)
        )

    def _running(self) -> dict[int, int]:
        return dict(self._now_running)

    def _await_progress(self, running: dict[int, int]) -> None:
        assert running == self._now_running
        self.waits += 1


@pytest.mark.parametrize(
    ("running", "walks", "live", "waits"),
    [
        pytest.param({}, [[64, 128]], 2, 0, id="asleep"),
        pytest.param({7: 0}, [[64, 128], [64, 128]], 2, 1, id="the same twice"),
        # A thread was within a call: what one walk saw is not believed, nor what one missed.
        pytest.param({7: 0}, [[64, 128, 192], [64, 128], [64, 128]], 2, 2, id="one too many"),
        pytest.param({7: 0}, [[64], [64, 128], [64, 128]], 2, 2, id="one missed"),
        pytest.param({7: 0}, [[64, 128], [64, 192], [64, 128], [64, 192]], 1, 3, id="never"),
        # Its event explains the difference.
        pytest.param({7: 0}, [[64, 128, 192], [64, 128, -192]], 2, 1, id="freed meanwhile"),
    ],
)
def test_walks_must_agree_unless_all_threads_sleep(
    running: dict[int, int], walks: list[list[int]], live: int, waits: int
) -> None:
    reader = MadeUpReader(walks, running)
    assert [kind.count for kind in reader.read().kinds] == [live]
    assert reader.heap.table.count == live
    assert reader.waits == waits


def test_each_thread_must_run_between_walks() -> None:
    with background("/bin/sh", "-c", "while :; do :; done") as busy:
        reader = MadeUpReader([], {}, busy.pid)
        while not (running := EarlierBlockReader._running(reader)):
            pass
        EarlierBlockReader._await_progress(reader, running)
        assert Process(busy.pid).run_ns() - running[busy.pid] >= earlierblocks._LONG_CALL_NS


def test_progress_is_said_every_five_seconds() -> None:
    """More may be read than was expected; the progress never reaches 100 %."""
    times_s, said = iter(range(100)), list[str]()
    progress = ReadProgress(7, 1000, said.append, lambda: next(times_s))
    for _ in range(11):
        progress.note(100)
    assert said == [
        "reading the heap of process 7: 50 %, 5 s",
        "reading the heap of process 7: 99 %, 10 s",
    ]
