"""Shows a recording on the screen, with a time line.

The recording may be one that is still being written.

To try it:
  tracelloc open server.rec
"""

from argparse import ArgumentParser, Namespace

from tracelloc.command.arguments import add_at, add_names, add_plain, add_recordings
from tracelloc.errors import UsageError


def add_arguments(parser: ArgumentParser) -> None:
    add_recordings(parser)
    add_at(parser, "the snapshot to begin with")
    add_names(parser)
    add_plain(parser)


def run(given: Namespace) -> None:
    from tracelloc.command.cli import has_screen

    if not has_screen():
        hint = "tracelloc report writes text, JSON and files"
        raise UsageError("open needs a terminal as standard input, output and error", hint=hint)
    from tracelloc.command.screen import open_recording

    open_recording(given)
