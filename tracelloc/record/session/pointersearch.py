"""Searches the processes' memory for pointers to their old blocks, in the background.

A block without any pointer to it is unreachable (``heap.unreachable``); verdicts use this. A
search costs the target only memory bandwidth. It costs tracelloc the time to read the target's
resident memory, so there is a pause after each search.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from tracelloc.errors import PrivilegeError
from tracelloc.heap.heap import Heap
from tracelloc.model.blocks import Blocks
from tracelloc.record.process.procfs import Process
from tracelloc.record.reachability.roots import RootWords
from tracelloc.record.reachability.search import search
from tracelloc.record.session.background import BackgroundTurns, Turn
from tracelloc.record.session.memorybudget import MemoryBudget
from tracelloc.record.session.supervision import Supervisor
from tracelloc.text import NS_PER_S

POINTER_SEARCH: Final = "pointer search"
REGISTERS: Final = "reading of registers"
_NO_REGISTERS: Final = (
    "registers are not searched for pointers ({why}): blocks that only a register points to "
    "count as lost"
)
_OLD_NS: Final = 10 * NS_PER_S
"""Pointers to younger blocks may be in registers, or being moved."""
_PAUSE_NS: Final = 10 * NS_PER_S
"""Least time from one search to the next."""
_FIRST: Final = 2
_QUIET_NS: Final = 60 * NS_PER_S
"""Time between searches of processes in which nothing grows."""
_MOST_CPU_NS: Final = 60 * NS_PER_S
"""CPU time limit of one search; enough for about 200 GiB."""
_SHARE: Final = 1 / 64
"""Largest share of one processor's time that searches take."""
_AT_ONCE: Final = 8192
"""Blocks copied at a time while events wait."""
_LEAST: Final = 1 << 20
"""How many blocks one search looks for if memory is short."""
_MOST: Final = 1 << 24
"""Most blocks that one search looks for."""
_BYTES_A_BLOCK: Final = 256
"""Memory to be left for each; a search takes about 120 bytes."""


class Searched(Protocol):
    """The parts of a traced process that a search needs."""

    process: Process
    heap: Heap

    @property
    def is_growing(self) -> bool:
        """Whether blocks of some stack seem to accumulate."""


class PointerSearches:
    """Schedules searches. Call ``run_due`` with the session's lock, ``close`` without it."""

    def __init__(
        self,
        lock: threading.RLock,
        supervisor: Supervisor,
        *,
        is_refused: bool = False,
        memory: MemoryBudget | None = None,
        begin_root_words: Callable[[], RootWords] | None = None,
    ) -> None:
        """``is_refused``: tracelloc must not read memory. ``memory``: what searches may use.

        ``begin_root_words``: makes the reader of registers; None: they are not read.
        """
        self._memory = memory
        self._begin_root_words = begin_root_words
        self._root_words: RootWords | None = None
        self._is_refused = is_refused
        self._lock = lock
        self._supervisor = supervisor
        self.turns = BackgroundTurns(POINTER_SEARCH, _SHARE, supervisor)

    def run_due(self, processes: Sequence[Searched], now_ns: int) -> None:
        """Begins a search if one is due: of the process that has waited longest."""
        if self._is_refused:
            for each in processes:
                each.heap.unreachable.is_refused = True
            return
        self.turns.run_due(
            lambda: [self._turn(each, now_ns) for each in processes if _has_old(each, now_ns)],
            now_ns,
        )

    def _turn(self, one: Searched, now_ns: int) -> Turn:
        # Lost blocks need two searches to be known, those from before tracing as well.
        is_soon = one.is_growing or one.heap.unreachable.searches < _FIRST
        pause_ns = _PAUSE_NS if is_soon else _QUIET_NS
        return Turn(
            one.heap, one.process.pid, pause_ns, partial(self._search, one, now_ns),
            partial(_give_up, one),
        )  # fmt: skip

    def _search(self, one: Searched, now_ns: int) -> None:
        heap, began_ns = one.heap, time.thread_time_ns()

        def may_go_on() -> bool:
            return not self.turns.is_over and time.thread_time_ns() - began_ns < _MOST_CPU_NS

        try:
            if self._begin_root_words is not None:
                self._root_words, self._begin_root_words = self._begin_root_words(), None
                if missing := self._root_words.missing:
                    self._supervisor.count(REGISTERS)
                    self._supervisor.say(_NO_REGISTERS.format(why=missing))
            old, has_all = self._old_blocks(heap, now_ns - _OLD_NS)
            found = search(one.process, old, may_go_on, self._root_words)
        except (PrivilegeError, OSError) as error:
            # Its memory can't be read, now or later.
            self._supervisor.note_failure(POINTER_SEARCH, one.process.pid, error, is_final=True)
            return
        if found is not None:
            result = heap.unreachable.compare(
                found.blocks, found.reachable, has_all=has_all, swapped_bytes=found.swapped_bytes
            )
            with self._lock:
                heap.unreachable.accept(result)
        elif not self.turns.is_over:
            late = TimeoutError("reading its memory takes too long")
            self._supervisor.note_failure(POINTER_SEARCH, one.process.pid, late, is_final=True)

    def _old_blocks(self, heap: Heap, born_by_ns: int) -> tuple[Blocks, bool]:
        """The old blocks, as many as may be searched for, and whether these are all."""
        parts: list[Blocks] = []
        count = 0
        at: int | None = 0
        most = _LEAST
        if self._memory is not None:
            most = min(max(most, self._memory.left_bytes // _BYTES_A_BLOCK), _MOST)
        while at is not None and count < most:
            with self._lock:
                at, some = heap.table.some_blocks(at, born_by_ns, _AT_ONCE)
            parts.append(some)
            count += len(some)
        return Blocks.concatenate(parts), at is None

    def close(self) -> None:
        """Waits up to 2 s for a search in progress."""
        self.turns.close()
        if self._root_words is not None:
            self._root_words.close()


def _give_up(one: Searched) -> None:
    one.heap.unreachable.is_refused = True


def _has_old(one: Searched, now_ns: int) -> bool:
    """Whether it has been traced for long enough, frees are seen, and its memory can be read.

    The first search finds blocks of some seconds to be old: the next one may be much later.
    """
    began_ns = one.heap.table.cohorts.start_ns
    may = not one.heap.unreachable.is_refused
    return may and began_ns is not None and now_ns - began_ns > _OLD_NS * 3 // 2
