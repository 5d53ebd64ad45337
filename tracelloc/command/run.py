"""One run of the command: a start, an end, and front-ends that get the same snapshots.

A front-end shows the trace until something ends it: reports on time (text or JSON, or
progress where there are none), or the screen. Beside it there are files, watch rules, the
endpoint and the push.
"""

from __future__ import annotations

import gc
import math
import select
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from tracelloc.command.commandline import Mode
from tracelloc.command.customallocators import load_custom_allocators
from tracelloc.command.lifecycle import Signals, Start
from tracelloc.command.options import Options
from tracelloc.command.outputs import Messages, open_report, write_files
from tracelloc.command.sharedsnapshots import SharedSnapshots
from tracelloc.errors import TracellocError
from tracelloc.filters import load_filters
from tracelloc.invoker import invoker
from tracelloc.report.content import ReportStyle
from tracelloc.report.trace import progress_line, trace_json, trace_text
from tracelloc.snapshots.snapshot import Snapshot, TraceSnapshot
from tracelloc.startup import STARTUP
from tracelloc.symbols import SourceMap
from tracelloc.target.found import found_lines, managed_heap
from tracelloc.text import printable, progress_of
from tracelloc.tracing.memorybudget import MemoryBudget
from tracelloc.tracing.session import Session
from tracelloc.unwinding.source import NO_INFORMATION
from tracelloc.views.naming import REPORT_PATIENCE_S, Namers, Symbolizers
from tracelloc.views.processfacts import losses_line
from tracelloc.watching import Watch
from tracelloc.watchrules import FAILED_STATUS

LAST_PATIENCE_S: Final = 30.0
"""How long the last report and files wait for names: what they don't know, no later ones will."""
HURRY_PATIENCE_S: Final = 4.0
"""How long they wait for them while somebody waits for us to end."""
_LEAST_PATIENCE_S: Final = 0.25


class FrontEnd(Protocol):
    """Shows a trace."""

    @property
    def messages(self) -> Messages:
        """Where goes what is said meanwhile."""

    def show(self, run: Run) -> None:
        """Returns when tracing is to end. Raises TracellocError."""

    def finish(self, run: Run, trace: TraceSnapshot) -> None:
        """Shows the last snapshot, once the probes are gone."""


