"""Traces all processes of a control group, and those that come into it later.

Children are followed as always; this module finds processes that others start in the group, as a
container's runtime does. It looks a few times a second. Blocks that a process allocated before
count as from before tracing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

from tracelloc.errors import TargetError
from tracelloc.record.process.procfs import Process
from tracelloc.record.session.follower import Follower
from tracelloc.record.session.session import Session

_EVERY_S: Final = 0.5


class GroupJoiner:
    """Adds a control group's processes to a session that has begun, on a separate thread."""

    def __init__(
        self, members: Callable[[], Sequence[int]], session: Session, follower: Follower
    ) -> None:
        """``members`` returns the PIDs of the group's processes."""
        self._members, self._session, self._follower = members, session, follower
        self._ended = threading.Event()
        self._refused: set[int] = set()  # Processes that can't be followed
        self._thread = threading.Thread(target=self._look, name="group", daemon=True)

    def start(self) -> None:
        """Adds all processes of the group, then new ones, until ``stop``."""
        while self._add_new():
            pass
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
                try:
                    self._session.add_running(Process(pid))
                    # What it forks until now is not followed, but found as it was.
                    self._follower.join(pid)
                except TargetError as error:
                    self._refused.add(pid)
                    if Process(pid).exists():
                        self._session.supervisor.say(f"warning: {error}")
        return bool(new)

    def _is_born(self, pid: int) -> bool:
        """Whether a process is a child that the follower is about to report."""
        return Process(pid).tracer_id() == self._follower.thread_id
