"""The files of a run, written from one snapshot, with progress where it takes its time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from tracelloc.command.messages import Messages
from tracelloc.command.outputs import Output
from tracelloc.errors import TracellocError
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.snapshots.trace import TraceSnapshot
from tracelloc.text import printable
from tracelloc.units import format_duration, format_size
from tracelloc.views.combined import joined, trace_profiles
from tracelloc.views.namers import Namers

_PROGRESS_S: Final = 1.0
"""How long something may take before it is said that it does."""


def write_files(
    outputs: Iterable[Output],
    trace: TraceSnapshot,
    namers: Namers,
    *,
    messages: Messages,
    fail: Callable[[TracellocError], None],
    marks: Mapping[int, Snapshot] | None = None,
) -> None:
    """Writes what can be written; ``fail`` is told of what can't be, when that is found out.

    ``marks``: see ``trace_profiles``.
    """
    outputs = [o.at(trace.root.target.pid, trace.root.time_s) for o in outputs]
    if not outputs:
        return
    freed = any(output.needs_freed for output in outputs)
    _await_names(trace, namers, messages, freed=freed)
    start = time.monotonic()

    def note(done: int, count: int) -> None:
        if time.monotonic() - start > _PROGRESS_S:
            messages.show_progress(f"naming stacks, {done} of {count}")

    profile = joined(trace_profiles(trace, namers, freed=freed, marks=marks, progress=note))
    for output in outputs:
        try:
            output.write(_watched(output.content(profile), output.path, messages))
        except TracellocError as error:
            messages.end_progress()
            fail(error)
        else:
            messages.end_progress()
            messages.say(f"wrote {printable(str(output.path))}")


def _await_names(trace: TraceSnapshot, namers: Namers, messages: Messages, *, freed: bool) -> None:
    """Names and lines of everything, said to take its time if it does."""
    start = time.monotonic()
    for one in trace.processes:
        namer = namers.of(one.target)
        indices = [stat.index for stat in one.top_stacks(freed=freed)]
        while not namer.prepare(one, indices, _PROGRESS_S):
            took = format_duration(round(time.monotonic() - start))
            messages.show_progress(f"reading symbols, {namer.waiting} addresses left, {took}")


def _watched(pieces: Iterable[bytes], path: Path, messages: Messages) -> Iterator[bytes]:
    """Passes the pieces on, and says how far they are if they take their time."""
    start, size_bytes = time.monotonic(), 0
    for piece in pieces:
        size_bytes += len(piece)
        if time.monotonic() - start > _PROGRESS_S:
            name = printable(str(path))
            messages.show_progress(f"writing {name}, {format_size(size_bytes)} so far")
        yield piece
