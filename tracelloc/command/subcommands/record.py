"""Records a trace, one snapshot each second.

tracelloc open, report and diff read the file, also while it is being written. The file stays below
--max-size: the older snapshots are, the further apart they are kept.

To try it:
  tracelloc record -o server.rec --duration 1h -- ./server
"""

from argparse import ArgumentParser, Namespace
from functools import partial
from pathlib import Path
from typing import Any, Final

from tracelloc.command import arguments
from tracelloc.command.commandline import Options, recorded_command_line
from tracelloc.command.processargument import add_process, settle_target
from tracelloc.errors import TracellocError, UsageError
from tracelloc.startup import import_numpy
from tracelloc.text import format_size

TOP: Final = 10  # Largest blocks that each moment has
LEAST_BYTES: Final = 4 << 20


# fmt: off
def add_bounds(group: Any) -> None:
    """Adds ``--max-size`` and ``--max-time``, for every command that writes a recording."""
    add = partial(arguments.add_option, group)
    add("--max-size SIZE", "size limit on disk, at least 4MiB (default 200MiB): the oldest "
        "snapshots are thinned out first", dest="recording_bytes", type=arguments.size_type,
        default=200 << 20)
    add("--max-time --keep TIME", "time that the recording may cover (default 168h, a week): "
        "--keep 30m keeps the last half hour", type=arguments.duration_type, default=7 * 86400.0)
# fmt: on


def check_bounds(given: Namespace) -> None:
    """Raises UsageError if the limits of a recording leave room for next to nothing."""
    if given.recording_bytes < LEAST_BYTES:
        raise UsageError(f"--max-size must be at least {format_size(LEAST_BYTES)}")
    if given.max_time < 60:
        raise UsageError("--max-time must be at least 60s")


def record_options(given: Namespace, command: tuple[str, ...]) -> tuple[Options, Path]:
    """Returns the options of the recorded trace, and the file's path. Raises TracellocError."""
    check_bounds(given)
    given.top = TOP
    line = recorded_command_line(given, command)
    path = Path(given.recording)
    if "%" not in str(path) and path.exists():
        raise TracellocError(f"{path} exists already", hint="choose a new file")
    if not path.parent.is_dir():
        raise TracellocError(f"{path} cannot be written: there is no directory {path.parent}")
    return line, path


# fmt: off
def add_arguments(parser: ArgumentParser) -> None:
    # Its --max-size is the file's.
    parser.conflict_handler = "resolve"
    add_process(parser)
    arguments.add_tracing(parser.add_argument_group("what to trace"))
    arguments.add_probes(parser.add_argument_group("probes"))
    arguments.add_watch(parser.add_argument_group("watching"))
    group = parser.add_argument_group("recording")
    add = partial(arguments.add_option, group)
    add("-o --output FILE", "the recording, a new file (default tracelloc-%%p-%%t.rec; %%p is the "
        "PID, %%t the time)", dest="recording", default="tracelloc-%p-%t.rec")
    add_bounds(group)
    add("--duration S", "end after this time (default: when the process ends, or on Ctrl-C); a CMD "
        "that still runs then is waited for", dest="duration_s", type=arguments.duration_type)
    arguments.add_sources(group)
# fmt: on


def run(given: Namespace) -> int:
    line, path = record_options(given, given.command)
    settle_target(line)
    import_numpy()
    from tracelloc.command.record import Recorder, record

    return record(line, partial(Recorder, path, given.recording_bytes, given.max_time))
