"""Makes one recording of several.

Their processes may have run side by side or one after the other, also on several machines.

To try it:
  tracelloc merge monday.rec tuesday.rec -o week.rec
"""

from argparse import ArgumentParser, Namespace
from contextlib import closing
from pathlib import Path

from tracelloc.command.arguments import add_option, add_recordings
from tracelloc.command.subcommands.record import add_bounds, check_bounds
from tracelloc.errors import UsageError
from tracelloc.text import format_percent, format_size, plural, printable, progress_of


def add_arguments(parser: ArgumentParser) -> None:
    add_recordings(parser)
    about = "the recording, a new file"
    add_option(parser, "-o --output FILE", about, dest="recording", type=Path, required=True)
    add_bounds(parser)


def run(given: Namespace) -> None:
    check_bounds(given)
    if len(given.files) < 2:
        raise UsageError("merge needs two recordings at least")
    from tracelloc.show.filters import Filters
    from tracelloc.show.presentation.naming import Namers
    from tracelloc.show.recording.joined import open_recordings
    from tracelloc.show.recording.writer import RecordingWriter
    from tracelloc.system.safefiles.writing import output_users

    joined = open_recordings(given.files)
    namers = Namers(joined, Filters())
    writer = RecordingWriter(
        given.recording, max_bytes=given.recording_bytes, max_s=given.max_time, users=output_users()
    )
    with closing(writer), progress_of("merging") as progress:
        writer.describe(joined.about)
        count = len(joined.moments)
        for index in range(count):
            writer.add(joined.trace_at(index), namers)
            progress.note(f"merging, {format_percent(index / count, 0)}")
    path, size = printable(str(writer.path)), format_size(writer.path.stat().st_size)
    print(f"{plural(writer.count, 'snapshot')} in {path}, {size}")
