"""``run --leaks``: a front-end that waits for the end of a program and reports what it leaked."""

import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from tracelloc.architecture import machine_name
from tracelloc.command.commandline import Options
from tracelloc.command.lifecycle import start_of
from tracelloc.command.options import completed
from tracelloc.command.outputs import Messages
from tracelloc.command.run import Run, trace
from tracelloc.model.blocks import BlockSum
from tracelloc.model.lostmemory import ExitLeaks
from tracelloc.record.kernel.capabilities import check_machine
from tracelloc.show.alerts.rules import FAILED_STATUS
from tracelloc.show.alerts.suppressions import is_matched, read_patterns
from tracelloc.show.export import checks
from tracelloc.show.export.outputfile import check_output, filled_in, write_output
from tracelloc.show.report.pointers import LeakReport, NamedLeak, joined_leaks, leak_report_lines
from tracelloc.snapshots.snapshot import TraceSnapshot
from tracelloc.text import printable

_WAIT_S: Final = 3600.0
_IMPORTANT: Final = "warning", "error"
_UNCHECKED_STATUS: Final = 1


class FewMessages(Messages):
    """Messages of a check whose output is mixed with the program's: warnings and errors."""

    def say(self, message: str) -> None:
        """Writes a message if it is a warning or an error."""
        if message.startswith(_IMPORTANT):
            super().say(message)


class LeakCheck:
    """The front-end of ``run --leaks``: waits for the program's end, then reports leaks."""

    def __init__(
        self,
        suppressions: Sequence[Path],
        top: int,
        *,
        sarif: Path | None = None,
        junit: Path | None = None,
        log: Path | None = None,
    ) -> None:
        """Raises TracellocError if suppressions can't be read or a file can't be written."""
        self.messages: Messages = FewMessages()
        self._files = {sarif: checks.sarif, junit: checks.junit, log: checks.ctest_log}
        self._top = top
        self._patterns = read_patterns(suppressions)
        for path in filter(None, self._files):
            check_output(path)

    def show(self, run: Run) -> None:
        """Returns at the end of the program, or when a signal asks for the end."""
        while not run.signals.is_ending:
            if run.wait(time.monotonic() + _WAIT_S):
                return

    def finish(self, run: Run, trace: TraceSnapshot) -> None:
        """Reports the leaks, and decides the exit status."""
        found = run.session.exit_leaks
        if found is None:
            found = ExitLeaks(problem="SIGKILL ended it")
        report = self._named(run, trace, found)
        if found.problem:
            why = printable(found.problem)
            self.messages.say(f"warning: the program was not checked for leaks: {why}")
            run.status = _UNCHECKED_STATUS
        else:
            _print(leak_report_lines(report, self._top))
            if os.environ.get("GITHUB_ACTIONS"):
                _print(checks.github_lines(report))
        if report.leaks:
            run.status = FAILED_STATUS
        for path, format_report in self._files.items():
            if path is not None:
                name = printable(report.target.command).replace("/", "_")
                file = filled_in(path, report.target.pid, trace.root.time_s, name)
                write_output(file, [format_report(report).encode(errors="replace")])

    def _named(self, run: Run, trace: TraceSnapshot, found: ExitLeaks) -> LeakReport:
        snapshot = trace.root
        namer = run.namers.namer_of(snapshot.target)
        namer.prepare(snapshot, [one.stack for one in found.stacks], namer.patience_s)
        leaks, suppressed = [], BlockSum()
        for one in found.stacks:
            stack = namer.stack(snapshot, one.stack)
            if is_matched(stack, self._patterns):
                suppressed += one.blocks
            else:
                leaks.append(NamedLeak(one, stack))
        return LeakReport(snapshot.target, found, joined_leaks(leaks), suppressed)


def _print(lines: Iterable[str]) -> None:
    """Writes lines to standard error: standard output is the program's."""
    text = "".join(f"{line}\n" for line in lines)
    sys.stderr.write(text.encode(errors="backslashreplace").decode(errors="replace"))
    sys.stderr.flush()


def check_leaks(given: Options, check: LeakCheck) -> int:
    """Runs a program and reports what it leaked. Returns the exit status. Raises TracellocError."""
    check_machine(machine_name())
    options = completed(given)
    config = replace(options.trace.with_library_only, checks_exit=True, reads_memory=False)
    options = options.but(trace=config)
    return trace(options, start_of(options), check)
