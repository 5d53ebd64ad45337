"""The interface between event sources and the session that applies their events.

A session has several sources: the probes, and the preloaded library of each process. No block is
reported by two sources: while a process's library reports, its malloc library has no probes
(``PreloadedLink``).
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from tracelloc.model.events import EventBatch, Miss, SentStacks, joined_batch
from tracelloc.model.losses import Counter
from tracelloc.record.kernel.bpf import Capture
from tracelloc.record.kernel.spacecontrol import SpaceControl
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.sources.preloaded.link import PreloadedLink
from tracelloc.record.sources.preloaded.noprobes import NoProbes
from tracelloc.record.sources.preloaded.preloadedsource import PreloadedSource

Record = TypeVar("Record")


# The source of all blocks that no other source reports: the probes, or what replaces them.
ProbeSource = Capture | NoProbes
# A source of events of blocks. Call on the pump thread, with the session's lock.
EventSource = ProbeSource | PreloadedSource


class Sources:
    """All event sources of a session, read as one: the probes, and each preloaded library."""

    def __init__(
        self,
        probes: ProbeSource,
        preloaded: Callable[[], PreloadedSource] | None = None,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        """``preloaded`` makes a process's source, if there may be any; ``after``: called last."""
        self.probes, self._make, self._after = probes, preloaded, after
        self._every: Sequence[EventSource] = [probes]
        self._is_live = False
        self._earlier = np.zeros(len(Counter), np.uint64)  # Counters of sources that were dropped

    def link(self, space: AddressSpace, words: SpaceControl) -> PreloadedLink | None:
        """Returns a link to a process's library, if that may replace the process's probes."""
        return None if self._make is None else PreloadedLink(self.add(self._make()), space, words)

    def add(self, source: PreloadedSource) -> PreloadedSource:
        """Adds a source, whose events are applied before the probes'. Returns it."""
        source.set_live(self._is_live)
        self._every = [source, *self._every]
        return source

    def drop(self, source: PreloadedSource) -> None:
        """Closes the source of an ended process, whose events have been taken."""
        self._every = [each for each in self._every if each is not source]
        self._earlier += source.counters()
        source.close()

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
        """Whether urgent sources have reported nothing since events were taken. Needs no lock."""
        urgent = [source for source in self._every if source.is_urgent]
        return bool(urgent) and all(source.is_quiet for source in urgent)

    def take_events(self, *, only_urgent: bool = False) -> tuple[EventBatch, bool]:
        """Takes (events, whether there may be stacks for them); gives up sources that fail."""
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
        """Takes stacks of all sources: (memory image, its call stacks); call it after events."""
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
        return sum((source.counters() for source in self._every), start=self._earlier.copy())

    def set_live(self, live: bool) -> None:
        """Starts or stops the reports of all sources."""
        self._is_live = live
        for source in reversed(self._every):
            source.set_live(live)

    def forget_threads(self, pid: int, is_gone: Callable[[int], bool]) -> int:
        """Drops the state of a process's ended threads; returns how many calls were dropped."""
        return sum(source.forget_threads(pid, is_gone) for source in self._every)

    def close(self) -> None:
        """Frees the resources of all sources."""
        for source in self._every:
            source.close()
        self._after()
