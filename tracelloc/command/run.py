"""One run of the command: a start, an end, and front-ends that get the same snapshots.

A front-end shows the trace until something ends it: reports on time (text or JSON, or
progress where there are none), or the screen. Beside it there are files, watch rules, the
endpoint and the push.
"""

from __future__ import annotations

import gc
import select
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Final, Protocol

from tracelloc.command.commandline import Options
from tracelloc.command.customallocators import choose, load_custom_allocators
from tracelloc.command.failures import report_failure
from tracelloc.command.lifecycle import Signals, Start
from tracelloc.command.outputs import Messages, write_files
from tracelloc.errors import TracellocError
from tracelloc.model.snapshotrequest import SnapshotRequest
from tracelloc.record.session.session import Session
from tracelloc.record.symbolization.debuginfod import DEBUG_SERVERS
from tracelloc.record.symbolization.symbolizer import SourceMap, Symbolizers
from tracelloc.record.tasks.memorybudget import MemoryBudget
from tracelloc.record.unwinding.stacksource import NO_INFORMATION
from tracelloc.record.worker.client import close_workers, prepare_workers
from tracelloc.show.alerts.rules import FAILED_STATUS
from tracelloc.show.alerts.suppressions import Suppressions
from tracelloc.show.alerts.watching import Watch
from tracelloc.show.filters.files import load_filters
from tracelloc.show.presentation.facts import found_lines
from tracelloc.show.presentation.naming import Namers
from tracelloc.show.presentation.suspects import parting_lines
from tracelloc.snapshots.snapshot import Snapshot, TraceSnapshot
from tracelloc.startup import STARTUP
from tracelloc.system.invoker import effective_user, invoker
from tracelloc.system.memorylimits import limit_own_memory
from tracelloc.text import printable, progress_of

_FRESH_S: Final = 0.5  # Largest age of a snapshot that is reused for requests from the network


class SharedSnapshots:
    """Takes snapshots for all front ends. Thread safe: one at a time, other threads wait."""

    def __init__(
        self, session: Session, wanted: SnapshotRequest, namers: Namers, suppressions: Suppressions
    ) -> None:
        """``wanted``: the default content of snapshots. Nobody else uses ``namers``."""
        self._session, self._wanted = session, wanted
        self._namers, self._suppressions = namers, suppressions
        self._lock = threading.Lock()
        self._recent: tuple[float, TraceSnapshot] | None = None

    def take_snapshot(
        self, patience_s: float, wanted: SnapshotRequest | None = None
    ) -> TraceSnapshot:
        """Takes a snapshot without suppressed suspects. Raises the error that ended the trace.

        ``patience_s``: for names that suppressions need. ``wanted``: the snapshot's content.
        """
        with self._lock:
            return self._take(patience_s, wanted)

    def recent(self) -> TraceSnapshot:
        """Returns the last snapshot of this method if it is recent, else a new one."""
        with self._lock:
            now_s = time.monotonic()
            if self._recent is None or now_s - self._recent[0] >= _FRESH_S:
                self._recent = now_s, self._take(0.0, None)
            return self._recent[1]

    def expire(self) -> None:
        """Drops the snapshot that ``recent`` would return, after tracing has stopped."""
        with self._lock:
            self._recent = None

    def _take(self, patience_s: float, wanted: SnapshotRequest | None) -> TraceSnapshot:
        trace = self._session.snapshot(self._wanted if wanted is None else wanted)
        self._namers.patience_s = patience_s
        namers = map(self._namers.namer_of, [one.target for one in trace.processes])
        pairs = zip(trace.processes, namers, strict=True)
        kept = (self._suppressions.apply(one, namer, namer.patience_s) for one, namer in pairs)
        return replace(trace, processes=tuple(kept))


# How long the last report and files wait for names: what they don't know, no later ones will.
LAST_PATIENCE_S: Final = 30.0
HURRY_PATIENCE_S: Final = 4.0  # How long they wait for them while somebody waits for us to end
# New objects, and rounds of younger ones, before each of gc's generations is looked at.
_GARBAGE_THRESHOLDS: Final = 2000, 10, 10
_MOST_SUSPECTS: Final = 3  # Suspects of each process that are named at the end


