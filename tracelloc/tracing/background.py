"""Long work on one process after the other, on a thread of its own and bounded in CPU time."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from tracelloc.text import NS_PER_S

_LOOK_NS: Final = NS_PER_S
"""How often it is asked whether something is due."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What may be done for one process now."""

    key: Hashable
    """The memory image, or what stands for it."""
    pause_ns: int
    """From one turn of it to the next, at least."""
    work: Callable[[], None]


class BackgroundTurns:
    """The session's lock guards what is called ``look``; ``close`` is called without it."""

    def __init__(self, name: str, share: float) -> None:
        """``share``: most of this machine's time (of one processor) that the work takes."""
        self._share = share
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._working: Future[None] | None = None
        self._not_before_ns = 0
        self._began_ns: dict[Hashable, int] = {}
        """When each had its last turn."""
        self.is_over = False
        """Nothing is begun any more; work that is going on should end soon."""

    def look(self, turns: Callable[[], Sequence[Turn]], now_ns: int) -> None:
        """Begins work if some is due, for who has waited longest. Raises what the last died of."""
        if self.is_over or now_ns < self._not_before_ns:
            return
        if self._working is not None:
            if not self._working.done():
                return
            self._working.result()
            self._working = None
        self._not_before_ns = now_ns + _LOOK_NS
        known, offered = self._began_ns, turns()
        self._began_ns = {turn.key: known.get(turn.key, 0) for turn in offered}
        due = [turn for turn in offered if now_ns - self._began_ns[turn.key] >= turn.pause_ns]
        if due:
            one = min(due, key=lambda turn: self._began_ns[turn.key])
            self._began_ns[one.key] = now_ns
            self._working = self._pool.submit(self._work, one, now_ns)

    def _work(self, turn: Turn, now_ns: int) -> None:
        began_ns = time.thread_time_ns()
        turn.work()
        took_ns = time.thread_time_ns() - began_ns
        self._not_before_ns = max(self._not_before_ns, now_ns + int(took_ns / self._share))

    def wait(self, timeout_s: float | None = None) -> None:
        """Waits until nothing is going on."""
        if self._working is not None:
            self._working.result(timeout_s)

    def close(self) -> None:
        """Begins nothing any more, and waits until nothing is going on."""
        self.is_over = True
        self._pool.shutdown()
