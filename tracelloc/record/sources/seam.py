"""The interface between event sources and the session that applies their events.

A session has several sources: the probes, and the preloaded library. No block is reported by two
sources: while a process's library reports, its malloc library has no probes (``SourceLink``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from tracelloc.model.events import EventBatch, Miss, SentStacks, joined_batch
from tracelloc.model.losses import Counter
from tracelloc.record.kernel.spacewords import SpaceWords
from tracelloc.record.mallocs.discovery import Allocator
from tracelloc.record.process.space import AddressSpace

Record = TypeVar("Record")


class EventSource(Protocol):
    """Reports events of blocks. For the thread that pumps events, with the session's lock."""

    @property
    def waits_ms(self) -> tuple[int, int]:
        """How long it may be left unread, with many events and with few."""

    @property
    def is_urgent(self) -> bool:
        """Whether its memory is so small that threads may have to wait for the reader."""

    @property
    def is_quiet(self) -> bool:
        """Whether nothing was reported since the last time. May be called without the lock."""

    def take_events(self) -> EventBatch:
        """Takes all complete events, in order. Raises OSError."""

    def take_stacks(self) -> list[tuple[int, SentStacks]]:
        """Takes all sent (memory image, call stacks), to which events refer."""

    def take_misses(self, most: int) -> list[Miss]:
        """Takes up to ``most`` stacks that user space must finish."""

    @property
    def has_stacks(self) -> bool:
        """Whether there may be stacks or misses to take."""

    def counters(self) -> npt.NDArray[np.uint64]:
        """Returns a copy of its counters, indexed by ``Counter``."""

    def set_live(self, live: bool) -> None:
        """Starts or stops its reports."""

    def forget_threads(self, pid: int, is_gone: Callable[[int], bool]) -> int:
        """Drops the state of a process's ended threads; returns how many calls."""

    def close(self) -> None:
        """Frees its resources. Nothing can be taken afterwards."""

    def fail(self, error: Exception) -> None:
        """Stops reading after an error. Raises the error if nothing can replace the source."""


class SourceLink(Protocol):
    """Decides whether a source replaces the probes of one process. With the session's lock."""

    @property
    def is_expected(self) -> bool:
        """Whether the process has the source, but it is not yet initialized."""

    @property
    def is_settled(self) -> bool:
        """Whether the choice between source and probes is final."""

    @property
    def replaces_probes(self) -> bool:
        """Whether functions that the source interposes need no probes, as far as is known."""

    @property
    def must_hand_over(self) -> bool:
        """Whether probes must take over now, while the process waits."""

    def decide_use(self, allocators: Iterable[Allocator], *, all_loaded: bool) -> None:
        """Decides whether the source is used.

        ``allocators`` are all known ones. ``all_loaded``: the initial libraries are loaded.
        """

    def is_behind(self, allocator: Allocator) -> bool:
        """Returns whether the source reports all blocks of an allocator, as far as is known."""

    def report_choice(self) -> None:
        """Reports the choice to the user, once."""

    def look_after(self) -> None:
        """Checks whether probes must take over; to be called regularly."""

    def begin_hand_over(self) -> None:
        """Starts replacing the source by probes; ends with ``end_hand_over``."""

    def end_hand_over(self) -> None:
        """Lets the process continue, once its probes are attached."""

    def take_flaw(self) -> str:
        """Takes the reason why events were missed since the last time; empty if none were."""

    def costs(self) -> tuple[float, float] | None:
        """Returns what reports cost the process, in ns; None while probes report.

        CPU time per event, and for how long threads have waited for tracelloc so far.
        """

    def own_ranges(self) -> list[tuple[int, int]]:
        """Returns (start, end) of the memory that the process has only for tracelloc."""

    def begin_image(self, *, same_thread: bool) -> None:
        """Handles an exec of the process; ``same_thread`` is whether its first thread called it."""

    def close(self) -> None:
        """Ends every wait in the process. May be called twice."""


LinkMaker = Callable[[AddressSpace, SpaceWords], SourceLink | None]


class Sources:
    """All sources of a session, read as one; sources that replace probes come first."""

    def __init__(
        self,
        every: Sequence[EventSource],
        link: LinkMaker = lambda _space, _words: None,
        set_hiding: Callable[[bool], None] = lambda _hiding: None,
    ) -> None:
        """``every`` is in the order in which events are applied, the probes last.

        ``link`` connects a process to a source that may replace its probes, or returns None.
        ``set_hiding``: see ``PreloadedSource.set_hiding``.
        """
        self.set_hiding = set_hiding
        self._every = every
        self.link = link

    @property
    def waits_ms(self) -> tuple[int, int]:
        """How long the sources may be left unread, with many events and with few."""
        least, most = zip(*(source.waits_ms for source in self._every), strict=True)
        return min(least), min(most)

    @property
    def are_urgent(self) -> bool:
        """Whether some sources must be read more often than the rest."""
        return any(source.is_urgent for source in self._every)

    @property
    def are_quiet(self) -> bool:
        """Whether urgent sources have reported nothing. May be called without the lock."""
        urgent = [source for source in self._every if source.is_urgent]
        return bool(urgent) and all(source.is_quiet for source in urgent)

    def take_events(self, *, only_urgent: bool = False) -> tuple[EventBatch, bool]:
        """Takes (events, whether there may be stacks for them).

        A source that raises an exception is given up; the others continue.
        """
        batches, has_stacks = [], False
        for source in self._every:
            if only_urgent and not source.is_urgent:
                continue
            try:
                batches.append(source.take_events())
                has_stacks |= source.has_stacks
            except Exception as error:  # noqa: BLE001 - whatever it is, it is of this source alone
                source.fail(error)
        return joined_batch(batches), has_stacks

    def take_stacks(self) -> list[tuple[int, SentStacks]]:
        """Takes (memory image, stacks) of all sources, after the events that refer to them."""
        return self._taken(lambda source: source.take_stacks())

    def take_misses(self, most: int) -> list[Miss]:
        """Takes stacks that user space must finish, up to ``most`` of each source."""
        return self._taken(lambda source: source.take_misses(most))

    def _taken(self, take: Callable[[EventSource], list[Record]]) -> list[Record]:
        found: list[Record] = []
        for source in self._every:
            try:
                found += take(source)
            except Exception as error:  # noqa: BLE001 - as above
                source.fail(error)
        return found

    def counters(self) -> npt.NDArray[np.uint64]:
        """Returns the sums of all counters, indexed by ``Counter``."""
        none = np.zeros(len(Counter), np.uint64)
        return sum((source.counters() for source in self._every), start=none)

    def set_live(self, live: bool) -> None:
        """Starts or stops the reports of all sources."""
        for source in reversed(self._every):
            source.set_live(live)

    def forget_threads(self, pid: int, is_gone: Callable[[int], bool]) -> int:
        """Drops the state of a process's ended threads; returns how many calls."""
        return sum(source.forget_threads(pid, is_gone) for source in self._every)

    def close(self) -> None:
        """Frees the resources of all sources."""
        for source in self._every:
            source.close()
