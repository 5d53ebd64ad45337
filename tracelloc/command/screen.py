"""The command with a screen: choose a process, trace it, show it, end as every run ends."""

import argparse
import asyncio
import os
import signal
from pathlib import Path
from typing import Final

from tracelloc.command.commandline import Options
from tracelloc.command.lifecycle import start_of
from tracelloc.command.outputs import Messages, open_report
from tracelloc.command.processargument import choose_process
from tracelloc.command.run import Run, say_suspects, trace
from tracelloc.errors import TracellocError
from tracelloc.model.codefiles import base_name
from tracelloc.model.process import Target
from tracelloc.model.snapshotrequest import SnapshotRequest
from tracelloc.record.process.processlist import ProcessScan
from tracelloc.record.process.procfs import Process
from tracelloc.record.session.terminal import ProgramTerminal
from tracelloc.show.filters import NamedStack
from tracelloc.show.filters.files import load_filters
from tracelloc.show.presentation.naming import Namers
from tracelloc.show.presentation.processfacts import losses_line
from tracelloc.show.presentation.symboladvice import SymbolAdvice
from tracelloc.show.recording.joined import find_moment, open_recordings
from tracelloc.show.report.sections import progress_line
from tracelloc.snapshots.snapshot import Snapshot, TraceSnapshot
from tracelloc.startup import STARTUP
from tracelloc.system.invoker import Invoker, invoker
from tracelloc.ui.app import REFRESH_S, LiveApp, RecordedApp, failure_of
from tracelloc.ui.application import prepare_screens
from tracelloc.ui.driver import restored_terminal
from tracelloc.ui.frames import lines_of_file
from tracelloc.ui.player import RecordedSource
from tracelloc.ui.view import TraceFacts

# Time limit for reading the usable sizes of a snapshot's blocks: a key may wait for it.
_MEASURING_S: Final = 0.1


class LiveSource:
    """The source of pictures of a running session."""

    recorded: RecordedSource | None = None

    def __init__(
        self, run: Run, facts: TraceFacts, invoker: Invoker, terminal: ProgramTerminal | None = None
    ) -> None:
        self._run, self.facts = run, facts
        self.filters = run.namers.filters
        self.invoker = invoker
        self.last_output = None if terminal is None else terminal.last_output
        self.list_processes = ProcessScan().list_at_once
        self.namer = run.namers.namer_of
        self.ring_share = run.session.take_ring_share
        self.has_many = run.options.trace.follow
        self.has_python = self.has_many or any(
            runtime.counts_objects for runtime in run.session.root.runtimes()
        )
        self.writes_files = bool(run.options.outputs)
        self._advice = SymbolAdvice()

    def take_snapshot(self, wanted: SnapshotRequest) -> TraceSnapshot:
        return self._run.snapshots.take_snapshot(0.0, wanted)

    def measured(self, snapshot: Snapshot) -> Snapshot:
        tracee = self._run.session.processes.tracee_of(snapshot.target.number)
        return tracee.outside.measured(snapshot, _MEASURING_S)

    def symbol_advice(self, target: Target, stack: NamedStack) -> str | None:
        return self._advice.advice_for(target.pid, Path(f"/proc/{target.pid}/root"), stack)

    def read_source(self, target: Target, path: str) -> list[str]:
        return lines_of_file(target.pid, path)


