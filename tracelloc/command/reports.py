"""Reports on time: text or JSON, or progress where there are none."""

from __future__ import annotations

import select
import sys
import time
from pathlib import Path

from tracelloc.command.messages import Messages
from tracelloc.command.options import Mode
from tracelloc.command.outputs import open_report
from tracelloc.command.run import Run
from tracelloc.errors import TracellocError
from tracelloc.report.trace import ReportStyle, progress_line, trace_json, trace_text
from tracelloc.snapshots.snapshot import TraceSnapshot
from tracelloc.views.process import losses_line


class Reports:
    """A front-end for logs, pipes and people who watch."""

    def __init__(self, path: Path | None, *, has_stdout: bool) -> None:
        """Reports go to a file, if one is given, else to standard output if that is free.

        Raises UsageError if the file can't be written.
        """
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
        end = start + options.duration_s if options.duration_s is not None else None
        next_report = start + options.interval_s
        while not signals.is_ending:
            now = time.monotonic()
            if end is not None and now >= end:
                return
            if now >= next_report:
                if self._tick(run):
                    return
                # Reports that took too long are left out, not made up for.
                missed = (time.monotonic() - next_report) // options.interval_s
                next_report += options.interval_s * (1 + max(0.0, missed))
                continue
            until = next_report if end is None else min(next_report, end)
            ends, signalled = run.session.end_fd, signals.fileno()
            ready, _, _ = select.select([ends, signalled], [], [], max(0.0, until - now))
            if signalled in ready:
                signals.clear()
            run.answer_signals()
            if ends in ready:
                self.messages.say(f"process {run.session.root.target.pid} has ended")
                return

    def _tick(self, run: Run) -> bool:
        """One report. Whether tracing is to end."""
        trace = run.snapshot()
        run.say_what_is_traced()
        if run.options.mode.reports:
            self._report(run, trace, is_last=False)
        else:
            lost = trace.root.losses.events
            self.messages.show_progress(f"{progress_line(trace)}, {lost} lost")
        return run.look(trace) or self._is_done(run)

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
            trouble = TracellocError(f"{self._name} cannot be written: {error.strerror}")
            run.note_trouble(trouble)
        else:
            self._count += 1
