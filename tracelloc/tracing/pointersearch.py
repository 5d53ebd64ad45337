"""Searches the processes' memory for pointers to their old blocks, in the background.

What nothing points to any more is unreachable (``heap.unreachable``), and verdicts know it. A
search costs the target nothing but memory bandwidth, and us as much time as reading its resident
memory takes, so there is a pause after each.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Protocol

from tracelloc.errors import PrivilegeError, TargetError
from tracelloc.heap.blocks import Blocks
from tracelloc.heap.heap import Heap
from tracelloc.reachability.search import search
from tracelloc.target.procfs import Process
from tracelloc.text import NS_PER_S

_OLD_NS: Final = 10 * NS_PER_S
"""Younger blocks may be on their way: in registers, or being moved."""
_PAUSE_NS: Final = 10 * NS_PER_S
"""From one search to the next, at least."""
_QUIET_NS: Final = 60 * NS_PER_S
"""From one to the next in processes in which nothing grows."""
_LOOK_NS: Final = NS_PER_S
"""How often it is asked whether a search is due."""
_SHARE: Final = 1 / 64
"""Most of this machine's time (of one processor) that searches take."""
_AT_ONCE: Final = 8192
"""Blocks that are copied while events wait."""
_MOST: Final = 1 << 20
"""Blocks that one search asks about: 40 MB."""


class Searched(Protocol):
    """What is needed of a traced process."""

    process: Process
    heap: Heap

    @property
    def is_paused(self) -> bool:
        """Whether its probes are off for now: what is freed meanwhile is not seen."""

    @property
    def is_growing(self) -> bool:
        """Whether a site seems to pile up blocks."""


class PointerSearches:
    """The session's lock guards what is called ``look``; ``close`` is called without it."""

    def __init__(
        self, lock: threading.RLock, say: Callable[[str], None], *, is_refused: bool = False
    ) -> None:
        """``is_refused``: memory is not to be read."""
        self._is_refused = is_refused
        self._lock = lock
        self._say = say
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="pointers")
        self._searching: Future[None] | None = None
        self._is_over = False
        self._not_before_ns = 0
        self._searched_ns: dict[Heap, int] = {}
        """When each heap was searched last."""

    def look(self, processes: Sequence[Searched], now_ns: int) -> None:
        """Begins a search if one is due: of the process that has waited longest."""
        if self._is_refused:
            for each in processes:
                each.heap.unreachable.is_refused = True
            return
        if self._is_over or now_ns < self._not_before_ns:
            return
        if self._searching is not None:
            if not self._searching.done():
                return
            self._searching.result()
            self._searching = None
        self._not_before_ns = now_ns + _LOOK_NS
        known = self._searched_ns
        self._searched_ns = {each.heap: known.get(each.heap, 0) for each in processes}
        due = [each for each in processes if self._is_due(each, now_ns)]
        if due:
            one = min(due, key=lambda each: self._searched_ns[each.heap])
            self._searched_ns[one.heap] = now_ns
            self._searching = self._pool.submit(self._search, one.process, one.heap, now_ns)

    def _is_due(self, one: Searched, now_ns: int) -> bool:
        began_ns = one.heap.table.cohorts.start_ns
        pause_ns = _PAUSE_NS if one.is_growing else _QUIET_NS
        if one.is_paused or began_ns is None or now_ns - began_ns <= _OLD_NS:
            return False
        return now_ns - self._searched_ns[one.heap] >= pause_ns

    def _search(self, process: Process, heap: Heap, now_ns: int) -> None:
        began_ns = time.thread_time_ns()
        try:
            found = search(process, self._old_blocks(heap, now_ns - _OLD_NS), self._may_go_on)
        except TargetError:
            return
        except (PrivilegeError, OSError, MemoryError) as error:
            self._is_refused = True
            why = str(error) or type(error).__name__
            self._say(f"warning: unreachable blocks can't be told from others: {why}")
            return
        if found is not None:
            with self._lock:
                heap.unreachable.note(found.blocks, found.reachable)
        took_ns = time.thread_time_ns() - began_ns
        self._not_before_ns = now_ns + int(took_ns / _SHARE)

    def _may_go_on(self) -> bool:
        return not self._is_over

    def _old_blocks(self, heap: Heap, born_by_ns: int) -> Blocks:
        parts: list[Blocks] = []
        count = 0
        at: int | None = 0
        while at is not None and count < _MOST:
            with self._lock:
                at, some = heap.table.some_blocks(at, born_by_ns, _AT_ONCE)
            parts.append(some)
            count += len(some)
        return Blocks.concatenate(parts)

    def stop(self) -> None:
        """Begins nothing any more, and ends what is going on soon."""
        self._is_over = True

    def close(self) -> None:
        """Waits until nothing is going on."""
        self.stop()
        self._pool.shutdown()
