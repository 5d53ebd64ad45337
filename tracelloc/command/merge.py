"""``merge``: one recording of several."""

from __future__ import annotations

import argparse

from tracelloc.command.recordoptions import check_bounds
from tracelloc.errors import UsageError
from tracelloc.show.filters import Filters
from tracelloc.show.importers.recordings import open_recordings
from tracelloc.show.presentation.naming import Namers
from tracelloc.show.recording.writer import RecordingWriter
from tracelloc.system.safefiles.writing import output_users
from tracelloc.text import Progress, format_percent, format_size, plural, printable


def merge(given: argparse.Namespace) -> None:
    """Writes what the command line asks for. Raises TracellocError."""
    check_bounds(given)
    if len(given.files) < 2:
        raise UsageError("merge needs two recordings at least")
    joined = open_recordings(given.files)
    namers = Namers(joined, Filters(), short_names=False)
    writer = RecordingWriter(
        given.recording,
        max_bytes=given.recording_bytes,
        max_s=given.max_time,
        users=output_users(),
    )
    progress = Progress()
    try:
        writer.describe(joined.about)
        count = len(joined.moments)
        for index in range(count):
            writer.add(joined.trace_at(index), namers)
            progress.note(f"merging, {format_percent(index / count, 0)}")
    finally:
        progress.end()
        writer.close()
    path, size = printable(str(writer.path)), format_size(writer.path.stat().st_size)
    print(f"{plural(writer.count, 'moment')} in {path}, {size}")
