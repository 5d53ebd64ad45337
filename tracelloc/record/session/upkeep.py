"""Periodic tasks of a trace beside applying events: samples, verdicts, probes, sweeps."""

import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from tracelloc.errors import TracellocError
from tracelloc.record.facets.schedule import FACETS, Schedule
from tracelloc.record.kernel.attach import Attachment
from tracelloc.record.kernel.captureconfig import Method
from tracelloc.record.kernel.overhead import IDLE_PROGRAM, OverheadAccount, OverheadWatch
from tracelloc.record.probe_points.placement import ProbePoint
from tracelloc.record.process.procfs import Process
from tracelloc.record.session.config import TraceContext
from tracelloc.record.session.processes import Processes
from tracelloc.record.session.tracee import Tracee
from tracelloc.record.tasks.memorybudget import MemoryStage
from tracelloc.text import NS_PER_S, format_percent


class Sweeper:
    """Removes breakpoints from children that are not followed, in the background.

    A forked child has a copy of its parent's code, including the probes' breakpoints, which report
    nothing, but trap: 1 to 2 microseconds per pair of malloc and free, for as long as the child
    lives. When a probe is removed, the kernel also removes its breakpoint from every address space
    without such a probe (``register_for_each_vma()`` in kernel/events/uprobes.c). So tracelloc
    briefly attaches idle probes at the same places in its own process. Perf events do not need
    this: the kernel removes a child's breakpoints when the first is hit.
    """

    def __init__(self, process: Process, program: Callable[[str], int]) -> None:
        """``program`` returns the descriptor of a BPF program by name, loaded for links."""
        self._process = process
        self._program = program
        self._swept: set[int] = set()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="sweeper")
        self._sweeping: Future[None] | None = None

    def sweep_new_children(self, points: Iterable[ProbePoint]) -> None:
        """Removes breakpoints if there are children that did not exist at the last call."""
        if self._sweeping is not None and not self._sweeping.done():
            return
        children = self._process.child_ids()
        if children - self._swept:
            self._sweeping = self._pool.submit(self._sweep, list(points))
        self._swept = children

    def _sweep(self, points: list[ProbePoint]) -> None:
        idle = {replace(point, program=IDLE_PROGRAM, cookie=0, returns=False) for point in points}
        # A breakpoint that stays costs time and nothing else.
        with suppress(TracellocError, OSError):
            Attachment(Method.MULTI, os.getpid(), list(idle), self._program).close()

    def close(self) -> None:
        """Waits until no BPF program is in use."""
        self._pool.shutdown()


JUDGING: Final = "judging"
_WEIGH_NS: Final = NS_PER_S // 10  # How often our own memory is looked at, in five files of /proc
_SWEEP_NS: Final = 5 * NS_PER_S  # How often records of threads that have ended are dropped
_LAST_S: Final = 1.0  # How long the end of a trace waits for inspections
_SLOW_NS: Final = NS_PER_S // 2  # CPU time of an inspection above which there is none at the end
# Time limit for judging the stacks of all processes; events and forks wait for it.
_JUDGE_NS: Final = 5_000_000


