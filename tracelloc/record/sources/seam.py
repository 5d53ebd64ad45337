"""The seam between what reports events and the session that applies them.

A session has several sources: the probes, and the preloaded library. No block is reported by two
of them: while a process's library reports, its malloc library has no probes (``SourceLink``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from tracelloc.model.counters import Counter
from tracelloc.model.events import EventBatch, Miss, SentStacks, joined_batch
from tracelloc.record.kernel.spacewords import SpaceWords
from tracelloc.record.mallocs.discovery import Allocator
from tracelloc.record.process.space import AddressSpace

Record = TypeVar("Record")


class EventSource(Protocol):
    """Reports what happens to blocks. For the thread that pumps, under the session's lock."""

    @property
    def waits_ms(self) -> tuple[int, int]:
        """How long it may be left alone: while much comes, and while little does."""

    @property
    def is_urgent(self) -> bool:
        """Whether threads may have to wait for its reader: its memory is small."""

    @property
    def is_quiet(self) -> bool:
        """Whether nothing has come since the last time. May be asked without the lock."""

    def take_events(self) -> EventBatch:
        """Takes all events that are complete, in their order. Raises OSError."""

    def take_stacks(self) -> list[tuple[int, SentStacks]]:
        """Takes (memory image, call stacks) that events refer to: all that have been sent."""

    def take_misses(self, most: int) -> list[Miss]:
        """Takes up to ``most`` stacks that user space has to finish."""

    @property
    def has_stacks(self) -> bool:
        """Whether stacks or misses may have come that are not taken."""

    def counters(self) -> npt.NDArray[np.uint64]:
        """A copy of its counters, indexed by ``Counter``."""

    def set_live(self, live: bool) -> None:
        """Lets it report, or stops that."""

    def forget_threads(self, pid: int, is_gone: Callable[[int], bool]) -> int:
        """Drops what it keeps of a process's threads that are gone; returns how many calls."""

    def close(self) -> None:
        """Gives back what it uses. Nothing is taken from it any more."""

    def fail(self, error: Exception) -> None:
        """Gives up what could not be read. Raises the error if nothing can replace it."""


class SourceLink(Protocol):
    """How far a source replaces the probes of one process. Under the session's lock."""

    @property
    def is_expected(self) -> bool:
        """Whether the process has the source, which has not begun yet."""

    @property
    def is_settled(self) -> bool:
        """Whether it is decided which of the two reports."""

    @property
    def replaces_probes(self) -> bool:
        """Whether functions that the source stands before need no probes, as far as is known."""

    @property
    def must_hand_over(self) -> bool:
        """Whether probes are to take its place now, while the process waits."""

    def look(self, allocators: Iterable[Allocator], *, all_loaded: bool) -> None:
        """Finds out whether the source is used.

        ``allocators``: all that are known. ``all_loaded``: what the program begins with is mapped.
        """

    def is_behind(self, allocator: Allocator) -> bool:
        """Whether all blocks of an allocator are reported by the source, as far as is known."""

    def report_choice(self) -> None:
        """Tells the user what was decided, once."""

    def look_after(self) -> None:
        """To be called now and then: finds out whether probes have to take over."""

    def begin_hand_over(self) -> None:
        """Has probes take its place; to be ended by ``end_hand_over``."""

    def end_hand_over(self) -> None:
        """Probes are in place: the process goes on."""

    def take_flaw(self) -> str:
        """Takes the reason why events were missed since the last time; empty if none were."""

    def own_ranges(self) -> list[tuple[int, int]]:
        """First addresses and ends of memory that the process has for tracelloc's sake."""

    def begin_image(self, *, same_thread: bool) -> None:
        """The process has executed another program; ``same_thread``: by its first thread."""

    def close(self) -> None:
        """Nobody in the process need wait any more. May be called twice."""


LinkMaker = Callable[[AddressSpace, SpaceWords], SourceLink | None]


class Sources:
    """All sources of a session, read as one: those that replace probes come first."""

    def __init__(
        self, every: Sequence[EventSource], link: LinkMaker = lambda _space, _words: None
    ) -> None:
        """``every``: in the order in which their events apply, the probes last.

        ``link`` connects a process to a source that may replace its probes; None: none may.
        """
        self._every = every
        self.link = link

    @property
    def waits_ms(self) -> tuple[int, int]:
        """How long the sources may be left alone: while much comes, and while little does."""
        least, most = zip(*(source.waits_ms for source in self._every), strict=True)
        return min(least), min(most)

    @property
    def are_urgent(self) -> bool:
        """Whether some have to be read more often than the rest."""
        return any(source.is_urgent for source in self._every)

    @property
    def are_quiet(self) -> bool:
        """Whether nothing has come from urgent ones. May be asked without the session's lock."""
        urgent = [source for source in self._every if source.is_urgent]
        return bool(urgent) and all(source.is_quiet for source in urgent)

    def take_events(self, *, only_urgent: bool = False) -> tuple[EventBatch, bool]:
        """Takes (events, whether stacks may have come with them).

        A source that raises has failed: it ends, and the others go on.
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
        """Takes stacks that are to be finished, up to ``most`` of each source."""
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
        """Sums of all counters, indexed by ``Counter``."""
        none = np.zeros(len(Counter), np.uint64)
        return sum((source.counters() for source in self._every), start=none)

    def set_live(self, live: bool) -> None:
        """Lets all report, or stops that."""
        for source in reversed(self._every):
            source.set_live(live)

    def forget_threads(self, pid: int, is_gone: Callable[[int], bool]) -> int:
        """Drops what is kept of a process's threads that are gone; returns how many calls."""
        return sum(source.forget_threads(pid, is_gone) for source in self._every)

    def close(self) -> None:
        """Gives back what they use."""
        for source in self._every:
            source.close()
