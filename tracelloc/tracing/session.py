"""Tracing: a thread that pumps events into the tables, snapshots for views.

The pump thread drains the rings, applies what it finds and does the housekeeping; it
never symbolizes. Views ask for snapshots from any thread. A lock keeps the two apart
for as long as it takes to copy the totals.
"""

from __future__ import annotations

import os
import platform
import select
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np

from tracelloc.abi import UNSEEN_FREE_COUNTERS
from tracelloc.capture.attach import Method
from tracelloc.capture.bpf import Capture, CaptureConfig
from tracelloc.capture.drain import Batch
from tracelloc.capture.overhead import Overhead, OverheadWatch, RateMeter
from tracelloc.capture.ring import RECORD_DTYPE, Events
from tracelloc.capture.system import UPROBE_MULTI_KERNEL, kernel_is_at_least
from tracelloc.capture.trials import Trial, passes
from tracelloc.errors import TracellocError, UnsupportedError
from tracelloc.heap.temporary import SOON, Soon
from tracelloc.snapshots.snapshot import NOTHING_ELSE, Snapshot, Wanted, take_snapshot
from tracelloc.target.allocators import EVERYTHING, Allocator, Module, Selection
from tracelloc.target.procfs import Process
from tracelloc.target.space import MappedFiles
from tracelloc.text import printable
from tracelloc.tracing.sweeper import Sweeper
from tracelloc.tracing.tracee import Tracee
from tracelloc.units import NS_PER_S
from tracelloc.unwinding.feed import StackFeed

_SHORTEST_WAIT_MS: Final = 5
_LONGEST_WAIT_MS: Final = 100
_FULL_SHARE: Final = 3
"""The reader hurries when it finds more than one part in this many of the ring filled."""
_IDLE_SHARE: Final = 6
"""And takes its time below one part in this many: large batches cost least."""
_SWEEP_NS: Final = 5 * NS_PER_S
"""How often records of threads that have ended are dropped."""


def _methods() -> list[Method]:
    """Ways of attaching that this kernel should have, best first."""
    if kernel_is_at_least(platform.release(), UPROBE_MULTI_KERNEL):
        return [Method.MULTI, Method.PERF]
    return [Method.PERF]


