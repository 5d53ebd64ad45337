"""The content of earlier reports of a trace, so that later ones only report changes.

A trace logged for weeks would otherwise write the same call stacks every minute. Because logs
are rotated, every few hours a report is complete again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Set
from typing import Final, TypeVar

from tracelloc.show.filters import NamedStack

T = TypeVar("T", bound=Hashable)

FULL_AGAIN_S: Final = 6 * 3600.0
"""Time between full reports."""


class EarlierProcessReports:
    """The reported state of one process."""

    def __init__(self) -> None:
        self.is_full = True
        """Whether this report is full."""
        self.stamp = ""
        """Time of this report, as in its first line."""
        self._is_first = True
        self._states: dict[Hashable, Hashable] = {}
        self._stacks: dict[int, tuple[NamedStack, str]] = {}

    def begin(self, stamp: str, *, is_full: bool) -> None:
        """Begins a report; the first one of a process is always full."""
        self.stamp, self.is_full = stamp, is_full or self._is_first
        self._is_first = False
        if self.is_full:
            self._stacks.clear()

    def is_news(self, topic: Hashable, state: Hashable) -> bool:
        """Whether the state of a topic has to be reported, as it differs from the last one."""
        is_known = topic in self._states and self._states[topic] == state
        self._states[topic] = state
        return self.is_full or not is_known

    def gone(self, kind: str, listed: Set[T]) -> list[T]:
        """Returns stacks or names of topics ``(kind, stack)`` no longer listed, once each."""
        stacks = [
            topic[1]
            for topic in self._states
            if isinstance(topic, tuple) and topic[0] == kind and topic[1] not in listed
        ]
        for stack in stacks:
            del self._states[kind, stack]
        return stacks

    def frames_at(self, index: int, stack: NamedStack) -> str | None:
        """Returns when a stack's frames were reported; None if they are new or got names."""
        known = self._stacks.get(index)
        if known is not None and (known[0] is stack or known[0] == stack):
            return known[1]
        self._stacks[index] = stack, self.stamp
        return None


class EarlierReports:
    """The reported state of all processes of a trace. For one thread."""

    def __init__(
        self, *, is_every_full: bool = False, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        """``is_every_full``: every report is full."""
        self._is_every_full = is_every_full
        self._now_s = now_s
        self._full_s: float | None = None
        self._is_full = True
        self._processes: dict[int, EarlierProcessReports] = {}

    def begin(self, *, is_last: bool = False) -> None:
        """Begins a report. The last one is full, for readers of the end of a file."""
        now_s = self._now_s()
        is_due = self._full_s is None or now_s - self._full_s >= FULL_AGAIN_S
        self._is_full = self._is_every_full or is_last or is_due
        if self._is_full:
            self._full_s = now_s

    def process_reports(self, number: int, stamp: str) -> EarlierProcessReports:
        """Returns the reported state of the process with this number, for the current report."""
        earlier = self._processes.setdefault(number, EarlierProcessReports())
        earlier.begin(stamp, is_full=self._is_full)
        return earlier
