"""Records a trace, one snapshot each second.

tracelloc open, report and diff read the file, also while it is being written. The file stays below
--max-size: the older snapshots are, the further apart they are kept.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from functools import partial
from typing import Final

from tracelloc.command.arguments import (
    add_option,
    add_probes,
    add_sources,
    add_tracing,
    add_watch,
    duration_type,
)
from tracelloc.command.processargument import add_process, settle_target
from tracelloc.command.recordoptions import add_bounds, record_options
from tracelloc.command.subcommands import Subcommand, SubcommandGroup
from tracelloc.startup import import_numpy


# fmt: off
def _add_arguments(parser: ArgumentParser) -> None:
    # Its --max-size is the file's.
    parser.conflict_handler = "resolve"
    add_process(parser)
    add_tracing(parser.add_argument_group("what to trace"))
    add_probes(parser.add_argument_group("probes"))
    add_watch(parser.add_argument_group("watching"))
    group = parser.add_argument_group("recording")
    add = partial(add_option, group)
    add("-o --output FILE", "the recording, a new file (default tracelloc-%%p-%%t.rec; %%p is the "
        "PID, %%t the time)", dest="recording", default="tracelloc-%p-%t.rec")
    add_bounds(group)
    add("--duration S", "end after this time (default: when the process ends, or on Ctrl-C); a CMD "
        "that still runs then is waited for", dest="duration_s", type=duration_type)
    add_sources(group)
# fmt: on


def _run(given: Namespace) -> int:
    line, path = record_options(given, given.command)
    settle_target(line)
    import_numpy()
    from tracelloc.command.record import Recorder, record

    return record(line, partial(Recorder, path, given.recording_bytes, given.max_time))


SUBCOMMAND: Final = Subcommand(
    __name__, SubcommandGroup.RECORD, _add_arguments, _run, takes_command=True
)