class Session:
    """Tracing, from ``start`` to ``stop``."""

    def __init__(
        self,
        process: Process,
        config: CaptureConfig,
        *,
        selection: Selection = EVERYTHING,
        method: Method | None = None,
        debug: bool = False,
        files: MappedFiles | None = None,
        soon: Soon = SOON,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        wall_clock_s: Callable[[], float] = time.time,
    ) -> None:
        """``method`` forces one way of attaching; else it is the best that the kernel has.

        ``soon``: which allocations are temporary.
        """
        self._config = config
        self._methods = _methods() if method is None else [method]
        self._debug = debug
        self._clock_ns = clock_ns
        self._wall_clock_s = wall_clock_s
        self._selection = selection
        self._soon = soon
        self.root = Tracee(process, config, selection, files, soon)
        """The process that was asked for."""
        self._capture: Capture | None = None
        self._lock = threading.RLock()
        self._feed: StackFeed | None = None
        self.say: Callable[[str], None] = lambda _message: None
        """Told, on whichever thread finds out, what happens to what is traced. Must not wait
        for a snapshot."""
        self._wake_fd = -1
        self._thread: threading.Thread | None = None
        self._stopped_ns: int | None = None
        self._moves = 0
        self._swept_ns = 0
        self._failure: BaseException | None = None
        self._rate = RateMeter()
        self._watch: OverheadWatch | None = None
        self._fullest_bytes = 0
        self._sweeper: Sweeper | None = None

    def start(self, *, waiting: bool = False) -> None:
        """Finds the allocator, attaches, goes live. Raises TracellocError, attaching nothing.

        ``waiting``: the process has not begun its program yet; nothing is attached until
        it does (``see_program``) and has its libraries (``see_libraries``).
        """
        self.root.is_starting = waiting
        found, modules = ([], []) if waiting else self.root.find()
        self._fit_to_kernel()
        self._capture = Capture(self._config, debug=self._debug)
        try:
            self._feed = StackFeed(self._capture)
            self._adopt(self.root)
            self._attach_first(found, modules)
            self._capture.watch(self.root.process.pid)
            if self.method is Method.MULTI and not self._config.follow:
                self._sweeper = Sweeper(self.root.process, self._capture.program)
            self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self.root.begin(self._clock_ns())
            self._capture.set_live(True)
        except BaseException:
            self.root.detach()
            self._capture.close()
            self._capture = None
            raise
        self._thread = threading.Thread(target=self._pump, name="pump", daemon=True)
        self._thread.start()
        if not waiting:
            self.begin_watch()

    def _fit_to_kernel(self) -> None:
        """Leaves out a way of attaching that sees too little on this kernel."""
        if len(self._methods) > 1 and not passes(Trial.THREADS):
            self._methods.remove(Method.MULTI)

    def _adopt(self, tracee: Tracee) -> None:
        """Takes in what the probes will report of a process. Raises TracellocError."""
        assert self._capture is not None
        assert self._feed is not None
        tracee.connect(self._capture, self._capture.new_space())
        self._feed.add(tracee.image, tracee.source)

    @property
    def _living(self) -> Sequence[Tracee]:
        """The processes that have not ended, as far as is known."""
        return (self.root,)

    def begin_watch(self) -> None:
        """Starts estimating what tracing costs, once it is known which probes there are."""
        assert self._capture is not None
        self._watch = OverheadWatch(
            self.root.process, self.method, self._capture.programs, self.root.points
        )

    def see_program(self) -> None:
        """The waiting process has begun its program, and is stopped."""
        assert self._capture is not None
        self._capture.set_stop_at_loads(True)
        with self._lock:
            self._drain()

    def see_libraries(self) -> None:
        """Its libraries are mapped; it is still stopped. Raises TargetError without allocator."""
        assert self._capture is not None
        self._capture.set_stop_at_loads(False)
        with self._lock:
            self._drain()
            self.root.load()

    def _attach_first(self, found: list[Allocator], modules: Iterable[Module]) -> None:
        """Attaches by the first method that works here, which is then the one."""
        assert self._capture is not None
        while True:
            method = self._methods[0]
            try:
                self._capture.load(method.attach_type)
                self.root.attach(method, found, modules)
            except UnsupportedError:
                if len(self._methods) == 1:
                    raise
                del self._methods[0]
            else:
                return

    @property
    def method(self) -> Method:
        """How probes are attached, once they are."""
        return self._methods[0]

    def snapshot(
        self, top: int = 0, min_age_ns: int | None = None, wanted: Wanted = NOTHING_ELSE
    ) -> Snapshot:
        """All that has happened until now, with the ``top`` largest blocks.

        Raises what the pump died of.
        """
        taken = self._snapshot_of(self.root, top, min_age_ns, wanted)
        return self.root.measuring.measured(taken) if wanted.usable else taken

    def _snapshot_of(
        self, tracee: Tracee, top: int, min_age_ns: int | None, wanted: Wanted
    ) -> Snapshot:
        if self._failure is not None:
            raise self._failure
        assert self._capture is not None
        rss_bytes = tracee.process.rss_bytes()
        thread_names = tracee.thread_names() if wanted.threads else None
        mapped = None
        if self._config.trace_mappings:
            with self._lock:
                mapped = tracee.mapped_ranges
        # Its pages are looked at while events go on.
        memory = None if tracee.residency is None else tracee.residency.look(mapped)
        with self._lock:
            if self._stopped_ns is None:
                self._drain()
            now_ns = self._stopped_ns or self._clock_ns()
            return take_snapshot(
                tracee.table,
                target=tracee.target,
                time_s=self._wall_clock_s(),
                now_ns=now_ns,
                started_ns=tracee.started_ns,
                history=tracee.history,
                overhead=Overhead(
                    self._rate.per_second(now_ns - tracee.started_ns, tracee.events),
                    self._watch.probe_share if self._watch is not None else None,
                    tracee.dear_probes,
                ),
                rss_bytes=rss_bytes,
                counters=self._capture.counters(),
                overflows=self._capture.drain.overflows,
                shared_counters=self._config.follow or tracee.target.exec_count > 0,
                top=top,
                min_age_ns=min_age_ns,
                series=tracee.series,
                wanted=wanted,
                allocators=tracee.found,
                memory=memory,
                findings=tracee.findings,
                mappings=tracee.mappings if self._config.trace_mappings else None,
                stack_methods=tracee.source.methods(),
                thread_names=thread_names,
            )

    def take_ring_share(self) -> float:
        """How full the ring of events was at most since this was last asked, 0 to 1."""
        fullest_bytes, self._fullest_bytes = self._fullest_bytes, 0
        return fullest_bytes / self._config.events_size_bytes

    def stop(self) -> None:
        """Takes the probes away, then applies what they had reported. May be called twice."""
        if self._capture is None or self._stopped_ns is not None:
            return
        self._capture.set_live(False)
        stopped_ns = self._clock_ns()
        if self._watch is not None:
            self._watch.cancel()
        if self._thread is not None:
            os.eventfd_write(self._wake_fd, 1)
            self._thread.join()
        for tracee in self._living:
            tracee.detach()
        with self._lock:
            if self._failure is None:
                while self._drain():
                    pass
                for tracee in self._living:
                    tracee.judge(stopped_ns)
            self._stopped_ns = stopped_ns
        os.close(self._wake_fd)

    def close(self) -> None:
        """Stops, and frees maps and files. No snapshot can be taken any more."""
        self.stop()
        if self._watch is not None:
            self._watch.join()
        if self._sweeper is not None:
            self._sweeper.close()
        self.root.close()
        if self._capture is not None:
            self._capture.close()

    def _pump(self) -> None:
        try:
            self._pump_until_stopped()
        except BaseException as failure:  # noqa: BLE001 - raised again by snapshot()
            self._failure = failure

    def _pump_until_stopped(self) -> None:
        assert self._capture is not None
        wait_ms = _SHORTEST_WAIT_MS
        with select.epoll() as poll:
            # Edge-triggered: the ring is readable whenever it holds anything at all.
            poll.register(self._capture.events_fd, select.EPOLLIN | select.EPOLLET)
            poll.register(self._wake_fd, select.EPOLLIN)
            if self._capture.misses_fd >= 0:
                poll.register(self._capture.misses_fd, select.EPOLLIN | select.EPOLLET)
            while True:
                ready = poll.poll(wait_ms / 1000)
                with self._lock:
                    drained_bytes = self._drain().ring_bytes
                    self._keep_house()
                if any(fd == self._wake_fd for fd, _ in ready):
                    return
                if drained_bytes * _FULL_SHARE > self._config.events_size_bytes:
                    wait_ms = max(_SHORTEST_WAIT_MS, wait_ms // 2)
                elif drained_bytes * _IDLE_SHARE < self._config.events_size_bytes:
                    wait_ms = min(_LONGEST_WAIT_MS, wait_ms + 1 + wait_ms // 4)

    def _drain(self) -> Batch:
        """Applies what the probes have reported. Returns it."""
        assert self._capture is not None
        self._capture.begin_reading()
        assert self._feed is not None
        batch = self._capture.drain.take()
        # Only now: whatever stack these events name was sent before them.
        self._feed.take(self._clock_ns())
        if batch:
            counters = self._capture.counters()
            if any(counters[counter] for counter in UNSEEN_FREE_COUNTERS):
                for tracee in self._living:
                    tracee.table.trusting = False
        self._apply(batch)
        self._fullest_bytes = max(self._fullest_bytes, batch.ring_bytes)
        return batch

    def _apply(self, batch: Batch) -> None:
        image = self.root.words.image
        if image != self.root.image:
            self._begin_image(image)
        if batch:
            events, pairs = batch.of(image)
            self.root.table.apply(events, in_order=not batch.overflowed)
            self.root.table.apply_pairs(pairs)
        mappings = self._take_mappings()
        self.root.ranges.apply(mappings[mappings["image"] == image])

    def _take_mappings(self) -> Events:
        """What the probes have reported of mappings; nothing if they are not traced."""
        assert self._capture is not None
        if self._capture.mappings is None:
            return np.empty(0, RECORD_DTYPE)
        return self._capture.mappings.take()

    def _begin_image(self, image: int) -> None:
        """The process has begun another program."""
        assert self._feed is not None
        self._feed.drop(self.root.image)
        root = self.root
        moves = root.words.moves
        same_thread, self._moves = moves == self._moves, moves
        # The program that we have started ourselves is no other one.
        execs = 0 if root.is_starting else root.target.exec_count + image - root.image
        try:
            root.begin_image(image, execs, self._clock_ns(), same_thread=same_thread)
        except TracellocError as error:
            self._attach_otherwise(error)
        self._feed.add(root.image, root.source)
        self._feed.take(self._clock_ns())
        if execs:
            pid, command = root.process.pid, printable(root.target.command)
            self.say(f"process {pid} has begun another program, {command}: its table is empty")

    def _attach_otherwise(self, error: TracellocError) -> None:
        """The first process could not be probed: if it is just beginning, perhaps another way."""
        if not self.root.is_starting or len(self._methods) == 1:
            self.say(f"warning: {error}")
            return
        self.root.detach()
        del self._methods[0]
        self._attach_first(*self.root.look())

    def _keep_house(self) -> None:
        now_ns = self._clock_ns()
        for tracee in self._living:
            tracee.keep_house(now_ns)
        self._rate.note(now_ns, self.root.events)
        if now_ns - self._swept_ns > _SWEEP_NS:
            self._swept_ns = now_ns
            for tracee in self._living:
                tracee.drop_ended_threads()
            if self._sweeper is not None:
                self._sweeper.look(self.root.points)
