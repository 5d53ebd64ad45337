"""Reads the heaps of running processes once, when tracing of each begins, in the background."""

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from tracelloc.errors import UnsupportedError
from tracelloc.record.facets.facet import LARGE_HEAP_BYTES
from tracelloc.record.session.config import TraceContext
from tracelloc.record.session.earlierblocks import (
    EARLIER_BLOCKS,
    EarlierBlockReader,
    SizeLimits,
    why_not,
)
from tracelloc.record.session.tracee import Tracee
from tracelloc.record.tasks.memorybudget import return_freed_memory
from tracelloc.text import format_size

_WALKS: Final = 2  # How often a heap is read, most often
_PROGRESS_S: Final = 5.0  # From one line about progress to the next
_TURN_S: Final = 60.0  # How long another large heap is waited for


class ReadProgress:
    """Says every five seconds how much of a heap has been read."""

    def __init__(
        self,
        pid: int,
        expected_bytes: int,
        say: Callable[[str], None],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``expected_bytes``: what will have been read in the end, nearly."""
        self._pid, self._expected_bytes, self._say = pid, max(expected_bytes, 1), say
        self._now_s = now_s
        self._began_s = self._said_s = now_s()
        self._read_bytes = 0

    def note(self, read_bytes: int) -> None:
        """Adds bytes that have been read."""
        self._read_bytes += read_bytes
        now_s = self._now_s()
        if now_s - self._said_s >= _PROGRESS_S:
            self._said_s = now_s
            percent = min(100 * self._read_bytes // self._expected_bytes, 99)
            self._say(
                f"reading the heap of process {self._pid}: {percent} %, "
                f"{now_s - self._began_s:.0f} s"
            )


class FirstHeaps:
    """Reads heaps at first: adds blocks from before tracing, if wanted; accounts for memory."""

    def __init__(
        self,
        context: TraceContext,
        drain: Callable[[], None],
        account: Callable[[Tracee], None],
    ) -> None:
        """``drain``, called with the context's lock, applies all pending events."""
        self._config, self._supervisor = context.config, context.supervisor
        self._lock, self._turn = context.lock, context.facets.large_heap
        self._drain, self._account = drain, account
        # Processes whose blocks from before tracing are still being read
        self._reading: set[int] = set()
        self._is_stopped = False

    def begin(self, tracee: Tracee) -> threading.Thread:
        """Reads a process's heap as it is now, on a new thread, which is returned."""

        def read(size_bytes: int) -> None:
            pid = tracee.process.pid
            if self._config.can_count_earlier:
                self._reading.add(pid)
                if size_bytes >= LARGE_HEAP_BYTES:
                    self._supervisor.say(
                        f"reading the heap of process {pid}, {format_size(size_bytes)}: a later "
                        "report has what was allocated before tracing"
                    )
                progress = ReadProgress(pid, _WALKS * size_bytes, self._supervisor.say)
                add = partial(self._add_earlier, tracee, progress.note)
                self._supervisor.run(EARLIER_BLOCKS, pid, add, gives_up=False)
                self._reading.discard(pid)
                return_freed_memory()
            self._account(tracee)

        def read_in_turn() -> None:
            size_bytes = tracee.process.rss_bytes() or 0
            has_turn = size_bytes >= LARGE_HEAP_BYTES and self._turn.acquire(timeout=_TURN_S)
            try:
                read(size_bytes)
            finally:
                if has_turn:
                    self._turn.release()

        thread = threading.Thread(target=read_in_turn, name="heap", daemon=True)
        thread.start()
        return thread

    def stop(self) -> None:
        """Ends reading, as tracing has stopped and sources may be closed. Call with the lock."""
        self._is_stopped = True
        if self._reading:
            early = UnsupportedError("tracing ended before the heap had been read")
            self._supervisor.say(why_not(early))

    def _add_earlier(self, tracee: Tracee, note_read: Callable[[int], None]) -> None:
        heap, budget, capture = tracee.heap, self._config.memory, self._config.capture

        def drain() -> None:
            if not self._is_stopped:
                self._drain()

        reader = EarlierBlockReader(
            tracee.process, heap, tracee.space.files.runtime_frames, self._lock, drain,
            is_current=lambda: tracee.heap is heap and not self._is_stopped,
            note_added=tracee.series.add_before,
            note_read=note_read,
            limits=SizeLimits(capture.min_block_bytes, capture.max_block_bytes),
            memory_bytes=None if budget is None else budget.left_bytes // 2,
        )  # fmt: skip
        try:
            found = reader.read()
        except UnsupportedError as error:
            whose = f"process {tracee.process.pid}: " if self._config.follow else ""
            self._supervisor.say(whose + why_not(error))
            return
        with self._lock:
            if found is not None and tracee.heap is heap:
                tracee.earlier = found
