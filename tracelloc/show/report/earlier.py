"""What earlier reports of a trace have said, so that later ones say only what has changed.

A trace that is logged for weeks would otherwise write the same call stacks every minute. Every
few hours everything is said again, as logs are rotated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Set
from typing import Final, TypeVar

from tracelloc.show.filters import NamedStack

T = TypeVar("T", bound=Hashable)

FULL_AGAIN_S: Final = 6 * 3600.0
"""After this time a report is whole again."""


class EarlierProcessReports:
    """What has been said of one process."""

    def __init__(self) -> None:
        self.is_full = True
        """Whether this report says everything."""
        self.stamp = ""
        """When this report was made, as its first line says it."""
        self._is_first = True
        self._states: dict[Hashable, Hashable] = {}
        self._stacks: dict[int, tuple[NamedStack, str]] = {}

    def begin(self, stamp: str, *, is_full: bool) -> None:
        """A report begins; the first one of a process is always full."""
        self.stamp, self.is_full = stamp, is_full or self._is_first
        self._is_first = False
        if self.is_full:
            self._stacks.clear()

    def is_news(self, topic: Hashable, state: Hashable) -> bool:
        """Whether this has to be said: it differs from what was said of the topic before."""
        is_known = topic in self._states and self._states[topic] == state
        self._states[topic] = state
        return self.is_full or not is_known

    def gone(self, kind: str, listed: Set[T]) -> list[T]:
        """The stacks or names of topics ``(kind, stack)`` that are listed no more; once each."""
        stacks = [
            topic[1]
            for topic in self._states
            if isinstance(topic, tuple) and topic[0] == kind and topic[1] not in listed
        ]
        for stack in stacks:
            del self._states[kind, stack]
        return stacks

    def frames_at(self, index: int, stack: NamedStack) -> str | None:
        """When the frames of a stack were said; None: now, as they are new or have got names."""
        known = self._stacks.get(index)
        if known is not None and (known[0] is stack or known[0] == stack):
            return known[1]
        self._stacks[index] = stack, self.stamp
        return None


class EarlierReports:
    """What has been said of the processes of a trace. For one thread."""

    def __init__(
        self, *, is_every_full: bool = False, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        """``is_every_full``: every report says everything."""
        self._is_every_full = is_every_full
        self._now_s = now_s
        self._full_s: float | None = None
        self._is_full = True
        self._processes: dict[int, EarlierProcessReports] = {}

    def begin(self, *, is_last: bool = False) -> None:
        """A report begins. The last one is full, for those who read the end of a file only."""
        now_s = self._now_s()
        is_due = self._full_s is None or now_s - self._full_s >= FULL_AGAIN_S
        self._is_full = self._is_every_full or is_last or is_due
        if self._is_full:
            self._full_s = now_s

    def of(self, number: int, stamp: str) -> EarlierProcessReports:
        """What was said of the process with this number, for the report that begins."""
        earlier = self._processes.setdefault(number, EarlierProcessReports())
        earlier.begin(stamp, is_full=self._is_full)
        return earlier
