"""A trace: its sources of events, its processes, and snapshots of them all.

The pump thread drains the rings, applies events and does the upkeep; it never symbolizes. The
follower's thread, if there is one, reports when processes fork, execute, load libraries and end.
Any thread may take a snapshot.

Locks: ``_lock`` guards the processes and their heaps. It is held while a batch is applied or the
totals are copied. ``_outside_lock`` lets one thread at a time read /proc and the target's memory
for snapshots, with ``_lock`` free; it is taken first. An ``AddressSpace`` is changed under
``_lock`` only. Symbolizers, row makers and reporters read it without the lock; they see the state
before or after a change, since its tables are replaced, never altered.
"""

import os
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from tracelloc.errors import TargetError, TracellocError
from tracelloc.model.events import NO_EVENTS, NO_PAIRS, EventBatch
from tracelloc.model.lostmemory import ExitLeaks
from tracelloc.model.snapshotrequest import TOTALS_ONLY, SnapshotRequest
from tracelloc.record.abi import ForkFlag
from tracelloc.record.facets.facet import LARGE_HEAP_BYTES, FacetContext
from tracelloc.record.kernel.captureconfig import Method
from tracelloc.record.kernel.overhead import require_measuring
from tracelloc.record.kernel.registers import ThreadRegisters
from tracelloc.record.mallocs.discovery import Module
from tracelloc.record.process.identity import open_end
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.sanitizers import UNFOLLOWED, has_leak_sanitizer
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.session.config import TraceConfig, TraceContext
from tracelloc.record.session.earlierblocks import FirstHeaps
from tracelloc.record.session.eventcosts import FollowCosts
from tracelloc.record.session.pace import Pace
from tracelloc.record.session.parts import Parts, leaks_at_exit
from tracelloc.record.session.probeset import find_allocators
from tracelloc.record.session.processes import Processes
from tracelloc.record.session.processfacts import ProcessFacts
from tracelloc.record.session.tracee import Tracee
from tracelloc.record.session.upkeep import JUDGING, Upkeep
from tracelloc.record.sources.eventsource import Sources
from tracelloc.record.tasks.supervision import Say, Supervisor, reason_of, say_nothing
from tracelloc.snapshots.snapshot import CaptureStatus, Snapshot, TraceSnapshot
from tracelloc.snapshots.taking import take_snapshot
from tracelloc.startup import STARTUP

T = TypeVar("T")

_SNAPSHOT: Final = "taking a snapshot"
# Retries of reading records that must be there: earlier records may be unfinished.
_MOST_LOOKS: Final = 20
# How often a process is stopped for a search, if a thread is just reporting an event.
_SEARCHES: Final = 50
_HEAP_S: Final = 3.0  # How long the first report waits for the heap, unless it is large
_LOOK_AGAIN_S: Final = 0.001
_NO_BATCH: Final = EventBatch(NO_EVENTS, NO_PAIRS, 0, False)


