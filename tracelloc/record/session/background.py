"""Long tasks for one process at a time, on a separate thread, bounded in CPU time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Final

from tracelloc.record.session.supervision import Supervisor
from tracelloc.text import NS_PER_S

_LOOK_NS: Final = NS_PER_S
"""How often ``run_due`` checks whether a turn is due."""
_MOST_NS: Final = 600 * NS_PER_S
"""Longest wall-clock time of one turn. Reading memory may wait for what another program does
(userfaultfd(2), FUSE)."""
_LAST_S: Final = 2.0
"""How long ``close`` waits for work in progress."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Work that may be done for one process now."""

    key: Hashable
    """The memory image, or an object that stands for it."""
    pid: int
    pause_ns: int
    """Least time from one turn for this key to the next."""
    work: Callable[[], None]
    give_up: Callable[[], None] = lambda: None
    """Called when the work will not be tried again."""


class BackgroundTurns:
    """Runs turns. Call ``run_due`` with the session's lock held, and ``close`` without it."""

    def __init__(self, name: str, share: float, supervisor: Supervisor) -> None:
        """``name``: the supervised task's name.

        ``share``: largest share of one processor's time that the work takes.
        """
        self._share = share
        self._name = name
        self._supervisor = supervisor
        self._working: tuple[Turn, Future[None]] | None = None
        self._not_before_ns = 0
        self._began_ns: dict[Hashable, int] = {}
        """When the last turn for each key began."""
        self.is_over = False
        """True if no more work begins; work in progress should end soon."""

    def run_due(self, turns: Callable[[], Sequence[Turn]], now_ns: int) -> None:
        """Begins a turn if one is due: that of the key that has waited longest."""
        if self.is_over or now_ns < self._not_before_ns:
            return
        if self._working is not None:
            turn, done = self._working
            if not done.done():
                if now_ns - self._began_ns.get(turn.key, 0) < _MOST_NS:
                    return
                # The thread is abandoned: nothing can end it.
                late = TimeoutError(f"it takes more than {_MOST_NS // NS_PER_S} s")
                self._supervisor.note_failure(self._name, turn.pid, late, is_final=True)
                turn.give_up()
            self._working = None
        self._not_before_ns = now_ns + _LOOK_NS
        known, offered = self._began_ns, turns()
        self._began_ns = {turn.key: known.get(turn.key, 0) for turn in offered}
        has_given_up = partial(self._supervisor.has_given_up, self._name)
        due = [
            turn
            for turn in offered
            if now_ns - self._began_ns[turn.key] >= turn.pause_ns and not has_given_up(turn.pid)
        ]
        if due:
            one = min(due, key=lambda turn: self._began_ns[turn.key])
            self._began_ns[one.key] = now_ns
            self._working = one, Future()
            threading.Thread(
                target=self._work, args=(*self._working, now_ns), name=self._name,
                daemon=True,
            ).start()  # fmt: skip

    def _work(self, turn: Turn, done: Future[None], now_ns: int) -> None:
        try:
            self._supervisor.run(self._name, turn.pid, lambda: self._measured(turn.work, now_ns))
            if self._supervisor.has_given_up(self._name, turn.pid):
                turn.give_up()
        finally:
            done.set_result(None)

    def _measured(self, work: Callable[[], None], now_ns: int) -> None:
        began_ns = time.thread_time_ns()
        work()
        took_ns = time.thread_time_ns() - began_ns
        self._not_before_ns = max(self._not_before_ns, now_ns + int(took_ns / self._share))

    def wait(self, timeout_s: float | None = None) -> None:
        """Waits until no work is in progress."""
        if self._working is not None:
            self._working[1].result(timeout_s)

    def close(self) -> None:
        """Begins no more work, and waits up to 2 s for work in progress."""
        self.is_over = True
        if self._working is not None:
            wait([self._working[1]], _LAST_S)
