"""Traces further processes that run already: a process's children, or all of a control group.

Their new children are followed as always. Into a group, others may bring processes, too, as a
container's runtime does: it is looked at a few times a second. Blocks that a process allocated
before count as from before tracing.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Final

from tracelloc.errors import TargetError
from tracelloc.record.process.procfs import Process
from tracelloc.record.session.follower import Follower
from tracelloc.record.session.session import Session

_EVERY_S: Final = 0.5


class ProcessJoiner:
    """Adds running processes to a session that has begun."""

    def __init__(
        self,
        members: Callable[[], Sequence[int]],
        session: Session,
        follower: Follower,
        *,
        is_group: bool,
    ) -> None:
        """``members`` returns the PIDs of a control group's processes, or of others to add now."""
        self._members, self._session, self._follower = members, session, follower
        self._is_group = is_group
        self._ended = threading.Event()
        self._refused: set[int] = set()  # Processes that can't be followed
        self._thread = threading.Thread(target=self._look, name="group", daemon=True)

    def start(self) -> None:
        """Adds all processes; of a group, also new ones, until ``stop``, on a separate thread."""
        while self._add_new():
            pass
        if self._is_group:
            self._thread.start()

    def stop(self) -> None:
        """Adds no more processes. May be called twice."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(_EVERY_S):
            self._session.supervisor.run("control group", 0, self._add_new, gives_up=False)

    def _add_new(self) -> bool:
        members = self._members()
        self._refused.intersection_update(members)
        new = [
            pid
            for pid in members
            if pid not in self._refused and not self._session.knows(pid) and not self._is_born(pid)
        ]
        for pid in new:
            if not self._ended.is_set():
                self._add(pid)
        return bool(new)

    def _add(self, pid: int) -> None:
        try:
            self._session.add_running(Process(pid))
            # What it forks until now is not followed, but found as it was.
            self._follower.join(pid)
        except TargetError as error:
            self._refused.add(pid)
            if Process(pid).exists():
                self._session.supervisor.say(f"warning: {error}")

    def _is_born(self, pid: int) -> bool:
        """Whether a process is a child that the follower is about to report."""
        return Process(pid).tracer_id() == self._follower.thread_id
