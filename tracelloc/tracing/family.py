"""Tracing of a process and its descendants: each has its own table.

A forked child begins with what its parent holds, as of the fork; a program that is
executed begins with nothing. Both stop until their probes are in place (``follower``),
so that nothing goes unseen. Where in the stream of events a fork was is marked by the
probes, right after the kernel has copied the memory: what other threads of the parent do
in the microseconds between the two counts for the child as well.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracelloc.abi import EVENT_KIND_MASK, EVENT_SIZE_BITS, EVENT_SIZE_MASK, EventKind, ForkMemory
from tracelloc.capture.attach import Attachment
from tracelloc.capture.bpf import CaptureConfig
from tracelloc.capture.drain import Batch, select_events
from tracelloc.capture.ring import Events
from tracelloc.errors import TracellocError
from tracelloc.heap.stacks import Stacks
from tracelloc.heap.table import LiveTable
from tracelloc.snapshots.snapshot import NOTHING_ELSE, Snapshot, Wanted
from tracelloc.target.procfs import Process
from tracelloc.target.space import MappedFiles
from tracelloc.tracing.session import Session
from tracelloc.tracing.tracee import Tracee

Heap = tuple[LiveTable, Stacks]

_MARKER_LOOKS: Final = 20
"""How often a fork's marker is looked for: other threads may not have finished theirs."""
_MARKER_WAIT_S: Final = 0.001


