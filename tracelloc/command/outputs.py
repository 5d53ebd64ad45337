"""Output of the command: files of a run, all of one snapshot, and messages while tracing."""

from __future__ import annotations

import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

from tracelloc import text
from tracelloc.errors import TracellocError
from tracelloc.show.export import FOLDED, PPROF, exporter_for
from tracelloc.show.export.outputfile import OutputFile, check_special, is_special, open_special
from tracelloc.show.presentation.combined import joined_profile, trace_profiles
from tracelloc.show.presentation.naming import Namers
from tracelloc.show.presentation.profile import METRICS
from tracelloc.snapshots.snapshot import Snapshot, TraceSnapshot
from tracelloc.startup import STARTUP
from tracelloc.system.safefiles.writing import open_output, output_users

_PROGRESS_S: Final = 1.0  # How long a step may take before its progress is reported


def write_files(
    outputs: Iterable[OutputFile], trace: TraceSnapshot, namers: Namers, *, messages: Messages,
    fail: Callable[[TracellocError], None], marks: Mapping[int, Snapshot] | None = None,
) -> None:  # fmt: skip
    """Writes the files of a run; ``fail`` gets each error. ``marks``: see ``trace_profiles``."""
    outputs = [o.at(trace.root.target.pid, trace.root.time_s) for o in outputs]
    if not outputs:
        return
    freed = any(output.needs_freed for output in outputs)
    _await_names(trace, namers, messages, freed=freed)
    start = time.monotonic()

    def note(done: int, count: int) -> None:
        if time.monotonic() - start > _PROGRESS_S:
            messages.show_progress(f"naming stacks, {done} of {count}")

    profiles = trace_profiles(
        trace, namers, freed=freed, marks=marks, progress=note, patience_s=namers.patience_s
    )
    profile = joined_profile(profiles)
    for output in outputs:
        try:
            output.write(_watched(output.content(profile), output.path, messages))
        except TracellocError as error:
            messages.end_progress()
            fail(error)
        else:
            messages.end_progress()
            messages.say(f"wrote {text.printable(str(output.path))}")


def _await_names(trace: TraceSnapshot, namers: Namers, messages: Messages, *, freed: bool) -> None:
    start = time.monotonic()
    for one in trace.processes:
        namer = namers.namer_of(one.target)
        symbols = namer.symbols
        indices = [stat.index for stat in one.top_stacks(freed=freed)]
        while not namer.prepare(one, indices, min(_PROGRESS_S, namers.patience_s)):
            if not namers.patience_s:
                messages.end_progress()
                messages.say(f"no time left for names: {symbols.waiting} still to be looked up")
                break
            took = text.format_duration(round(time.monotonic() - start))
            messages.show_progress(f"reading symbols, {symbols.waiting} addresses left, {took}")


def _watched(pieces: Iterable[bytes], path: Path, messages: Messages) -> Iterator[bytes]:
    """Yields the pieces of a file's content, and reports progress if they take long."""
    start, size_bytes = time.monotonic(), 0
    for piece in pieces:
        size_bytes += len(piece)
        if time.monotonic() - start > _PROGRESS_S:
            name = text.printable(str(path))
            messages.show_progress(f"writing {name}, {text.format_size(size_bytes)} so far")
        yield piece


def open_report(path: Path) -> BinaryIO:
    """Opens a growing file, owned by the user who called sudo. Raises TracellocError."""
    try:
        if is_special(path):
            check_special(path)
            return open_special(path)
        descriptor = open_output(path, output_users())
    except OSError as error:
        raise TracellocError(f"{path} cannot be written: {error.strerror}") from error
    return os.fdopen(descriptor, "wb")


_IMPORTANT: Final = "warning", "error"
_BETWEEN_LINES_S: Final = 10.0  # Time between progress lines where standard error is no terminal


class Messages:
    """Messages on standard error; only warnings and errors if ``STARTUP`` is quiet."""

    def __init__(self) -> None:
        self._last_progress_s = 0.0

    def say(self, message: str) -> None:
        if STARTUP.is_quiet and not message.startswith(_IMPORTANT):
            return
        # The terminal may be gone; that must not keep files from being written.
        with suppress(OSError):
            if STARTUP.has_frame:
                STARTUP.end()
            print(f"tracelloc: {message}", file=sys.stderr, flush=True)

    def say_above_progress(self, message: str) -> None:
        """Writes a message on a line of its own, above the progress line. From any thread."""
        with suppress(OSError):
            text.clear_status()
        self.say(message)

    def show_progress(self, line: str) -> None:
        """Shows a progress line: on a terminal in place of the last one, elsewhere now and then."""
        now = time.monotonic()
        terminal = sys.stderr.isatty()
        is_due = terminal or now - self._last_progress_s >= _BETWEEN_LINES_S
        if not STARTUP.is_quiet and is_due:
            self._last_progress_s = now
            (text.show_status if terminal else self.say)(line)

    def end_progress(self) -> None:
        text.leave_status()


def outputs_of(given: Namespace) -> tuple[OutputFile, ...]:
    """Returns the requested files. Raises UsageError."""
    named = ((FOLDED, getattr(given, "flamegraph", None)), (PPROF, getattr(given, "pprof", None)))
    chosen = [(exporter, path) for exporter, path in named if path]
    chosen += [(exporter_for(path), path) for path in given.output]
    metric = METRICS[given.metric]
    return tuple(OutputFile(Path(path), kind, metric) for kind, path in chosen)
