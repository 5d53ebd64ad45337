"""Shows what grew and what shrank from one profile to another.

Profiles are recordings (their last snapshot, or RECORDING@TIME), pprof files (also those of Go and
others), files of heaptrack, JSON snapshots and folded stacks. With -o, the difference is written to
a file instead; in flame graphs, colors show growth.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from typing import Final

from tracelloc.command.arguments import add_option, add_output, count_type
from tracelloc.command.subcommands import Subcommand, SubcommandGroup
from tracelloc.errors import UsageError
from tracelloc.show.presentation.profile import METRICS
from tracelloc.text import print_lines, printable, progress_of


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("before", metavar="BEFORE", help="earlier profile, or RECORDING@TIME")
    parser.add_argument("after", metavar="AFTER", help="later profile, or RECORDING@TIME")
    add_option(parser, "--top N", "stacks to list (default 10)", type=count_type, default=10)
    add_output(parser, "the difference to FILE instead of the list")


def _run(given: Namespace) -> None:
    from tracelloc.command.options import outputs_of
    from tracelloc.show.importers import read_profile
    from tracelloc.show.presentation.combined import difference
    from tracelloc.show.recording.times import split_time
    from tracelloc.show.report.diff import diff_report

    outputs = outputs_of(given)
    metric = METRICS[given.metric]
    with progress_of(f"reading {printable(given.before)}") as progress:
        before = read_profile(*split_time(given.before))
        progress.note(f"reading {printable(given.after)}")
        after = read_profile(*split_time(given.after))
        for path, profile in ((given.before, before), (given.after, after)):
            if metric not in profile.metrics:
                raise UsageError(
                    f"{path} has no figures for --metric {metric.value}",
                    hint="JSON snapshots have them all",
                )
        progress.note("comparing")
        found = difference(before, after)
        outputs = tuple(output.at(found.target.pid, found.time_s) for output in outputs)
        for output in outputs:
            output.check()
        for output in outputs:
            progress.note(f"writing {printable(str(output.path))}")
            output.write(output.content(found))
    if not outputs:
        coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        print_lines(diff_report(before, after, found, metric, given.top, coloured=coloured))


SUBCOMMAND: Final = Subcommand(
    __name__, SubcommandGroup.RECORD, _add_arguments, _run, reads_files=True
)
