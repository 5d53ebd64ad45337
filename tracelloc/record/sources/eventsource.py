"""The interface between event sources and the session that applies their events.

A session has several sources: the probes, and the preloaded library. No block is reported by two
sources: while a process's library reports, its malloc library has no probes (``PreloadedLink``).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from tracelloc.model.events import EventBatch, Events, Miss, SentStacks, joined_batch
from tracelloc.model.figures import U64
from tracelloc.model.losses import Counter
from tracelloc.record.abi import ForkFlag
from tracelloc.record.kernel.attach import Attachment
from tracelloc.record.kernel.method import Method
from tracelloc.record.kernel.rowtable import RowMemory
from tracelloc.record.kernel.spacecontrol import SpaceControl
from tracelloc.record.probe_points.placement import ProbePoint
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.sources.preloaded.link import PreloadedLink
from tracelloc.record.sources.preloaded.preloadedsource import PreloadedSource

Record = TypeVar("Record")


class EventSource(Protocol):
    """A source of events of blocks. Call on the pump thread, with the session's lock."""

    @property
    def waits_ms(self) -> tuple[int, int]:
        """How long the source may be left unread, in ms: with many events, with few."""

    @property
    def is_urgent(self) -> bool:
        """Whether the source's memory is so small that threads may wait for the reader."""

    @property
    def is_quiet(self) -> bool:
        """Whether nothing was reported since events were last taken. Needs no lock."""

    def take_events(self) -> EventBatch:
        """Takes all complete events, in order. Raises OSError."""

    def take_stacks(self) -> list[tuple[int, SentStacks]]:
        """Takes all stacks that were sent: (memory image, its call stacks)."""

    def take_misses(self, most: int) -> list[Miss]:
        """Takes up to ``most`` stacks that user space must finish."""

    @property
    def has_stacks(self) -> bool:
        """Whether there may be stacks or misses to take."""

    def counters(self) -> npt.NDArray[np.uint64]:
        """Returns a copy of the source's counters, indexed by ``Counter``."""

    def set_live(self, live: bool) -> None:
        """Starts or stops the source's reports."""

    def forget_threads(self, pid: int, is_gone: Callable[[int], bool]) -> int:
        """Drops the state of a process's ended threads; returns how many calls were dropped."""

    def close(self) -> None:
        """Frees the source's resources. Nothing can be taken afterwards."""

    def fail(self, error: Exception) -> None:
        """Stops reading after an error; raises the error if nothing can replace the source."""


class ProbeSource(EventSource, Protocol):
    """The source of all blocks that no other source reports: the probes, or what replaces them."""

    # Readable for epoll when events are to be taken before `waits_ms` has passed.
    wakeup_fds: Sequence[int]
    rows: RowMemory | None  # The unwind rows of all address spaces, if stacks are walked by rows
    has_probes: bool  # Whether the source can probe functions

    @property
    def method(self) -> Method:
        """The attach method; final once probes are attached."""

    @property
    def programs(self) -> Mapping[str, int]:
        """The descriptors of the uprobe programs, by name."""

    @property
    def overflows(self) -> int:
        """Number of times that the ring of events was found to have overflowed."""

    def program(self, name: str) -> int:
        """Returns the descriptor of a BPF program, by name."""

    def take_mappings(self) -> Events:
        """Takes all mmap and munmap events, if they are traced."""

    def until_now(self) -> Callable[[], bool]:
        """Returns a function that tells whether all events reported by now have been taken."""

    def attach(self, pid: int, points: Sequence[ProbePoint]) -> Attachment:
        """Attaches probes. Raises TracellocError, and has then attached nothing."""

    def note_sampled(self, addresses: U64) -> None:
        """Makes the probes of a sampled trace report frees of these blocks, too."""

    def new_space(self) -> SpaceControl:
        """Returns the control words of one more address space. Raises UnsupportedError."""

    def free_space(self, words: SpaceControl) -> None:
        """Makes the slot of an unused address space available again."""

    def assign(self, pid: int, words: SpaceControl) -> None:
        """Assigns an address space to a process, if children are traced."""

    def unassign(self, pid: int) -> None:
        """Stops tracing a process. Only if children are followed."""

    def watch(self, pid: int) -> None:
        """Makes the probes notice execs of a process from now on. Raises UnsupportedError."""

    def notices_execs(self) -> bool:
        """Returns whether the control words count the programs that the first process executes."""

    def forget_image(self) -> None:
        """Handles the end of the first process's memory image."""

    def set_stop_at_loads(self, stop: bool) -> None:
        """Sets whether a thread gets the stop signal after the loader has mapped something."""

    def take_trap(self, thread_id: int) -> bool | None:
        """Handles a stopped thread's trap. Returns whether there is new code; None: not ours."""

    def take_fork(self, thread_id: int) -> ForkFlag | None:
        """Takes the probes' record of the process that a thread has forked; None without one."""


class Sources:
    """All event sources of a session, read as one: the probes, and the preloaded library."""

    def __init__(self, probes: ProbeSource, preloaded: PreloadedSource | None = None) -> None:
        """``preloaded``: the library's source, whose events are applied before the probes'."""
        self.probes, self._preloaded = probes, preloaded
        self._every: Sequence[EventSource] = [probes] if preloaded is None else [preloaded, probes]

    def link(self, space: AddressSpace, words: SpaceControl) -> PreloadedLink | None:
        """Returns a link to a process's library, if that may replace the process's probes."""
        return None if self._preloaded is None else PreloadedLink(self._preloaded, space, words)

    def set_hiding(self, hiding: bool) -> None:
        """Sets whether the library reports only frees, no allocations (``PreloadedSource``)."""
        if self._preloaded is not None:
            self._preloaded.set_hiding(hiding)

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
        none = np.zeros(len(Counter), np.uint64)
        return sum((source.counters() for source in self._every), start=none)

    def set_live(self, live: bool) -> None:
        """Starts or stops the reports of all sources."""
        for source in reversed(self._every):
            source.set_live(live)

    def forget_threads(self, pid: int, is_gone: Callable[[int], bool]) -> int:
        """Drops the state of a process's ended threads; returns how many calls were dropped."""
        return sum(source.forget_threads(pid, is_gone) for source in self._every)

    def close(self) -> None:
        """Frees the resources of all sources."""
        for source in self._every:
            source.close()