class Upkeep:
    """Runs a trace's periodic tasks. The session's lock guards all but ``close``."""

    def __init__(self, context: TraceContext, processes: Processes) -> None:
        self._config, self._supervisor = context.config, context.supervisor
        self._probes, self._processes = context.sources.probes, processes
        self._swept_ns = self._weighed_ns = 0
        self._overhead: OverheadWatch | None = None
        limit = context.config.max_overhead
        self._account = None if limit is None else OverheadAccount(limit)
        self._sweeper: Sweeper | None = None
        self._is_over = False
        self._facets = context.facets
        self._schedules = [Schedule(kind, context.facets, context.lock) for kind in FACETS]

    def begin(self) -> None:
        """Begins tasks that need the first probes: overhead estimates, sweeping children."""
        root = self._processes.root
        if self._is_over or not (root.probes.points and self._probes.programs):
            # A program may end before its libraries are mapped, or be traced without probes.
            return
        self._overhead = OverheadWatch(
            lambda: [tracee.process for tracee in self._processes.living],
            self._probes.method,
            lambda: self._probes.programs,
            lambda: [list(tracee.probes.points) for tracee in self._processes.living],
            self._account,
        )
        if self._probes.method.has_links and not self._config.follow:
            self._sweeper = Sweeper(root.process, self._probes.program)

    @property
    def probe_share(self) -> float | None:
        """The share of the processes' time that the probes take; None if unknown yet."""
        return None if self._overhead is None else self._overhead.probe_share

    def take_excess(self) -> TracellocError | None:
        """Returns, once, the error that the probes have cost more than the limit."""
        if self._account is None or not self._account.is_exceeded:
            return None
        account, self._account = self._account, None
        return TracellocError(
            f"the probes cost more than --max-overhead {format_percent(account.limit)}",
            hint="tracing has ended; --preload inject costs less, --sample a little less",
        )

    def run_due(self, now_ns: int) -> None:
        """Runs due tasks. Raises UnsupportedError if the overhead limit can't be kept."""
        living, run = self._processes.living, self._supervisor.run
        if self._overhead is not None:
            self._overhead.check()
        if now_ns - self._weighed_ns >= _WEIGH_NS:
            self._weighed_ns = now_ns
            run("watching our own memory", 0, self._watch_memory)
        for tracee in living:
            pid = tracee.process.pid
            run("care of probes", pid, partial(tracee.check_for_changes, self._supervisor.say))
            run("taking samples", pid, partial(tracee.take_samples, now_ns))
        until_ns = time.thread_time_ns() + _JUDGE_NS
        for tracee in sorted(living, key=lambda tracee: tracee.judging.judged_ns):
            run(JUDGING, tracee.process.pid, partial(tracee.judging.go_on, now_ns, until_ns))
        for schedule in self._schedules:
            facets = [tracee.facets[schedule.kind.name] for tracee in living]
            run(schedule.kind.task, 0, partial(schedule.run_due, facets, now_ns))
        if now_ns - self._swept_ns <= _SWEEP_NS:
            return
        self._swept_ns = now_ns
        for tracee in living:
            run("forgetting ended threads", tracee.process.pid, tracee.drop_ended_threads)
        if (sweeper := self._sweeper) is not None:
            points = self._processes.root.probes.points
            run("removing breakpoints from children", 0, lambda: sweeper.sweep_new_children(points))

    def _watch_memory(self) -> None:
        budget = self._config.memory
        if budget is None or budget.stage is MemoryStage.FULL:
            return
        if (words := budget.take_stage_message()) is not None:
            self._supervisor.say(words)
        if budget.stage is not MemoryStage.WHOLE:
            for tracee in self._processes.living:
                tracee.heap.stacks.fold()

    def inspect_at_ends(self, tracee: Tracee) -> None:
        """Inspects the facets wanted when tracing begins or ends. Call this without the lock."""
        for schedule in self._schedules:
            facet = tracee.facets[schedule.kind.name]
            is_slow = self._is_over and facet.took_ns > _SLOW_NS
            if schedule.kind.at_ends and not is_slow:
                work, task = partial(schedule.inspect_now, facet), schedule.kind.task
                self._supervisor.run(task, tracee.process.pid, work, gives_up=self._is_over)

    def inspect_last(self) -> None:
        """Inspects all processes at the trace's end, as far as that takes little time."""
        until_s = time.monotonic() + _LAST_S

        def work() -> None:
            for tracee in self._processes.living:
                if time.monotonic() < until_s:
                    self.inspect_at_ends(tracee)

        # Reading memory may wait for what another program does.
        thread = threading.Thread(target=work, name="last accounts", daemon=True)
        thread.start()
        thread.join(_LAST_S)

    def stop(self) -> None:
        self._is_over = True
        for schedule in self._schedules:
            schedule.is_over = True
        if self._overhead is not None:
            self._overhead.cancel()

    def close(self) -> None:
        """Waits until no BPF program is in use, and no memory is being read."""
        for schedule in self._schedules:
            schedule.close()
        self._facets.close()
        if self._overhead is not None:
            self._overhead.join()
        if self._sweeper is not None:
            self._sweeper.close()