class Screen:
    """The front-end that shows the trace on a terminal and takes keys."""

    def __init__(self, terminal: ProgramTerminal | None = None) -> None:
        """``terminal``: the terminal of a program that tracelloc starts; None: it starts none."""
        self._terminal = terminal
        self.app: LiveApp | None = None
        self.messages = _ScreenMessages(self)
        self.next_pid: int | None = None  # The next process to trace, chosen by the user

    def show(self, run: Run) -> None:
        session, signals = run.session, run.signals

        def woken() -> None:
            signals.clear()
            if signals.is_ending:
                app.exit()
            if signal.SIGUSR2 in signals.wishes:
                app.state.set_mark()
            if signals.wishes or signals.has_refused_stop:
                app.refresher.run_job(run.answer_signals)

        def ended() -> None:
            asyncio.get_running_loop().remove_reader(session.end_fd)
            pid = session.root.target.pid
            app.end(pid, Process(pid).how_ended(), session.stop)

        app = self.app = LiveApp(
            LiveSource(run, _facts_of(run), invoker(), self._terminal),
            readers={session.end_fd: ended, signals.fileno(): woken},
            duration_s=run.options.duration_s,
            warnings=run.warnings,
        )
        if signals.is_ending:
            return
        try:
            STARTUP.leave_frame()
            with restored_terminal():
                result = app.run()
        finally:
            self.app = None
        self.next_pid = result
        failure_of(app)

    def finish(self, run: Run, trace: TraceSnapshot) -> None:
        """Prints a summary below the closed screen: suspects, totals, how to keep the trace."""
        lines = say_suspects(run, trace, self.messages)
        losses = losses_line(trace.root).replace(", 0 truncated stacks", "")
        self.messages.say(f"{progress_line(trace)}; {losses}")
        if lines and not run.options.outputs:
            self.messages.say("nothing was saved: use -o FILE.html, or tracelloc record")


def _facts_of(run: Run) -> TraceFacts:
    found = run.session.root.probes.found
    paths = dict.fromkeys(base_name(allocator.file) for allocator in found)
    return TraceFacts(
        allocators=tuple(paths),
        functions=tuple(
            f"{allocator.family} in {allocator.file}: {', '.join(allocator.functions)}"
            for allocator in found
            if allocator.functions
        ),
        method=run.session.how,
        ring_slots=run.options.trace.capture.ring_slots,
    )


class _ScreenMessages(Messages):
    """Messages that are shown on the screen while there is one, else on standard error."""

    def __init__(self, screen: Screen) -> None:
        super().__init__()
        self._screen = screen

    def say(self, message: str) -> None:
        app = self._screen.app
        if app is not None and app.is_running:
            app.say(message)
        else:
            super().say(message)

    def say_above_progress(self, message: str) -> None:
        self.say(message)


def run_screen(options: Options, *, is_chosen: bool) -> int:
    """Traces with a screen until the user leaves. Raises TracellocError.

    ``is_chosen``: the process was chosen from the list, which is shown again after an error.
    """
    prepare_screens(plain=options.plain)
    if options.command:
        columns, rows = os.get_terminal_size()
        copy = None if options.program_output is None else open_report(options.program_output)
        terminal = ProgramTerminal(rows, columns, copy)
        return trace(options, start_of(options, terminal), Screen(terminal))
    pid = options.pid
    while True:
        screen = Screen()
        try:
            group = None if is_chosen else options.group
            waits = options.waits and not is_chosen
            start = start_of(options.but(pid=pid, group=group, waits=waits))
            trace(options, start, screen)
        except TracellocError as error:
            if not is_chosen:
                raise
            pid = choose_process(plain=options.plain, note=str(error))
            if pid is None:
                return 0
            continue
        if screen.next_pid is None:
            return 0
        pid, is_chosen = screen.next_pid, True


def open_recording(given: argparse.Namespace) -> None:
    """Shows a recording until the user leaves. Raises TracellocError."""
    prepare_screens(plain=given.plain)
    chosen = given.filters_paths, given.filter_groups
    filters, warnings = load_filters(*chosen, standing=given.use_filters)
    recording = open_recordings(given.files)
    namers = Namers(recording, filters)
    at = None if given.at is None else find_moment(recording, given.at)
    interval_s = REFRESH_S if recording.is_growing else None
    source = RecordedSource(recording, namers, at=at)
    app = RecordedApp(source, interval_s=interval_s, warnings=warnings)
    with restored_terminal():
        app.run()
    failure_of(app)
