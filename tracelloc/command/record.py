"""``record``: a front-end that writes a snapshot each second into a recording."""

import math
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

from tracelloc import __version__
from tracelloc.command.commandline import Options, what_begins
from tracelloc.command.lifecycle import start_of
from tracelloc.command.options import completed
from tracelloc.command.outputs import Messages
from tracelloc.command.run import Run, say_suspects, trace
from tracelloc.errors import TracellocError
from tracelloc.show.export.outputfile import filled_in
from tracelloc.show.presentation.processfacts import losses_line
from tracelloc.show.recording.writer import RecordingWriter
from tracelloc.show.report.sections import progress_line
from tracelloc.snapshots.snapshot import TraceSnapshot
from tracelloc.startup import STARTUP
from tracelloc.system.safefiles.writing import output_users
from tracelloc.text import format_size, plural, printable

_STEP_S: Final = 1.0  # Time between snapshots


class Recorder:
    """A front-end that writes the trace into a recording, with progress on standard error."""

    def __init__(self, path: Path, max_bytes: int, max_s: float) -> None:
        """Creates the file at once, unless its name has ``%p`` or ``%t``. Raises TracellocError."""
        self.messages = Messages()
        self._path, self._max_bytes, self._max_s = path, max_bytes, max_s
        # The file until recording begins. It is never removed and created again: a reader of the
        # removed file would leave SQLite's other files next to the new one.
        self._first: RecordingWriter | None = self._new_writer(os.getpid())
        if "%" in str(path):
            self._first.close()
            self._first = None
        self._writer: RecordingWriter | None = None
        self._leaks = 0
        self._missed = 0  # Snapshots that there was no time for

    def show(self, run: Run) -> None:
        self._begin(run)
        run.answers[signal.SIGUSR1] = partial(self._copy, run)
        try:
            self._record(run)
        except BaseException:
            self.close()
            raise

    def _current(self, run: Run) -> RecordingWriter:
        """Returns the writer, or that of a new file if the last writer's file was removed."""
        writer = self._writer
        if writer is not None:
            if not writer.is_gone:
                return writer
            path, count = printable(str(writer.path)), plural(writer.count, "snapshot")
            self.messages.say(f"{path} was removed or moved, with {count}: a new file is begun")
            self.close()
        return self._begin(run)

    def close(self) -> None:
        """Completes the file, or removes it if it has no snapshots. May be called twice."""
        writer, self._first, self._writer = self._writer or self._first, None, None
        if writer is not None:
            writer.close()

    def _new_writer(self, pid: int) -> RecordingWriter:
        path, users = filled_in(self._path, pid, time.time()), output_users()
        return RecordingWriter(path, max_bytes=self._max_bytes, max_s=self._max_s, users=users)

    def _begin(self, run: Run) -> RecordingWriter:
        target = run.session.root.target
        writer = self._writer = self._first or self._new_writer(target.pid)
        self._first = None
        writer.describe({
            "pid": str(target.pid), "command": target.command, "host": socket.gethostname(),
            "version": __version__, "missed": str(self._missed),
        })  # fmt: skip
        self.messages.say(f"recording to {printable(str(writer.path))}")
        return writer

    def _record(self, run: Run) -> None:
        due, duration_s = time.monotonic(), run.options.duration_s
        end = math.inf if duration_s is None else due + duration_s
        while not run.signals.is_ending and (now := time.monotonic()) < end:
            if now >= due:
                late = int((now - due) / _STEP_S)
                due += (late + 1) * _STEP_S
                if late:
                    self._missed += late
                    self._current(run).describe({"missed": str(self._missed)})
                if self._tick(run):
                    return
            elif run.wait(min(due, end)):
                return

    def _tick(self, run: Run) -> bool:
        writer = self._current(run)
        trace = run.snapshots.take_snapshot(0.0)
        run.say_what_is_traced()
        writer.add(trace, run.namers)
        size, lost = format_size(writer.size_bytes()), trace.root.losses.events
        self.messages.show_progress(f"{progress_line(trace)}, {lost:,} lost, {size} recorded")
        ends = run.watch.has_rules and run.check_rules(trace)
        if run.watch.leak_count > self._leaks:
            self._leaks = run.watch.leak_count
            self._copy(run)
        return ends

    def _copy(self, run: Run) -> None:
        writer = self._current(run)
        now, path = time.strftime("%Y%m%d-%H%M%S"), writer.path
        copy = path.with_name(f"{path.stem}-{now}{path.suffix}")
        try:
            writer.copy(copy)
        except TracellocError as error:
            run.note_trouble(error)
        else:
            size = format_size(copy.stat().st_size)
            self.messages.say(f"copied to {printable(str(copy))}, {size}")

    def finish(self, run: Run, trace: TraceSnapshot) -> None:
        """Writes the last snapshot, and the names still being looked up."""
        if self._writer is None:
            return
        writer = self._current(run)
        try:
            writer.add(trace, run.namers, run.namers.patience_s)
        finally:
            self.close()
        path, size = printable(str(writer.path)), format_size(writer.path.stat().st_size)
        say_suspects(run, trace, self.messages)
        self.messages.say(f"{progress_line(trace)}; {losses_line(trace.root)}")
        count = plural(writer.count, "snapshot")
        count += f" ({self._missed:,} missed)" if self._missed else ""
        self.messages.say(f"recorded {count} in {path}, {size}")
        self.messages.say(f"to see it: tracelloc open {path}")


def record(given: Options, begin: Callable[[], Recorder]) -> int:
    """Records a trace until it ends. Returns the exit status. Raises TracellocError."""
    STARTUP.begin(what_begins(given))
    try:
        options = completed(given)
        with closing(begin()) as recorder:
            return trace(options, start_of(options), recorder)
    finally:
        STARTUP.end()
