"""Long work on one process after the other, on a thread of its own and bounded in CPU time."""

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
"""How often it is asked whether something is due."""
_MOST_NS: Final = 600 * NS_PER_S
"""For one turn, as time passes. Reading memory may wait for what another program does
(userfaultfd(2), FUSE)."""
_LAST_S: Final = 2.0
"""How long the end waits for what is going on."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What may be done for one process now."""

    key: Hashable
    """The memory image, or what stands for it."""
    pid: int
    pause_ns: int
    """From one turn of it to the next, at least."""
    work: Callable[[], None]
    give_up: Callable[[], None] = lambda: None
    """Called when it is not to be tried again."""


class BackgroundTurns:
    """The session's lock guards what is called ``look``; ``close`` is called without it."""

    def __init__(self, name: str, share: float, supervisor: Supervisor) -> None:
        """``name``: the task's; it is supervised.

        ``share``: most of this machine's time (of one processor) that the work takes.
        """
        self._share = share
        self._name = name
        self._supervisor = supervisor
        self._working: tuple[Turn, Future[None]] | None = None
        self._not_before_ns = 0
        self._began_ns: dict[Hashable, int] = {}
        """When each had its last turn."""
        self.is_over = False
        """Nothing is begun any more; work that is going on should end soon."""

    def look(self, turns: Callable[[], Sequence[Turn]], now_ns: int) -> None:
        """Begins work if some is due, for who has waited longest."""
        if self.is_over or now_ns < self._not_before_ns:
            return
        if self._working is not None:
            turn, done = self._working
            if not done.done():
                if now_ns - self._began_ns.get(turn.key, 0) < _MOST_NS:
                    return
                # It is left to itself: nothing can end it.
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
        """Waits until nothing is going on."""
        if self._working is not None:
            self._working[1].result(timeout_s)

    def close(self) -> None:
        """Begins nothing any more, and waits until nothing is going on that can end."""
        self.is_over = True
        if self._working is not None:
            wait([self._working[1]], _LAST_S)