class Run:
    """A trace that goes on, for front-ends. Used by one thread at a time."""

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
        self.options = options
        self.session = session
        self.signals = signals
        self.messages = messages
        self.namers = namers
        self.watch = watch
        self.snapshots = SharedSnapshots(session, options.wanted, namers.copy(), watch.suppressions)
        self.marks: dict[int, Snapshot] = {}
        """Processes when the mark was set, by their numbers."""
        self.troubles: list[TracellocError] = []
        """What could not be written."""
        self.warnings: Sequence[str] = ()
        """About files of filters and the like."""
        self._is_finishing = False
        self._allocators_said = 0

    def snapshot(self) -> TraceSnapshot:
        """The trace as it is now."""
        return self.snapshots.take(self.namers.patience_s)

    def answer_signals(self) -> None:
        """Does what signals have asked for."""
        if self.signals.wants_mark:
            self.signals.wants_mark = False
            self.mark(self.snapshot())
        if self.signals.wants_files:
            self.signals.wants_files = False
            self.namers.patience_s = HURRY_PATIENCE_S
            self.write_files(self.snapshot())

    def mark(self, trace: TraceSnapshot) -> None:
        """Reports, and files that are to, say from here on what has come since."""
        self.marks = {one.target.number: one for one in trace.processes}
        self.messages.say("mark set: reports show what has changed since")

    def write_files(self, trace: TraceSnapshot) -> None:
        """Writes what can be written; what can't be is said, or raised by ``finish``.

        Waits for names as long as the namers have patience.
        """
        # Millions of objects stay until they are written: no use in looking for garbage again and
        # again.
        gc.disable()
        try:
            write_files(
                self.options.outputs,
                trace,
                self.namers,
                messages=self.messages,
                fail=self.note_trouble,
                marks=self.marks if self.options.since_mark else None,
            )
        finally:
            gc.enable()

    def note_trouble(self, error: TracellocError) -> None:
        """Something can't be written, which must not keep the rest from being written."""
        self.troubles.append(error)
        if not self._is_finishing:
            self.messages.say(f"error: {error}")

    def end_early(self, why: str) -> None:
        """Ends tracing, as ^C does, with an error. From any thread."""
        self.messages.say_aside(f"error: {why}")
        self.troubles.append(TracellocError(why))
        self.signals.end()

    def look(self, trace: TraceSnapshot) -> bool:
        """Does what is watched for. Whether a rule is broken, by now or before."""
        for one in trace.processes:
            self.watch.look(one, self.namers.of(one.target))
        return self.watch.broken is not None

    def say_what_is_traced(self) -> None:
        """The allocators of the first process that this has not been said of yet."""
        found = self.session.root.probes.found
        new, self._allocators_said = found[self._allocators_said :], len(found)
        for line in found_lines(new):
            self.messages.say(line)

    def say_beginning(self, warnings: Sequence[str]) -> None:
        """Who is traced, how, and what may be missing."""
        self.warnings = warnings
        for warning in warnings:
            self.messages.say(f"warning: {warning}")
        root = self.session.root
        self.messages.say(f"tracing {root.target.pid} ({printable(root.target.command)})…")
        self.say_what_is_traced()
        managed = managed_heap(module.path for module in root.space.modules)
        if managed is not None:
            self.messages.say(f"warning: {managed}")
        for path, method in root.source.methods().items():
            if self.options.trace.capture.use_rows and method.startswith(NO_INFORMATION):
                self.messages.say(f"stacks through {printable(path)}: {method}")

    def finish(self, front: FrontEnd) -> None:
        """The last report and the files, once the probes are gone. Raises TracellocError."""
        has_ended = bool(select.select([self.session.end_fd], [], [], 0)[0])
        self.namers.patience_s = LAST_PATIENCE_S if has_ended else HURRY_PATIENCE_S
        self._is_finishing = True
        self.messages.end_progress()
        with progress_of("looking up names"):
            trace = self.snapshot()
            for one in trace.processes:
                namer = self.namers.of(one.target)
                top = [stat.index for stat in one.top_stacks(self.options.top)]
                namer.prepare(one, top, namer.patience_s)
        front.finish(self, trace)
        self.write_files(trace)
        self.look(trace)
        self.watch.close()
        if self.watch.broken is not None:
            self.messages.say(f"--fail-if: rule matched: {self.watch.broken}")
        if self.troubles:
            raise self.troubles[-1]


def trace(options: Options, start: Start, front: FrontEnd) -> int:
    """Traces from a start to its end. Returns the exit status. Raises TracellocError."""
    try:
        status = _trace(options, start, front)
    except BaseException:
        start.finish()
        raise
    ended = start.finish()
    return status or ended


def _trace(options: Options, start: Start, front: FrontEnd) -> int:
    """Returns the exit status if it is for us to say, else 0."""
    say = front.messages.say_aside
    signals = Signals(start.take_signal, say if options.trace.follow else None)
    with ExitStack() as stack:
        filters, warnings = load_filters(
            options.filters_paths, options.filter_groups, standing=options.use_filters
        )
        custom, more = load_custom_allocators(options.allocators_paths, invoker())
        watch = stack.enter_context(closing(Watch(options.watch, say)))
        sharing = None
        if options.listen is not None or options.push is not None:
            from tracelloc.live.publishing import Sharing  # noqa: PLC0415 - slow to import, rarely used

            sharing = stack.enter_context(closing(Sharing(options.listen, options.push, say)))
        budget = MemoryBudget(options.max_memory)
        budget.enforce()
        selection = replace(options.trace.selection, custom=custom)
        config = replace(options.trace, selection=selection, memory=budget)
        with signals.beginning():
            session = stack.enter_context(closing(start.begin(config, say)))
        STARTUP.end()
        sources = SourceMap(options.sources)
        symbolizers = stack.enter_context(
            closing(Symbolizers(lambda number: session.processes.of(number).space, sources))
        )
        namers = Namers(symbolizers, filters, short_names=options.short_names)
        run = Run(
            options, session, signals=signals, messages=front.messages, namers=namers, watch=watch
        )
        budget.when_full(run.end_early)
        run.say_beginning([*warnings, *more])
        try:
            if sharing is not None:
                sharing.start(session.root.target, run.snapshots.recent, namers.copy())
            front.show(run)
        finally:
            with progress_of("detaching"):
                start.stop_following()
                session.stop()
            run.snapshots.expire()
            if sharing is not None:
                sharing.close()
        run.finish(front)
    return FAILED_STATUS if watch.broken is not None else 0