def say_suspects(run: Run, trace: TraceSnapshot, messages: Messages) -> list[str]:
    """Writes the strongest suspects of all processes; returns these lines."""
    lines = []
    for one in trace.processes:
        whose = f"process {one.target.pid}: " if len(trace.processes) > 1 else ""
        namer = run.namers.namer_of(one.target)
        lines += [whose + line for line in parting_lines(one, namer, _MOST_SUSPECTS)]
    for line in lines:
        messages.say(line)
    return lines


class FrontEnd(Protocol):
    """A way to show a trace: reports, the screen, a recording, a check for leaks."""

    @property
    def messages(self) -> Messages:
        """Returns the messages to use while the front-end shows the trace."""

    def show(self, run: Run) -> None:
        """Shows the trace until tracing is to end. Raises TracellocError."""

    def finish(self, run: Run, trace: TraceSnapshot) -> None:
        """Shows the last snapshot, after the probes were detached."""


class Run:
    """A running trace, as front-ends use it. For one thread at a time."""

    def __init__(
        self,
        options: Options,
        session: Session,
        *,
        signals: Signals,
        messages: Messages,
        namers: Namers,
        watch: Watch,
    ) -> None:
        """``namers`` are for the thread that uses the run."""
        self.options, self.session, self.signals = options, session, signals
        self.messages, self.namers, self.watch = messages, namers, watch
        self.snapshots = SharedSnapshots(session, options.wanted, namers.copy(), watch.suppressions)
        self.marks: dict[int, Snapshot] = {}  # Processes when the mark was set, by their numbers
        self.troubles: list[Exception] = []  # Errors of writing, and errors that ended tracing
        self._is_unsaid = False  # Whether the last of them is still to be reported
        self.warnings: Sequence[str] = ()  # About files of filters and the like
        # What to do on which signal, in this order; front-ends may have their own answers.
        self.answers: dict[int, Callable[[], None]] = {
            signal.SIGUSR2: self._set_mark,
            signal.SIGUSR1: self._write_now,
        }
        self.status = 0  # The exit status that the front-end decides; 0: it leaves that to others
        self._is_finishing = False
        self._allocators_said = 0

    def snapshot(self) -> TraceSnapshot:
        return self.snapshots.take_snapshot(self.namers.patience_s)

    def answer_signals(self) -> None:
        if self.signals.has_refused_stop:
            self.signals.has_refused_stop = False
            self.messages.say_above_progress("can't be suspended while processes are followed")
        for number, answer in self.answers.items():
            if number in self.signals.wishes:
                self.signals.wishes.remove(number)
                answer()

    def _write_now(self) -> None:
        self.namers.patience_s = HURRY_PATIENCE_S
        self.write_files(self.snapshot())

    def _set_mark(self) -> None:
        self.mark(self.snapshot())

    def wait(self, until_s: float) -> bool:
        """Waits until ``until_s`` of ``time.monotonic()``, for signals, or the process's end.

        Returns whether the first process has ended, after a message.
        """
        ends, signalled = self.session.end_fd, self.signals.fileno()
        left_s = max(0.0, until_s - time.monotonic())
        ready, _, _ = select.select([ends, signalled], [], [], left_s)
        if signalled in ready:
            self.signals.clear()
        self.answer_signals()
        if ends in ready:
            self.messages.say(f"process {self.session.root.target.pid} has ended")
        return ends in ready

    def mark(self, trace: TraceSnapshot) -> None:
        """Sets the mark: from now on reports, and files if requested, show changes since then."""
        self.marks = {one.target.number: one for one in trace.processes}
        self.messages.say("mark set: reports show what has changed since")

    def write_files(self, trace: TraceSnapshot) -> None:
        """Writes all requested files; errors are reported, or raised by ``finish``."""
        gc.disable()  # Millions of objects stay until they are written
        marks = self.marks if self.options.since_mark else None
        try:
            outputs, say, fail = self.options.outputs, self.messages, self.note_trouble
            write_files(outputs, trace, self.namers, messages=say, fail=fail, marks=marks)
        finally:
            gc.enable()

    def note_trouble(self, error: Exception) -> None:
        """Notes a write error, so that the other outputs are still written."""
        # The last one is raised.
        self._add_trouble(error, is_said=not self._is_finishing)
        if not (self._is_finishing or getattr(error, "is_reported", False)):
            self.messages.say(f"error: {error}")
            if isinstance(error, TracellocError):
                error.is_reported = True

    def fail(self, failure: Exception) -> None:
        """Ends tracing, as ^C does, with an error that is reported at the end. From any thread."""
        self._add_trouble(failure)
        self.signals.end()

    def _add_trouble(self, error: Exception, *, is_said: bool = False) -> None:
        if self._is_unsaid:
            self.messages.say_above_progress(f"error: {self.troubles[-1]}")
        self.troubles.append(error)
        self._is_unsaid = not (is_said or getattr(error, "is_reported", False))

    def end_early(self, why: str) -> None:
        """Ends tracing, as ^C does, with an error. From any thread."""
        self.messages.say_above_progress(f"error: {why}")
        error = TracellocError(why)
        error.is_reported = True
        self.fail(error)

    def check_rules(self, trace: TraceSnapshot) -> bool:
        """Checks rules and leaks. Returns whether a rule is, or was, broken."""
        for one in trace.processes:
            self.watch.check(one, self.namers.namer_of(one.target))
        return self.watch.broken is not None

    def say_what_is_traced(self) -> None:
        """Reports the first process's allocators that were not reported yet."""
        found = self.session.root.probes.found
        new, self._allocators_said = found[self._allocators_said :], len(found)
        for line in found_lines(new):
            self.messages.say(line)

    def say_beginning(self, warnings: Sequence[str]) -> None:
        """Reports the target, how it is traced, and what may be missing."""
        self.warnings = warnings
        for warning in warnings:
            self.messages.say(f"warning: {warning}")
        root = self.session.root
        self.messages.say(f"tracing {root.target.pid} ({printable(root.target.command)})…")
        self.say_what_is_traced()
        # What runs in parts is started so that all is seen; reports are the program's choice.
        has_all = self.options.trace.in_parts or self.options.source != "auto"
        for runtime in () if has_all else root.runtimes():
            self.messages.say(
                f"warning: {runtime.heap}: only memory from malloc is seen; {runtime.advice}"
            )
        for path, method in root.source.methods().items():
            if self.options.trace.capture.use_rows and method.startswith(NO_INFORMATION):
                self.messages.say(f"stacks through {printable(path)}: {method}")

    def finish(self, front: FrontEnd) -> None:
        """Writes the last report and the files, after the end of tracing. Raises TracellocError."""
        has_ended = bool(select.select([self.session.end_fd], [], [], 0)[0])
        self.namers.patience_s = LAST_PATIENCE_S if has_ended else HURRY_PATIENCE_S
        self._is_finishing = True
        self.messages.end_progress()
        with progress_of("looking up names"):
            trace = self.snapshot()
            # Asked side by side, all have their names before the first one's lines are read.
            self._attempt(lambda: self.look_up_top(trace, 0.0))
            self._attempt(lambda: self.look_up_top(trace, self.namers.patience_s))
        # Each of them is done, whatever becomes of the others.
        self._attempt(lambda: front.finish(self, trace))
        self._attempt(lambda: self._tell_missing_names(trace))
        self._attempt(lambda: self.write_files(trace))
        self._attempt(lambda: self.check_rules(trace))
        self.watch.close()
        if self.watch.broken is not None:
            self.messages.say(f"--fail-if: rule matched: {self.watch.broken}")
        if self.troubles:
            raise self.troubles[-1]

    def look_up_top(self, trace: TraceSnapshot, patience_s: float) -> None:
        """Requests the names that a report needs, and waits for those of each process."""
        for one in trace.processes if self.options.top else ():
            top = [stat.index for stat in one.top_stacks(self.options.top)]
            self.namers.namer_of(one.target).prepare(one, top, patience_s)

    def _tell_missing_names(self, trace: TraceSnapshot) -> None:
        named = trace.processes if self.options.mode.reports else ()
        if count := sum(self.namers.namer_of(one.target).symbols.waiting for one in named):
            what = f"names or lines of {count:,} addresses"
            self.messages.say(f"the last report lacks {what}: no time was left to look them up")

    def _attempt(self, step: Callable[[], object]) -> None:
        """Runs one of the last steps; ``finish`` raises its error when all steps are done."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 - see above
            self.note_trouble(error)


def trace(options: Options, start: Start, front: FrontEnd, *wishes: int) -> int:
    """Traces to the end. Returns the exit status, a started program's. Raises TracellocError.

    ``wishes``: signals that only the front-end answers.
    """
    try:
        status = _trace(options, start, front, wishes)
    except BaseException as error:
        ended = start.finish()
        if ended is None:
            raise
        report_failure(error, debug=options.trace.debug)
        return ended
    ended = start.finish()
    return status if status == FAILED_STATUS else ended or status


def _trace(options: Options, start: Start, front: FrontEnd, wishes: Sequence[int]) -> int:
    """Returns the exit status if tracelloc decides it, else 0."""
    say = front.messages.say_above_progress
    signals = Signals(
        start.ends_on_signal, wishes, stops=not options.trace.follow, starts=bool(options.command)
    )
    with ExitStack() as stack:
        chosen = options.filters_paths, options.filter_groups
        filters, warnings = load_filters(*chosen, standing=options.use_filters)
        custom, more = load_custom_allocators(tuple(options.allocators_paths), invoker())
        who = effective_user() if options.as_root else invoker()
        watched = options.fail_if, options.on_leak, options.suppressions
        watch = stack.enter_context(closing(Watch(*watched, say, who)))
        sharing = None
        if options.listen is not None or options.pushes_to is not None:
            from tracelloc.show.publish.publishing import Sharing  # noqa: PLC0415 - slow to import, rarely used

            sharing = stack.enter_context(closing(Sharing(options.listen, options.pushes_to, say)))
        budget = MemoryBudget(options.max_memory)
        limit_own_memory(budget.limit_bytes)
        prepare_workers(budget.worker_bytes, say)
        DEBUG_SERVERS.tell = say
        stack.callback(close_workers)
        selection = choose(options.trace.selection, custom, options.source)
        config = replace(options.trace, memory=budget).choosing(selection)
        with signals.beginning():
            session = stack.enter_context(closing(start.begin(config, say)))
        if not STARTUP.has_frame:
            STARTUP.end()
        # What there is by now stays to the end, and little garbage is older than a moment: the
        # screen waits while all objects are looked at.
        gc.freeze()
        gc.set_threshold(*_GARBAGE_THRESHOLDS)
        gc.enable()
        sources = SourceMap(tuple(options.sources))
        symbolizers = stack.enter_context(
            closing(Symbolizers(lambda number: session.processes.tracee_of(number).space, sources))
        )
        namers = Namers(symbolizers, filters)
        run = Run(
            options, session, signals=signals, messages=front.messages, namers=namers, watch=watch
        )
        budget.when_full(run.end_early)
        session.when_failed(run.fail)
        run.say_beginning([*warnings, *more])
        try:
            if sharing is not None:
                sharing.start(session.root.target, run.snapshots.recent, namers.copy())
            front.show(run)
        except Exception as error:  # noqa: BLE001 - raised when all is written
            run.fail(error)
        finally:
            with progress_of("detaching"):
                start.stop_following()
                session.stop()
            run.snapshots.expire()
            if sharing is not None:
                sharing.close()
        run.finish(front)
    return FAILED_STATUS if watch.broken is not None else run.status
