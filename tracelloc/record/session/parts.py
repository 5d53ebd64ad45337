"""Measures parts of a program's run, such as one test, and what a part or all of it has leaked."""

import threading
import time
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from typing import Final

import numpy as np

from tracelloc.errors import TracellocError
from tracelloc.model.blocks import Blocks, PartFigures
from tracelloc.model.events import EVENT_SIZE_MASK, PartMark
from tracelloc.model.figures import U64
from tracelloc.model.lostmemory import ExitLeaks
from tracelloc.record.heapwalk.arenas import NO_ENTRIES
from tracelloc.record.kernel.registers import ThreadRegisters
from tracelloc.record.reachability.lostblocks import find_leaks
from tracelloc.record.session.processes import Processes
from tracelloc.record.session.tracee import Tracee
from tracelloc.record.sources.eventsource import Sources
from tracelloc.record.tasks.supervision import reason_of

_MOST_DRAINS: Final = 50  # How often events are taken, if threads go on reporting some


class Parts:
    """Measures parts of a process's run (such as tests), one after the other."""

    def __init__(
        self,
        lock: threading.RLock,
        drain: Callable[[], object],
        sources: Sources,
        processes: Processes,
    ) -> None:
        """``lock`` guards the processes. ``drain`` applies events; its result is true if any."""
        self._lock, self._drain = lock, drain
        self._sources, self._processes = sources, processes
        self._begins_ns: dict[int, int] = {}  # When parts began, by their numbers
        self._number: int | None = None  # Of the part that goes on
        self._ended: dict[int, PartFigures] = {}  # By numbers of parts; not taken yet
        self._kept = Blocks.empty()  # Blocks of earlier parts that are still to be searched for
        self._searched_ns = 0  # When blocks were last searched for, or forgotten
        self._problem = ""  # Why events of a part are incomplete, since then
        processes.note_part = self._note

    def _note(self, mark: np.void) -> None:
        """Begins or ends a part; all events before its mark have been applied."""
        root, now_ns = self._processes.root, int(mark["time_ns"])
        kind, size = int(mark["address"]), int(mark["size_tag"]) & EVENT_SIZE_MASK
        if kind == PartMark.END:
            if self._number is not None:  # else its beginning was lost
                self._ended[self._number] = root.part(size - 1 if size else None)
            self._number = None
            return
        if kind == PartMark.KEEPS:
            self._kept = self._left()
        else:
            self._forget(now_ns)
        self._number = size
        self._begins_ns[size] = now_ns
        root.begin_part(now_ns)
        if len(self._kept):
            root.table.watch_addresses(watch=True)

    def _left(self) -> Blocks:
        root = self._processes.root
        last, table = root.part_blocks(), root.table
        new = last.select(last.birth_ns > self._searched_ns)
        return Blocks.concatenate([self._kept.select(~table.are_watched(self._kept.address)), new])

    def _forget(self, now_ns: int) -> None:
        self._kept, self._searched_ns, self._problem = Blocks.empty(), now_ns, ""

    def take_figures(self) -> tuple[dict[int, PartFigures], str]:
        """Returns the figures of parts that have ended since the last call, by their numbers.

        The second result is why events of some of them are missing; empty if none are.
        """
        with self._lock:
            self.drain_reported()
            problem = self._processes.root.forget_gaps()
            self._problem = self._problem or problem
            ended, self._ended = self._ended, {}
            return ended, problem

    def find_leaks(self, checked: Tracee, threads: Sequence[ThreadRegisters]) -> ExitLeaks | None:
        """Finds blocks that nothing points to. All threads must be stopped.

        In parts, these are blocks of the last part, and those kept: each is searched for once.
        Returns None if a thread was stopped while it reported an event: later events are unknown.
        """
        with self._lock:
            self.drain_reported()
            link = checked.probes.link
            if link is None or not link.source.is_quiet:
                return None
            blocks, problem = None, self._problem
            if self._begins_ns:
                blocks = self._left()
                self._forget(time.monotonic_ns())
        if problem:
            return ExitLeaks(problem=problem)
        begins_ns, numbers = np.array([*self._begins_ns.values()], np.uint64), [0, *self._begins_ns]
        found = leaks_at_exit(checked, self._lock, threads, blocks, begins_ns)
        stacks = tuple(replace(one, part=numbers[one.part]) for one in found.stacks)
        return replace(found, stacks=stacks)

    def store_stacks(self, wanted: Set[int]) -> None:
        """Stores the frames of these stacks, for snapshots. Most stacks of parts are not needed."""
        with self._lock:
            self._processes.feed.take_stacks(wanted)

    def drain_reported(self) -> None:
        for _ in range(_MOST_DRAINS):
            if not self._drain() or self._sources.are_quiet:
                break


def leaks_at_exit(
    checked: Tracee,
    lock: threading.RLock,
    threads: Sequence[ThreadRegisters],
    some: Blocks | None = None,
    begins_ns: U64 = NO_ENTRIES,
) -> ExitLeaks:
    """Finds leaks of an ending process, or why not. All its events must have been applied.

    ``some``: blocks to search for (None: all); ``threads``, ``begins_ns``: see ``find_leaks``.
    """
    with lock:
        problem = checked.why_incomplete()
        blocks = checked.heap.table.raw_blocks() if some is None else some
    if problem:
        return ExitLeaks(problem=problem)
    try:
        return find_leaks(checked.process, blocks, threads, checked.forked_ns, begins_ns)
    except (TracellocError, OSError, MemoryError) as error:
        return ExitLeaks(problem=reason_of(error))