class Session:
    """A trace: its processes, event sources and threads; a ``follower.Watcher``."""

    def __init__(
        self,
        sources: Sources,
        config: TraceConfig,
        space: AddressSpace,
        say: Say = say_nothing,
        *,
        waiting: bool = False,
    ) -> None:
        """Takes over the sources. ``space``: address space of the process to begin with.

        ``waiting``: that process has not executed its program yet. ``say`` gets messages about
        the processes, on any thread; it must not wait for a snapshot.
        """
        self._sources, self._probes = sources, sources.probes
        self._config = config
        self._lock = threading.RLock()
        self._outside_lock = threading.Lock()
        self.supervisor = supervisor = Supervisor(say, debug=config.debug)
        self._failure: TracellocError | None = None
        self._when_failed: Callable[[TracellocError], None] | None = None
        self._stopped_ns: int | None = None
        self._fullest_share = 0.0
        # The blocks that processes had leaked when they ended by themselves, by their numbers
        self._leaks: dict[int, ExitLeaks] = {}
        # Calls a function while all threads of a process are stopped (``Follower.hold``)
        self.hold: Callable[[int, Callable[[Sequence[ThreadRegisters]], None]], None]
        self._ended: list[int] = []  # PIDs of ended processes that the pump has not released yet
        self._is_launching = waiting  # True while the launcher handles errors of the first process
        self._say = say
        self._load = FollowCosts(say_nothing if config.checks_exit else say)
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Readable once all processes have ended
        self.end_fd = open_end(space.process.pid, follow=config.follow)
        facets = FacetContext(
            supervisor, config.memory, reads_memory=config.reads_memory, reads_registers=True,
            debug=config.debug,
        )  # fmt: skip
        context = TraceContext(sources, config, supervisor, facets, self._lock)
        self.processes = Processes(context, space, waiting=waiting)
        self.parts = Parts(self._lock, self._drain, sources, self.processes)
        self._pump_thread = threading.Thread(target=self._pump, name="pump", daemon=True)
        self._upkeep = Upkeep(context, self.processes)
        self._first_heaps = FirstHeaps(context, self._drain_all, self._upkeep.inspect_at_ends)

    @property
    def root(self) -> Tracee:
        return self.processes.root

    @property
    def method(self) -> Method:
        """How probes are attached; valid after attaching."""
        return self._probes.method

    @property
    def how(self) -> str:
        """How events are captured (attach method, preloaded library), in words."""
        return self.method.title if self._probes.has_probes else "the preloaded library"

    def start(self, modules: Sequence[Module] = ()) -> None:
        """Attaches to the first process's mapped files and goes live. Raises TracellocError."""
        if self._config.max_overhead is not None:
            require_measuring()
        self._probes.watch(self.root.process.pid)
        self.stop_at_loads(stop=self._config.follow or self.root.is_starting)
        if modules:
            self.root.begin(modules, time.monotonic_ns())
        self._sources.set_live(True)
        self._pump_thread.start()
        if modules:
            self.begin_upkeep()
            if self._config.reads_memory:
                STARTUP.note(f"reading the heap of process {self.root.process.pid}")
                reading = self._first_heaps.begin(self.root)
                if (self.root.process.rss_bytes() or 0) < LARGE_HEAP_BYTES:
                    reading.join(_HEAP_S)

    def add_running(self, process: Process) -> None:
        """Traces one more process, which runs already. Raises TracellocError.

        Call this on one thread at a time. A process that can't be traced is left out and counted.
        """
        space = AddressSpace(process, self.processes.files)
        try:
            modules = find_allocators(space, self._config.selection)
            with self._lock:
                tracee = self.processes.add_running(space)
            if tracee is None:
                return
            # Events come as soon as it is probed, and the stacks of the first ones need the rows.
            tracee.source.refresh()
            tracee.source.await_rows()
            with self._lock:
                self.processes.begin_running(tracee, modules)
        except TracellocError as error:
            with self._lock:
                self.processes.give_up(process.pid, error)
            return
        if self._config.reads_memory:
            self._first_heaps.begin(tracee)

    def knows(self, pid: int) -> bool:
        with self._lock:
            return self.processes.knows(pid)

    def stop_at_loads(self, *, stop: bool) -> None:
        """Sets whether followed processes stop when new code is mapped, before it runs."""
        self._probes.set_stop_at_loads(stop)

    def begin_upkeep(self) -> None:
        """Begins periodic tasks; the first probes must be in place."""
        with self._lock:
            self._is_launching = False
            self._upkeep.begin()

    # Snapshots.

    def snapshot(self, wanted: SnapshotRequest = TOTALS_ONLY) -> TraceSnapshot:
        """Takes a snapshot of all processes, now or as of the time when tracing failed."""
        with self._outside_lock:
            with self._lock:
                self._release_ended()
                looks = [(tracee, tracee.mapped_ranges()) for tracee in self.processes.every]
            outside = {
                tracee: self._of_one(tracee, partial(tracee.read_facts, wanted, mapped))
                for tracee, mapped in looks
            }
            with self._lock:
                tracees, trace = self._take(wanted, outside)
            if not wanted.usable:
                return trace
            pairs = zip(tracees, trace.processes, strict=True)
            return replace(trace, processes=tuple(t.outside.measured(one) for t, one in pairs))

    def _of_one(self, tracee: Tracee, work: Callable[[], T]) -> T | None:
        """Returns a part of a snapshot. If that fails, other processes' figures are still shown."""
        if len(self.processes.every) == 1:
            return work()
        return self.supervisor.run(_SNAPSHOT, tracee.process.pid, work, gives_up=False)

    def _take(
        self, wanted: SnapshotRequest, outside: dict[Tracee, ProcessFacts | None]
    ) -> tuple[list[Tracee], TraceSnapshot]:
        if self._stopped_ns is None:
            self._drain()
        now_ns = self._stopped_ns or time.monotonic_ns()
        status = CaptureStatus(
            time.time(), now_ns, self._sources.counters(), self._probes.overflows,
            self._config.follow or self.root.target.exec_count > 0, self.supervisor.failures,
        )  # fmt: skip
        share = self._upkeep.probe_share

        def taken(tracee: Tracee) -> Snapshot:
            if (last := tracee.last_snapshots.get(wanted)) is not None:
                return replace(last, time_s=status.time_s)
            process = tracee.status(now_ns, outside.get(tracee) or ProcessFacts(), share)
            last = take_snapshot(tracee.heap, process, status, wanted)
            if tracee.target.has_ended:
                tracee.last_snapshots[wanted] = last
            return last

        every = [(one, self._of_one(one, partial(taken, one))) for one in self.processes.every]
        found = {tracee: one for tracee, one in every if one is not None}
        if not found:
            raise TargetError("no snapshot of any process could be taken")
        counts = self._load.counts if self._config.follow else None
        processes = tuple(found.values())
        return list(found), TraceSnapshot(processes, self.processes.untraced_count, counts)

    def take_ring_share(self) -> float:
        """Returns how full the event ring was at most since the last call, 0 to 1."""
        fullest, self._fullest_share = self._fullest_share, 0.0
        return fullest

    # The end.

    def stop(self) -> None:
        """Detaches all probes, then applies remaining events. May be called twice."""
        if self._stopped_ns is not None:
            return
        self.supervisor.run("stopping", 0, partial(self._sources.set_live, False))
        stopped_ns = time.monotonic_ns()
        with self._lock:
            self._upkeep.stop()
        if self._pump_thread.ident is not None:
            os.eventfd_write(self._wake_fd, 1)
            self._pump_thread.join()
        with self._lock:
            self._release_ended()
        self.processes.detach()
        if self._config.reads_memory:
            self._upkeep.inspect_last()
        with self._lock:
            while self._drain():
                pass
            for one in self.processes.living:
                one.look_last()
                judge = partial(one.judging.judge_all, stopped_ns)
                self.supervisor.run(JUDGING, one.process.pid, judge)
            self._stopped_ns = stopped_ns
            self._first_heaps.stop()

    def close(self) -> None:
        """Stops tracing, and frees maps and files. No snapshot can be taken afterwards."""
        self.stop()
        self._upkeep.close()
        self.processes.close()
        self._sources.close()
        os.close(self._wake_fd)
        os.close(self.end_fd)

    # Events from the follower; see ``follower.Watcher``.

    def forked(self, pid: int, thread_id: int, child_pid: int, *, shares: bool) -> None:
        with self._stopping(forks=1):
            if child_pid in self._ended:
                self._release_ended()
            said = self._probes.take_fork(thread_id)
            shares = shares if said is None else ForkFlag.SHARES in said
            marked_by = None if said is None or ForkFlag.MARKED not in said else thread_id
            if not shares and (marked_by is None or self._config.capture.trace_mappings):
                # Mappings have no such mark, so no event may come in between.
                self._drain_all()
            self.processes.forked(pid, child_pid, shares=shares, marked_by=marked_by)

    def executed(self, pid: int, *, same_thread: bool) -> None:
        """Handles an exec of a process. Raises TracellocError while launching."""
        with self._stopping(execs=1):
            if any(tracee.process.pid == pid for tracee in self.processes.living):
                # Its pending events belong to the old memory image.
                self._drain_all()
            self.processes.executed(pid, same_thread=same_thread)

    def trapped(self, thread_id: int) -> bool | None:
        """Handles a thread's stop at a breakpoint. Returns as ``ProbeSource.take_trap``."""
        with self._lock:
            return self._probes.take_trap(thread_id)

    def exiting(self, pid: int, threads: Sequence[ThreadRegisters]) -> None:
        """Handles the end of a stopped process: searches for leaks, if wanted."""
        with self._lock:
            living = self.processes.living if self._config.checks_exit else ()
            checked = next((each for each in living if each.process.pid == pid), None)
            if checked is None:
                return
            if checked.probes.link is not None:
                checked.probes.link.source.set_live(False)
            self.parts.drain_reported()
        self._leaks[checked.target.number] = leaks_at_exit(checked, self._lock, threads)

    def leaks_at_end(self, number: int) -> ExitLeaks:
        """Returns what a process had leaked when it ended, or why it was not checked then."""
        checked = self.processes.tracee_of(number)
        has_ended = checked.target.has_ended or not self._config.follow
        why = "SIGKILL ended it" if has_ended else "it still ran when the check ended"
        return self._leaks.get(number) or ExitLeaks(problem=checked.problem or why)

    def find_leaks(self, number: int) -> ExitLeaks:
        """Stops a process briefly, and searches for leaked blocks. Raises TargetError.

        Requires ``TraceConfig.in_parts`` or ``checks_exit``.
        """
        checked = self.processes.tracee_of(number)
        found, search = list[ExitLeaks | None](), self.parts.find_leaks
        for _ in range(_SEARCHES):
            self.hold(checked.process.pid, lambda threads: found.append(search(checked, threads)))
            if (leaks := found.pop()) is not None:
                return leaks
        raise TargetError("its threads could not be stopped between two events")

    def loaded(self, pid: int) -> bool:
        """Handles changed mappings. Returns whether to follow on. Raises as ``executed``.

        Waits for unwind entries, for a limited time, without the lock.
        """
        tracee = None
        with self._stopping():
            tracee = self.processes.loaded(pid)
        start_ns = time.monotonic_ns()
        if tracee is not None:
            tracee.source.await_rows()
        with self._lock:
            self._note_stop(start_ns)
        if tracee is None or not has_leak_sanitizer(tracee.space):
            return True
        if self._config.checks_exit:
            tracee.problem = "it has LeakSanitizer, which fails under ptrace"
        elif self._config.follow:
            self._say(f"warning: {UNFOLLOWED.format(pid=pid)}: its children are not traced")
        return False

    @contextmanager
    def _stopping(self, **counts: int) -> Iterator[None]:
        """Holds the lock while a process is stopped. Warns of errors, or raises them at launch."""
        start_ns = time.monotonic_ns()
        with self._lock:
            if self._is_launching and self._failure is not None:
                raise self._failure
            if self.processes.is_full:
                self._release_ended()
            try:
                yield
            except TracellocError as error:
                if self._is_launching:
                    raise
                self._say(f"warning: {error}")
            self._note_stop(start_ns, **counts)

    def _note_stop(self, start_ns: int, **counts: int) -> None:
        if self._config.follow:  # others stop only in the beginning
            self._load.add_stop(start_ns, time.monotonic_ns(), **counts)

    def ended(self, pid: int, status: int) -> None:  # noqa: ARG002 - the status is others'
        if not self._config.follow:
            # ``end_fd`` shows it too; the follower stays only until the program is probed.
            return
        with self._lock:
            self._ended.append(pid)
            # Where many processes are created, many end at once: the pump handles them together.
            if len(self._ended) >= self.processes.count_left:
                self._release_ended()

    def _release_ended(self) -> None:
        if not self._ended:
            return
        self._drain_all()
        ended, self._ended = self._ended, []
        for pid in ended:
            self.processes.ended(pid)
        if not self.processes.count_left:
            os.eventfd_write(self.end_fd, 1)

    def failed(self, failure: BaseException) -> None:
        """Ends tracing after a failure: snapshots show only events that were applied before."""
        if self._failure is not None:
            return
        self._failure = error = TracellocError(f"tracing failed: {reason_of(failure)}")
        error.__cause__ = failure
        self.supervisor.count("tracing")
        for tracee in self.processes.living:
            tracee.gaps.end(str(error))
        if self._when_failed is not None:
            self._when_failed(error)

    def when_failed(self, tell: Callable[[TracellocError], None]) -> None:
        """Calls ``tell`` with the reason when tracing fails, or at once if it has failed."""
        self._when_failed = tell
        if self._failure is not None:
            tell(self._failure)

    # The pump.

    def _pump(self) -> None:
        try:
            self._pump_until_stopped()
        except BaseException as failure:  # noqa: BLE001 - reported by who traces
            self.failed(failure)

    def _pump_until_stopped(self) -> None:
        pace = Pace(self._sources)
        with select.epoll() as poll:
            poll.register(self._wake_fd, select.EPOLLIN)
            for descriptor in self._probes.wakeup_fds:
                # Edge-triggered: a ring is readable whenever it is not empty.
                poll.register(descriptor, select.EPOLLIN | select.EPOLLET)
            while True:
                ready = pace.wait(poll)
                with self._lock:
                    looked_s = time.monotonic()
                    whole = pace.is_whole or not self._sources.are_urgent
                    pace.record_reading(looked_s, self._drain(whole=whole).ring_share)
                    self._release_ended()
                    if self._failure is None and pace.is_upkeep_due():
                        self._upkeep.run_due(time.monotonic_ns())
                        if self._when_failed is not None and (excess := self._upkeep.take_excess()):
                            self._when_failed(excess)
                if self._failure is not None or any(fd == self._wake_fd for fd, _ in ready):
                    return

    def _drain_all(self) -> None:
        has_all = self._probes.until_now()
        self._drain()
        looks = 1
        while not has_all() and looks < _MOST_LOOKS:
            time.sleep(_LOOK_AGAIN_S)
            self._drain()
            looks += 1

    def _drain(self, *, whole: bool = True) -> EventBatch:
        """Applies pending events and returns them; only urgent sources' ones, unless ``whole``."""
        if self._failure is None:
            try:
                return self._drain_now(whole=whole)
            except Exception as failure:  # noqa: BLE001 - reported by who traces
                self.failed(failure)
        return _NO_BATCH

    def _drain_now(self, *, whole: bool) -> EventBatch:
        batch, has_stacks = self._sources.take_events(only_urgent=not whole)
        rest = self._probes.take_mappings() if whole else NO_EVENTS
        # Only now: the stacks that these events refer to were sent before them.
        if has_stacks:
            self.processes.feed.take_stacks(set() if self._config.in_parts else None)
        self.processes.apply(batch, rest)
        self._fullest_share = max(self._fullest_share, batch.ring_share)
        return batch
