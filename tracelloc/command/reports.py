"""The front-end for logs, pipes and people who watch: reports on time, or lines of progress."""

import math
import sys
import time
from pathlib import Path
from typing import Final

from tracelloc.command.commandline import Mode
from tracelloc.command.outputs import Messages, open_report
from tracelloc.command.run import HURRY_PATIENCE_S, Run
from tracelloc.errors import OutputError
from tracelloc.show.presentation.naming import REPORT_PATIENCE_S
from tracelloc.show.presentation.processfacts import losses_line
from tracelloc.show.presentation.symboladvice import hints_of
from tracelloc.show.report.content import EarlierReports, ReportStyle
from tracelloc.show.report.sections import progress_line, trace_report
from tracelloc.snapshots.snapshot import TraceSnapshot

_LEAST_PATIENCE_S: Final = 0.25
_TERMINAL_INTERVAL_S: Final = 1.0
# Time between reports that go to a file or a pipe, if the user does not say.
LOG_INTERVAL_S: Final = 60.0
# Time between looks at rules, and until the first report, if the user does not say.
_LOOK_S: Final = 1.0


def first_wait_s(interval_s: float, gone_s: float) -> float:
    """Returns the seconds until the first report, ``gone_s`` after the command began.

    People wait since then; but at least a quarter of the interval is traced.
    """
    return max(interval_s - gone_s, interval_s / 4)


class Reports:
    """A front-end for logs, pipes and people who watch."""

    def __init__(
        self, path: Path | None, *, has_stdout: bool, began_s: float, is_every_full: bool = False
    ) -> None:
        """``path``: the reports' file; None: standard output or error. Raises TracellocError."""
        self._began_s = began_s
        self._earlier = EarlierReports(is_every_full=is_every_full)
        self.messages = Messages()
        self._count = 0
        self._is_open = True
        self._name = "standard output" if has_stdout else "standard error"
        self._stream = sys.stdout.buffer if has_stdout else sys.stderr.buffer
        if path is not None:
            self._name, self._stream = str(path), open_report(path)

    def show(self, run: Run) -> None:
        options, signals = run.options, run.signals
        start = time.monotonic()
        end = math.inf if options.duration_s is None else start + options.duration_s
        interval_s, look_s = self._interval_s(run), self._look_s(run)
        next_report = next_look = start + first_wait_s(look_s, start - self._began_s)
        ahead = (start + next_report) / 2
        while not signals.is_ending and (now := time.monotonic()) < end:
            if now >= ahead:
                self._look_up_ahead(run)
                ahead = math.inf
            if now >= next_look:
                if self._tick(run, is_report=now >= next_report):
                    return
                if now >= next_report:
                    next_report = _next_s(next_report, interval_s)
                look = _next_s(next_look, look_s) if run.watch.has_rules else math.inf
                next_look = min(look, next_report)
            elif run.wait(min(ahead, next_look, end)):
                return

    def _interval_s(self, run: Run) -> float:
        if run.options.interval_s is not None:
            return run.options.interval_s
        stream = self._stream if run.options.mode.reports else sys.stderr
        return _TERMINAL_INTERVAL_S if stream.isatty() else LOG_INTERVAL_S

    def _look_s(self, run: Run) -> float:
        return _LOOK_S if run.options.interval_s is None else run.options.interval_s

    def _look_up_ahead(self, run: Run) -> None:
        """Requests the names that the first report will need, so that it is not late."""
        if run.options.mode.reports:
            run.look_up_top(run.snapshots.take_snapshot(0.0), 0.0)

    def _tick(self, run: Run, *, is_report: bool = True) -> bool:
        """Writes one report, or only checks rules. Returns whether tracing ends."""
        patience_s = min(max(_LEAST_PATIENCE_S, self._look_s(run) / 2), REPORT_PATIENCE_S)
        run.namers.patience_s = HURRY_PATIENCE_S if self._is_last(run) else patience_s
        trace = run.snapshot()
        run.say_what_is_traced()
        if not is_report:
            return run.check_rules(trace)
        if run.options.mode.reports:
            self._report(run, trace, is_last=False)
        else:
            lost = f"{trace.root.losses.events:,} lost"
            self.messages.show_progress(f"{progress_line(trace)}, {lost}")
        return run.check_rules(trace) or self._is_done(run)

    def _is_last(self, run: Run) -> bool:
        return run.options.count == self._count + 1

    def _is_done(self, run: Run) -> bool:
        count = run.options.count
        return not self._is_open or (count is not None and self._count >= count)

    def finish(self, run: Run, trace: TraceSnapshot) -> None:
        if not run.options.mode.reports:
            self.messages.say(f"{progress_line(trace)}; {losses_line(trace.root)}")
        elif not self._is_done(run):
            self._report(run, trace, is_last=True)

    def _report(self, run: Run, trace: TraceSnapshot, *, is_last: bool) -> None:
        options = run.options
        style = ReportStyle(
            options.top, options.min_age_ns, options.show, has_many=options.trace.follow,
            hints_of=hints_of,
        )  # fmt: skip
        self._earlier.begin(is_last=is_last or self._is_last(run))
        text = trace_report(
            trace, run.namers, style, run.marks, ended=is_last, earlier=self._earlier,
            as_json=options.mode is Mode.JSON,
        )  # fmt: skip
        try:
            self._stream.write(text.encode(errors="backslashreplace"))
            self._stream.flush()
        except (OSError, OutputError) as error:
            self._is_open = False
            run.note_trouble(
                OutputError(self._name, error) if isinstance(error, OSError) else error
            )
        else:
            self._count += 1


def _next_s(due_s: float, interval_s: float) -> float:
    """Returns when the next report is due; missed ones are skipped."""
    missed = (time.monotonic() - due_s) // interval_s
    return due_s + interval_s * (1 + max(0.0, missed))
