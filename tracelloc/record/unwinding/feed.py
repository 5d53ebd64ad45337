"""Stacks out of the probes' rings, to the process that each of them is of."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Protocol

from tracelloc.model.events import Miss, SentStacks
from tracelloc.record.unwinding.source import StackSource

_MISSES_AT_ONCE: Final = 64
"""Stacks that are finished before the ring is looked at again."""
_MOST_WAITING: Final = 1024
"""Misses that are held here at once: 20 MiB of stack memory if all are small."""
_LONGEST_S: Final = 0.5
"""A program that goes on sending them is not listened to for longer at a time."""

Guard = Callable[[int, Callable[[], None]], object]


def _unguarded(_pid: int, work: Callable[[], None]) -> None:
    work()


class StackSender(Protocol):
    """What stacks come from."""

    def take_stacks(self) -> list[tuple[int, SentStacks]]:
        """Takes (memory image, stacks) that have been sent."""

    def take_misses(self, most: int) -> list[Miss]:
        """Takes up to ``most`` stacks that are to be finished."""


class StackFeed:
    """Takes stacks out of their rings, for the thread that pumps."""

    def __init__(self, sources: StackSender, *, finishes: bool, guard: Guard = _unguarded) -> None:
        """``finishes``: whether stacks may come unfinished.

        ``guard`` does what it is given for a process by its PID; if that fails, it goes on.
        """
        self._sender, self._finishes = sources, finishes
        self._guard = guard
        self._sources: dict[int, StackSource] = {}
        self._newest = -1
        self._early_stacks: list[tuple[int, SentStacks]] = []
        """Stacks of images that are not known yet."""
        self._early_misses: list[Miss] = []
        """Misses of images that are not known yet."""

    def add(self, image: int, source: StackSource) -> None:
        """Stacks of this memory image are for this source. Numbers only grow."""
        self._sources[image] = source
        self._newest = max(self._newest, image)

    def drop(self, image: int) -> None:
        """Nobody asks for stacks of this image any more."""
        self._sources.pop(image, None)

    def take(self) -> None:
        """Notes all stacks that the rings hold. To be called after events were taken."""
        self._take_misses()
        early, self._early_stacks = self._early_stacks, []
        for image, new in [*early, *self._sender.take_stacks()]:
            if image > self._newest:
                self._early_stacks.append((image, new))
            elif image in self._sources:
                self._run(image, partial(StackSource.note, new=new))

    def _take_misses(self) -> None:
        if not self._finishes:
            return
        waiting: deque[Miss] = deque()
        misses, self._early_misses = self._early_misses, []
        begun_s = time.monotonic()
        while True:
            if len(waiting) < _MOST_WAITING and time.monotonic() - begun_s < _LONGEST_S:
                misses += self._sender.take_misses(_MOST_WAITING)
                # Only now: none of them is from a later generation than what is read here.
                for image in list(self._sources):
                    self._run(image, StackSource.catch_up)
                for image, new in _by_image(misses).items():
                    if image > self._newest:
                        self._early_misses += new
                    elif image in self._sources:
                        self._run(image, partial(StackSource.hasten, misses=new))
                        waiting.extend(new)
                misses = []
            if not waiting:
                break
            some = [waiting.popleft() for _ in range(min(len(waiting), _MISSES_AT_ONCE))]
            for image, new in _by_image(some).items():
                self._run(image, partial(StackSource.finish, misses=new))

    def _run(self, image: int, work: Callable[[StackSource], None]) -> None:
        source = self._sources[image]
        self._guard(source.pid, partial(work, source))


def _by_image(misses: Iterable[Miss]) -> dict[int, list[Miss]]:
    found: dict[int, list[Miss]] = {}
    for miss in misses:
        found.setdefault(miss.image, []).append(miss)
    return found
