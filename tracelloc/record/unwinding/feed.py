"""Distributes stacks from the probes' rings to their processes."""

import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from tracelloc.model.events import Miss, SentStacks
from tracelloc.record.sources.eventsource import Sources
from tracelloc.record.unwinding.stacksource import StackSource

_MISSES_AT_ONCE: Final = 64  # Stacks that are finished before the ring is read again
_MOST_TAKEN: Final = 1024  # Misses that are taken from the ring at once
# Stack memory of misses that are queued here before no more are taken. The program goes on: if the
# ring is full, it loses stacks, and waits the longer for the rows of others.
_WAITING_BYTES: Final = 80 << 20
_LONGEST_S: Final = 0.5  # Longest time of reading misses from a program that keeps sending them

Guard = Callable[[int, Callable[[], None]], object]


class StackFeed:
    """Takes stacks out of the sources' rings, and gives them to the processes' ``StackSource``."""

    def __init__(
        self, sources: Sources, *, finishes: bool, guard: Guard = lambda _pid, work: work()
    ) -> None:
        """``finishes``: whether stacks may arrive unfinished.

        ``guard`` runs work for a process, given its PID; it does not raise if the work fails.
        """
        self._sender, self._finishes = sources, finishes
        self._guard = guard
        self._sources: dict[int, StackSource] = {}
        self._newest = -1
        # Stacks of images that are not known yet
        self._early_stacks: list[tuple[int, SentStacks]] = []
        self._early_misses: list[Miss] = []  # Misses of images that are not known yet

    def add(self, image: int, source: StackSource) -> None:
        """Sends stacks of a memory image to a ``StackSource``. Image numbers only grow."""
        self._sources[image] = source
        self._newest = max(self._newest, image)

    def drop(self, image: int) -> None:
        """Drops further stacks of a memory image."""
        self._sources.pop(image, None)

    def take_stacks(self) -> None:
        """Processes all stacks in the rings. Call it after events were taken."""
        self._take_misses()
        early, self._early_stacks = self._early_stacks, []
        for image, new in [*early, *self._sender.take_stacks()]:
            if image > self._newest:
                self._early_stacks.append((image, new))
            elif image in self._sources:
                self._run(image, partial(StackSource.store_sent, new=new))

    def _take_misses(self) -> None:
        if not self._finishes:
            return
        waiting: deque[Miss] = deque()
        misses, self._early_misses = self._early_misses, []
        begun_s = time.monotonic()
        waiting_bytes = 0
        while True:
            if waiting_bytes < _WAITING_BYTES and time.monotonic() - begun_s < _LONGEST_S:
                misses += self._sender.take_misses(_MOST_TAKEN)
                # Only now, so that no miss has a later generation than what is read here.
                for image in list(self._sources):
                    self._run(image, StackSource.catch_up)
                for image, new in _by_image(misses).items():
                    if image > self._newest:
                        self._early_misses += new
                    elif image in self._sources:
                        self._run(image, partial(StackSource.supply_rows, misses=new))
                        waiting.extend(miss for miss in new if not miss.library)
                        waiting_bytes += sum(len(miss.stack) for miss in new)
                misses = []
            if not waiting:
                break
            some = [waiting.popleft() for _ in range(min(len(waiting), _MISSES_AT_ONCE))]
            waiting_bytes -= sum(len(miss.stack) for miss in some)
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
