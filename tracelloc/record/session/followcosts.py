"""What following costs the processes: how often they stop for it, and for how long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tracelloc.model.process import FollowCounts
from tracelloc.text import NS_PER_S

_WINDOW_NS: Final = 5 * NS_PER_S
# Share of time in which some process waits for tracelloc; users are warned above it.
_MOST_SHARE: Final = 0.5


class FollowCosts:
    """Counts stops, and warns once when they take too much time. Not thread safe."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._has_said = False
        self.counts = FollowCounts()
        self._window_start_ns = 0
        self._before = self.counts

    def note(self, start_ns: int, end_ns: int, *, forks: int = 0, execs: int = 0) -> None:
        """Adds the time that a process was stopped (CLOCK_MONOTONIC)."""
        was = self.counts
        self.counts = FollowCounts(
            was.forks + forks, was.execs + execs, was.stopped_ns + end_ns - start_ns
        )
        elapsed_ns = end_ns - self._window_start_ns
        if elapsed_ns >= _WINDOW_NS:
            if self._window_start_ns and not self._has_said:
                self._judge(elapsed_ns)
            self._window_start_ns, self._before = end_ns, self.counts

    def _judge(self, elapsed_ns: int) -> None:
        now, before = self.counts, self._before
        share = (now.stopped_ns - before.stopped_ns) / elapsed_ns
        if share <= _MOST_SHARE:
            return
        self._has_said = True
        forks, execs = now.forks - before.forks, now.execs - before.execs
        per_s = NS_PER_S / elapsed_ns
        self._say(
            f"warning: processes wait {share:.0%} of the time to be followed "
            f"({forks * per_s:.0f} forks and {execs * per_s:.0f} programs per second); "
            "--follow=NAME,... follows only commands of these names"
        )