class FamilySession(Session):
    """A session that follows; also what a ``follower.Follower`` tells."""

    def __init__(self, process: Process, config: CaptureConfig, **named: Any) -> None:
        """As ``Session``, with a configuration that says ``follow``."""
        self._files = MappedFiles()
        super().__init__(process, config, files=self._files, **named)
        self._by_pid: dict[int, Tracee] = {}
        self._by_image: dict[int, Tracee] = {}
        self._sharing: dict[int, tuple[Tracee, Attachment]] = {}
        """Processes that have their parent's memory: the parent, and their own probes."""
        self._forks: dict[int, Heap | None] = {}
        """By thread: what the process holds that it has just made; None: the memory is the
        thread's own."""
        self._ended: list[Tracee] = []
        self._last_image = 0
        self._closer = ThreadPoolExecutor(1, thread_name_prefix="closer")
        self.end_fd = os.eventfd(0, os.EFD_CLOEXEC)
        """Readable when all processes have ended."""

    def start(self, *, waiting: bool = False) -> None:
        """As ``Session``."""
        super().start(waiting=waiting)
        assert self._capture is not None
        self._capture.set_stop_at_loads(True)

    def close(self) -> None:
        """As ``Session``."""
        self._closer.shutdown()
        super().close()
        for tracee in self._living:
            if tracee is not self.root:
                tracee.close()
        self._files.close()
        os.close(self.end_fd)

    def snapshots(
        self, top: int = 0, min_age_ns: int | None = None, wanted: Wanted = NOTHING_ELSE
    ) -> list[tuple[Tracee, Snapshot]]:
        """One per process, those that have ended included, in the order of their start."""
        with self._lock:
            if self._stopped_ns is None:
                self._drain()
            tracees = sorted(
                {id(t): t for t in (self.root, *self._ended, *self._living)}.values(),
                key=lambda tracee: tracee.started_ns,
            )
            taken = [(t, self._snapshot_of(t, top, min_age_ns, wanted)) for t in tracees]
        if not wanted.usable:
            return taken
        return [(tracee, tracee.measuring.measured(snapshot)) for tracee, snapshot in taken]

    # What the follower tells.

    def forked(self, pid: int, thread_id: int, child_pid: int, *, shares: bool) -> None:
        """A thread has made a process; ``shares``: with the same memory, if nothing else says."""
        with self._lock:
            parent = self._owner(pid)
            if parent is None:
                return
            heap = self._heap_at_fork(parent, thread_id, shares=shares)
            try:
                if heap is None:
                    self._share(parent, child_pid)
                else:
                    self._begin_child(parent, child_pid, heap)
            except TracellocError as error:
                self._note_trouble(child_pid, error)

    def executed(self, pid: int, *, same_thread: bool) -> None:
        """A process has begun another program."""
        with self._lock:
            self._drain()
            try:
                if pid in self._sharing:
                    self._end_sharing(pid)
                    tracee = Tracee(
                        Process(pid), self._config, self._selection, self._files, self._soon
                    )
                    self._begin_stranger(tracee)
                elif pid in self._by_pid:
                    self._begin_program(self._by_pid[pid], same_thread=same_thread)
            except TracellocError as error:
                if pid == self.root.process.pid:
                    self._attach_otherwise(error)
                else:
                    self._note_trouble(pid, error)

    def loaded(self, pid: int) -> None:
        """A process has other files mapped than before."""
        with self._lock:
            self._drain()
            tracee = self._owner(pid)
            if tracee is None:
                return
            try:
                tracee.load()
            except TracellocError as error:
                self._note_trouble(pid, error)

    def ended(self, pid: int, status: int) -> None:  # noqa: ARG002 - the status is others'
        """A process has ended."""
        with self._lock:
            self._drain()
            if pid in self._sharing:
                self._end_sharing(pid)
            elif pid in self._by_pid:
                self._end(self._by_pid.pop(pid))
            if not self._by_pid:
                os.eventfd_write(self.end_fd, 1)

    def failed(self, failure: BaseException) -> None:
        """What happens to the processes is not seen any more: ``snapshot`` raises."""
        self._failure = failure

    # With the lock held.

    @property
    def _living(self) -> Sequence[Tracee]:
        return list(self._by_pid.values())

    def _adopt(self, tracee: Tracee, like: Tracee | None = None) -> None:
        assert self._capture is not None
        assert self._feed is not None
        words = self._capture.new_space()
        words.begin(self._new_image())
        tracee.connect(self._capture, words, like)
        self._capture.assign(tracee.process.pid, words)
        self._by_pid[tracee.process.pid] = self._by_image[tracee.image] = tracee
        self._feed.add(tracee.image, tracee.source)

    def _note_trouble(self, pid: int, error: TracellocError) -> None:
        """What ends while it is being probed is no trouble."""
        if Process(pid).exists():
            self.say(f"warning: {error}")

    def _new_image(self) -> int:
        self._last_image += 1
        return self._last_image

    def _owner(self, pid: int) -> Tracee | None:
        """Whose memory a process has."""
        shared = self._sharing.get(pid)
        return shared[0] if shared is not None else self._by_pid.get(pid)

    def _heap_at_fork(self, parent: Tracee, thread_id: int, *, shares: bool) -> Heap | None:
        """What the child holds that a thread, which is stopped, has just made."""
        for _ in range(_MARKER_LOOKS):
            self._drain()
            if thread_id in self._forks:
                return self._forks.pop(thread_id)
            time.sleep(_MARKER_WAIT_S)
        # The ring was full: all that the thread itself has done has been applied by now.
        return None if shares else parent.copy_heap()

    def _begin_child(self, parent: Tracee, child_pid: int, heap: Heap) -> None:
        child = parent.fork(Process(child_pid), heap)
        self._adopt(child, parent)
        child.begin_history(self._clock_ns())
        child.attach_like(parent)
        child.source.refresh()

    def _begin_stranger(self, tracee: Tracee) -> None:
        """A process that has had none of its own memory so far."""
        tracee.is_starting = True
        tracee.method = self.method
        tracee.target = replace(tracee.target, exec_count=1)
        self._adopt(tracee)
        now_ns = self._clock_ns()
        tracee.begin_history(now_ns)
        tracee.table.cohorts.begin(now_ns)
        tracee.source.refresh()

    def _share(self, parent: Tracee, child_pid: int) -> None:
        assert self._capture is not None
        self._capture.assign(child_pid, parent.words)
        probes = Attachment(parent.method, child_pid, parent.points, self._capture.program)
        self._sharing[child_pid] = parent, probes

    def _end_sharing(self, pid: int) -> None:
        assert self._capture is not None
        _, probes = self._sharing.pop(pid)
        probes.close()
        self._capture.unassign(pid)

    def _begin_program(self, tracee: Tracee, *, same_thread: bool) -> None:
        assert self._feed is not None
        self._drop(tracee)
        image = self._new_image()
        tracee.words.begin(image)
        self._by_image[image] = tracee
        self._feed.add(image, tracee.source)
        # The program that we have started ourselves is no other one.
        execs = 0 if tracee.is_starting else tracee.target.exec_count + 1
        tracee.is_starting = True
        tracee.begin_image(image, execs, self._clock_ns(), same_thread=same_thread)

    def _drop(self, tracee: Tracee) -> None:
        assert self._feed is not None
        self._feed.drop(tracee.image)
        self._by_image.pop(tracee.image, None)

    def _end(self, tracee: Tracee) -> None:
        assert self._capture is not None
        self._drop(tracee)
        self._capture.unassign(tracee.process.pid)
        self._capture.forget_threads(tracee.process.pid, set())
        tracee.end()
        # That takes its time, and nobody needs to wait for it.
        self._closer.submit(tracee.detach)
        self._capture.free_space(tracee.words)
        self._ended.append(tracee)

    def _apply(self, batch: Batch) -> None:
        for stretch, marker in _stretches(batch.events):
            for image, tracee in self._known_in(stretch):
                tracee.table.apply(select_events(stretch, image), in_order=not batch.overflowed)
            if len(marker):
                self._note_fork(marker)
        for image, tracee in self._known_in(batch.pairs):
            tracee.table.apply_pairs(batch.pairs[batch.pairs["image"] == image])
        mappings = self._take_mappings()
        for image, tracee in self._known_in(mappings):
            tracee.ranges.apply(mappings[mappings["image"] == image])

    def _known_in(self, records: npt.NDArray[Any]) -> list[tuple[int, Tracee]]:
        """The images that records are about, with their processes, if these are traced."""
        images = np.unique(records["image"]).tolist()
        return [(image, self._by_image[image]) for image in images if image in self._by_image]

    def _note_fork(self, marker: Events) -> None:
        tracee = self._by_image.get(int(marker["image"][0]))
        if tracee is not None:
            shares = int(marker["size_tag"][0]) & EVENT_SIZE_MASK == ForkMemory.SHARES
            self._forks[int(marker["tid"][0])] = None if shares else tracee.copy_heap()


def _stretches(events: Events) -> Iterator[tuple[Events, Events]]:
    """Yields (events up to a fork, its marker); the last time without one."""
    kind = events["size_tag"] >> np.uint64(EVENT_SIZE_BITS) & np.uint64(EVENT_KIND_MASK)
    start = 0
    for at in np.flatnonzero(kind == np.uint64(EventKind.FORK)).tolist():
        yield events[start:at], events[at : at + 1]
        start = at + 1
    yield events[start:], events[:0]
