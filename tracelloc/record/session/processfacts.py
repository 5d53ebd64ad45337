"""Reads facts about a process other than its heap, from /proc and from its memory.

Reading its memory may take long, and may never end. Every wait for it is bounded: what takes too
long is left out, or reported with its previous value.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from tracelloc.dataclass import dataclass, field
from tracelloc.model.figures import I64
from tracelloc.model.process import MemoryUsage
from tracelloc.record.facets.facet import Facet
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.residency import Residency
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.session.usablesizes import LONGEST_S, UsableSizeReader
from tracelloc.record.tasks.supervision import BoundedWork, Supervisor
from tracelloc.snapshots.snapshot import Snapshot

# Names of a process's threads, including those that have ended.

_MOST_AT_ONCE: Final = 64  # Most names read at a time


class ThreadNames:
    """Names of a process's threads, read as soon as a thread is seen in events."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._names: dict[int, str] = {}
        self.seen = 0  # How many of the ids were looked at

    def read_new(self, tids: I64) -> None:
        """Reads the names of new threads; ``tids`` has only grown at its end since last time."""
        new = tids[self.seen : self.seen + _MOST_AT_ONCE].tolist()
        self.seen += len(new)
        for tid in new:
            if (name := self._process.thread_name(tid)) is not None:
                self._names[tid] = name

    def all(self) -> dict[int, str]:
        """Returns names by thread id; reads those of current threads again. Thread safe."""
        self._names.update(self._process.thread_names())
        return dict(self._names)


# How long a snapshot waits for a facet that it wants: enough to count 30 million objects.
_FACET_PATIENCE_S: Final = 10.0
_PATIENCE_S: Final = 3.0

_T = TypeVar("_T")
Ranges = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """Facts about a process from /proc: memory and thread names."""

    # Resident bytes, without tracelloc's own memory; None once the process has ended.
    rss_bytes: int | None = None
    memory: MemoryUsage | None = None
    # Names of threads by thread id; empty unless wanted.
    thread_names: Mapping[int, str] = field(default_factory=dict)


class ProcessFactReader:
    """Reads facts about one process from /proc, on the thread that takes snapshots."""

    def __init__(self, space: AddressSpace, supervisor: Supervisor) -> None:
        self._process, self._supervisor = space.process, supervisor
        self.thread_names = ThreadNames(space.process)
        self._measuring = UsableSizeReader(space)
        self._works: dict[str, BoundedWork] = {}
        self._last = ProcessFacts()
        self.begin_image()

    def begin_image(self) -> None:
        """Forgets all facts, after the process has executed a program."""
        self.residency = Residency(self._process)
        self.thread_names.seen = 0

    def _bounded(
        self, task: str, work: Callable[[], _T], patience_s: float, *, gives_up: bool = False
    ) -> _T | None:
        """Returns the result of ``work``; None if it failed, takes too long or is overdue."""
        bounded = self._works.setdefault(task, BoundedWork(task))
        if bounded.is_overdue:
            return None
        run = partial(bounded.run, work, patience_s)
        return self._supervisor.run(task, self._process.pid, run, gives_up=gives_up)

    def refresh(self, facet: Facet[Any]) -> None:
        """Has a facet inspect again for a snapshot; if this takes too long, the result stays."""
        self._bounded(facet.task, facet.refresh, _FACET_PATIENCE_S, gives_up=True)

    def read_facts(self, mapped: Ranges | None, ours: Ranges, *, with_names: bool) -> ProcessFacts:
        """Reads facts now, within time limits. ``mapped``, ``ours``: see ``Residency``."""

        def read() -> ProcessFacts:
            usage = self.residency.read_usage(mapped, ours)
            names = self.thread_names.all() if with_names else {}
            return ProcessFacts(self.rss_bytes(), usage, names)

        # The kernel answers at once, whatever the process does.
        pid = self._process.pid
        read_now = self._supervisor.run("reading memory usage", pid, read, gives_up=False)
        self._last = read_now or self._last
        return self._last

    def rss_bytes(self) -> int | None:
        """Returns resident bytes, without tracelloc's own memory; None once it has ended."""
        rss_bytes = self._process.rss_bytes()
        return None if rss_bytes is None else max(0, rss_bytes - self.residency.our_bytes)

    def measured(self, snapshot: Snapshot, longest_s: float = LONGEST_S) -> Snapshot:
        """Returns a snapshot with usable sizes of blocks; reads for at most ``longest_s``."""
        measure = partial(self._measuring.measured, snapshot, longest_s)
        return self._bounded("reading block sizes", measure, _PATIENCE_S) or snapshot