def first_wait_s(interval_s: float, gone_s: float) -> float:
    """How long the first report is waited for, ``gone_s`` after the command began.

    Its interval is counted from there, as people wait since then; half of it at least is traced.
    """
    return max(interval_s - gone_s, interval_s / 2)


class Reports:
    """A front-end for logs, pipes and people who watch."""

    def __init__(self, path: Path | None, *, has_stdout: bool, began_s: float) -> None:
        """Reports go to a file, if one is given, else to standard output if that is free.

        ``began_s``: when the command began, by ``time.monotonic``. Raises UsageError if the
        file can't be written.
        """
        self._began_s = began_s
        self.messages = Messages()
        self._count = 0
        self._is_open = True
        self._name = "standard output" if has_stdout else "standard error"
        self._stream = sys.stdout.buffer if has_stdout else sys.stderr.buffer
        if path is not None:
            self._name, self._stream = str(path), open_report(path)

    def show(self, run: Run) -> None:
        """Reports until tracing is to end."""
        options, signals = run.options, run.signals
        start = time.monotonic()
        end = math.inf if options.duration_s is None else start + options.duration_s
        next_report = start + first_wait_s(options.interval_s, start - self._began_s)
        ahead = (start + next_report) / 2
        while not signals.is_ending:
            now = time.monotonic()
            if now >= end:
                return
            if now >= ahead:
                self._look_up_ahead(run)
                ahead = math.inf
            if now >= next_report:
                if self._tick(run):
                    return
                # Reports that took too long are left out, not made up for.
                missed = (time.monotonic() - next_report) // options.interval_s
                next_report += options.interval_s * (1 + max(0.0, missed))
                continue
            until = min(ahead, next_report, end)
            ends, signalled = run.session.end_fd, signals.fileno()
            ready, _, _ = select.select([ends, signalled], [], [], max(0.0, until - now))
            if signalled in ready:
                signals.clear()
            run.answer_signals()
            if ends in ready:
                self.messages.say(f"process {run.session.root.target.pid} has ended")
                return

    def _look_up_ahead(self, run: Run) -> None:
        """Has names looked up that the first report will need, so that it is not late."""
        if run.options.mode.reports:
            for one in run.snapshots.take(0.0).processes:
                indices = [stat.index for stat in one.top_stacks(run.options.top)]
                run.namers.of(one.target).prepare(one, indices, 0.0)

    def _tick(self, run: Run) -> bool:
        """One report, in time: names that are not known by then say so. Whether tracing ends."""
        patience_s = max(_LEAST_PATIENCE_S, run.options.interval_s / 2)
        run.namers.patience_s = (
            HURRY_PATIENCE_S if self._is_last(run) else min(patience_s, REPORT_PATIENCE_S)
        )
        trace = run.snapshot()
        run.say_what_is_traced()
        if run.options.mode.reports:
            self._report(run, trace, is_last=False)
        else:
            lost = trace.root.losses.events
            self.messages.show_progress(f"{progress_line(trace)}, {lost:,} lost")
        return run.look(trace) or self._is_done(run)

    def _is_last(self, run: Run) -> bool:
        return run.options.count == self._count + 1

    def _is_done(self, run: Run) -> bool:
        count = run.options.count
        return not self._is_open or (count is not None and self._count >= count)

    def finish(self, run: Run, trace: TraceSnapshot) -> None:
        """The last report, with all processes that there were."""
        if run.options.mode.reports:
            if not self._is_done(run):
                self._report(run, trace, is_last=True)
        else:
            self.messages.say(f"{progress_line(trace)}; {losses_line(trace.root)}")

    def _report(self, run: Run, trace: TraceSnapshot, *, is_last: bool) -> None:
        options = run.options
        style = ReportStyle(options.top, options.min_age_ns, options.show, options.trace.follow)
        report = trace_json if options.mode is Mode.JSON else trace_text
        text = report(trace, run.namers, style, run.marks, ended=is_last)
        try:
            self._stream.write(text.encode(errors="backslashreplace"))
            self._stream.flush()
        except BrokenPipeError:
            self._is_open = False
        except OSError as error:
            self._is_open = False
            run.note_trouble(TracellocError(f"{self._name} cannot be written: {error.strerror}"))
        else:
            self._count += 1
