"""Commands with a name: ``record``, ``diff``, ``symbols``, ``doctor`` and so on.

Help and completions need no command's implementation: each imports its own.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tracelloc.command.arguments import (
    add_merging,
    add_open,
    add_output,
    add_recording,
    add_report,
    count_type,
    duration_type,
    pid_type,
    positive_type,
    type_of,
)
from tracelloc.command.commandline import split_command
from tracelloc.command.parser import Parser, build_parser
from tracelloc.errors import TracellocError, UsageError
from tracelloc.show import manual
from tracelloc.show.presentation.profile import METRICS
from tracelloc.show.report.optional import REPORT_FORMATS
from tracelloc.startup import import_numpy
from tracelloc.text import Progress, printable


@dataclass(frozen=True, slots=True)
class Subcommand:
    """A word that stands before all options, and what it does."""

    about: str
    add_arguments: Callable[[Parser], None]
    run: Callable[[argparse.Namespace], int | None]
    """Returns the exit status, if that is not 0."""
    takes_command: bool = False
    """Whether ``-- CMD [ARG...]`` may follow."""
    reads_files: bool = False
    """Whether somebody else's files say how much memory is taken."""


def run_subcommand(
    name: str, arguments: Sequence[str], show_recording: Callable[[argparse.Namespace], None]
) -> int:
    """Runs one of ``COMMANDS``. Raises TracellocError.

    ``show_recording`` is what ``open`` does on the screen, which commands know nothing of.
    """
    command = COMMANDS[name]
    parser = Parser(prog=f"tracelloc {name}", description=command.about)
    command.add_arguments(parser)
    started: tuple[str, ...] = ()
    if command.takes_command:
        arguments, started = split_command(arguments)
    given = parser.parse_args(arguments)
    given.show_recording = show_recording
    if command.takes_command:
        given.command = started
    if command.reads_files:
        import_numpy()
        from tracelloc.record.session.memorybudget import MemoryBudget, default_budget  # noqa: PLC0415

        MemoryBudget(default_budget() // 2).enforce()
    return command.run(given) or 0


def whole_parser() -> Parser:
    """Options and subcommands in one, for completions and the man page."""
    parser = build_parser()
    parser.usage = "tracelloc [options] [-p PID | -n NAME | -- CMD [ARG...] | SUBCOMMAND]"
    commands = parser.add_subparsers(prog="tracelloc", title="subcommands", metavar="SUBCOMMAND")
    for name, command in COMMANDS.items():
        command.add_arguments(
            commands.add_parser(name, help=command.about, description=command.about)
        )
    return parser


def _add_symbols(parser: Parser) -> None:
    add = parser.add_argument
    add("-p", "--pid", type=pid_type, required=True, metavar="PID", help="process to inspect")
    add("--json", action="store_true", help="one JSON array instead of text")
    _add_debug(parser)


def _symbols(given: argparse.Namespace) -> None:
    from tracelloc.record.process.processlist import open_target  # noqa: PLC0415
    from tracelloc.record.symbolization.inventory import (  # noqa: PLC0415
        json_inventory,
        take_inventory,
        text_inventory,
    )

    reports = take_inventory(open_target(given.pid))
    if given.json:
        _print([json_inventory(reports)])
    else:
        _print(text_inventory(reports))


def _add_objects(parser: Parser) -> None:
    add = parser.add_argument
    add("-p", "--pid", type=pid_type, required=True, metavar="PID", help="process to inspect")
    add(
        "--every", type=duration_type, metavar="TIME",
        help="count again each TIME, until Ctrl-C or the end of the process, and show what "
        "has changed since the first count",
    )  # fmt: skip
    add("--count", type=positive_type, metavar="N", help="end after N counts")
    add("--top", type=count_type, default=20, metavar="N", help="types to list (default 20)")
    add(
        "--holders", type=count_type, metavar="N",
        help="show who keeps the objects of the N types that grow most, or are largest in the "
        "first count (default 5 from the second count on, 0: of none)",
    )  # fmt: skip
    add("--json", action="store_true", help="one line of JSON for each count, all types")
    _add_debug(parser)


def _objects(given: argparse.Namespace) -> None:
    from tracelloc.command.objects import count_objects  # noqa: PLC0415

    count_objects(given)


def _add_doctor(parser: Parser) -> None:
    add = parser.add_argument
    add("-p", "--pid", type=pid_type, metavar="PID", help="process to look at as well")
    _add_debug(parser)


def _doctor(given: argparse.Namespace) -> None:
    from tracelloc.command.doctor import diagnose, diagnosis_lines, failures  # noqa: PLC0415

    progress = Progress()
    try:
        progress.note("looking")
        findings = diagnose(given.pid)
    finally:
        progress.end()
    _print(diagnosis_lines(findings))
    sys.stdout.flush()
    if failures(findings):
        raise TracellocError("tracing will not work here")


def _add_diff(parser: Parser) -> None:
    add = parser.add_argument
    add("before", metavar="BEFORE", help="earlier profile, or RECORDING@TIME")
    add("after", metavar="AFTER", help="later profile, or RECORDING@TIME")
    add("--top", type=count_type, default=10, metavar="N", help="stacks to list (default 10)")
    add_output(parser, "the difference to FILE instead of the list")
    _add_debug(parser)


def _diff(given: argparse.Namespace) -> None:
    from tracelloc.command.options import outputs_of  # noqa: PLC0415
    from tracelloc.show.importers import read_profile  # noqa: PLC0415
    from tracelloc.show.presentation.combined import difference  # noqa: PLC0415
    from tracelloc.show.recording.times import split_time  # noqa: PLC0415
    from tracelloc.show.report.diff import diff_report  # noqa: PLC0415

    outputs = outputs_of(given)
    progress = Progress()
    try:
        progress.note(f"reading {printable(given.before)}")
        before = read_profile(*split_time(given.before))
        progress.note(f"reading {printable(given.after)}")
        after = read_profile(*split_time(given.after))
        metric = METRICS[given.metric]
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
    finally:
        progress.end()
    if not outputs:
        coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        _print(diff_report(before, after, found, metric, given.top, coloured=coloured))


def _add_record(parser: Parser) -> None:
    add_recording(parser)
    _add_debug(parser)


def _record(given: argparse.Namespace) -> int:
    from tracelloc.command.recordoptions import record_options  # noqa: PLC0415

    line, wanted = record_options(given, given.command)
    import_numpy()
    from tracelloc.command.record import record  # noqa: PLC0415

    return record(line, wanted)


def _add_report(parser: Parser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="recording, or file of heaptrack's")
    add_report(parser, list(REPORT_FORMATS))
    _add_debug(parser)


def _report(given: argparse.Namespace) -> None:
    import_numpy()
    from tracelloc.command.reportfile import report  # noqa: PLC0415

    report(given)


def _add_recordings(parser: Parser, nargs: str = "+") -> None:
    about = "recording; several are shown as one"
    parser.add_argument("files", type=Path, nargs=nargs, metavar="FILE", help=about)


def _add_merge(parser: Parser) -> None:
    _add_recordings(parser)
    add_merging(parser)
    _add_debug(parser)


def _merge(given: argparse.Namespace) -> None:
    import_numpy()
    from tracelloc.command.merge import merge  # noqa: PLC0415

    merge(given)


def _add_open(parser: Parser) -> None:
    _add_recordings(parser, "*")
    add_open(parser)
    _add_debug(parser)


def _open(given: argparse.Namespace) -> None:
    if bool(given.files) == (given.pid is not None):
        raise UsageError("open needs a FILE, or -p PID of a process that is being recorded")
    import_numpy()
    given.show_recording(given)


def _add_help(parser: Parser) -> None:
    parser.add_argument(
        "topic", nargs="?", metavar="TOPIC", choices=manual.topics(),
        help="default: list the topics", type=type_of(manual.find_topic),
    )  # fmt: skip
    _add_debug(parser)


def _help(given: argparse.Namespace) -> None:
    manual.show(given.topic)


def _add_lane_path(parser: Parser) -> None:
    _add_debug(parser)


def _lane_path(given: argparse.Namespace) -> None:  # noqa: ARG001 - there is nothing to ask for
    from tracelloc.record.sources.preloaded.sharedarea import preloaded_library  # noqa: PLC0415

    _print([str(preloaded_library())])


def _add_completion(parser: Parser) -> None:
    parser.add_argument("shell", choices=["bash", "zsh", "fish"], help="shell to complete for")
    _add_debug(parser)


def _completion(given: argparse.Namespace) -> None:
    import shtab  # noqa: PLC0415 - for this alone

    parser = whole_parser()
    for action in parser._actions:
        if action.type is Path or action.metavar == "FILE":
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    _print([shtab.complete(parser, given.shell)])


def _add_debug(parser: Parser) -> None:
    parser.add_argument("--debug", action="store_true", help="show tracebacks")


def _print(lines: Iterable[str]) -> None:
    text = "".join(f"{line}\n" for line in lines)
    sys.stdout.buffer.write(text.encode(errors="backslashreplace"))


COMMANDS: Final = {
    "symbols": Subcommand(
        "Shows, for each file that a process has mapped as code, where function names, source "
        "lines and unwind tables come from, and which package or option would add what is "
        "missing. Nothing is traced.",
        _add_symbols,
        _symbols,
    ),
    "objects": Subcommand(
        "Counts the objects of a running Python program by type, and how their numbers change: "
        "CPython 3.11 and newer. Memory is read from outside; the program is not stopped.",
        _add_objects,
        _objects,
    ),
    "doctor": Subcommand(
        "Looks whether tracing will work on this machine and, with -p, for a process: what is "
        "missing, what will be slow, and what mends it. Nothing is traced. The exit status is 0 "
        "if tracing will work.",
        _add_doctor,
        _doctor,
    ),
    "diff": Subcommand(
        "Shows what grew and what shrank from one profile to another, stack by stack. Profiles "
        "are recordings (their last moment, or RECORDING@TIME), pprof files (also those of Go and "
        "others), heaptrack's files, JSON snapshots and folded stacks. With -o, the difference "
        "is written instead, flame graphs colored by growth.",
        _add_diff,
        _diff,
        reads_files=True,
    ),
    "record": Subcommand(
        "Records a trace, a moment each second, so that it can be looked at later and elsewhere: "
        "tracelloc report and diff read the file. It can be read at any time, and stays "
        "below --max-size, as moments that lie far back are kept further apart.",
        _add_record,
        _record,
        takes_command=True,
    ),
    "merge": Subcommand(
        "Makes one recording of several, of processes that ran side by side or one after the "
        "other, also on several machines.",
        _add_merge,
        _merge,
        reads_files=True,
    ),
    "open": Subcommand(
        "Shows a recording on the screen, with a time line to go back and forward on, also while "
        "it is being written.",
        _add_open,
        _open,
        reads_files=True,
    ),
    "report": Subcommand(
        "Shows a recording as of any of its moments, as a report or in any of the file formats.",
        _add_report,
        _report,
        reads_files=True,
    ),
    "lane-path": Subcommand(
        "Prints the path of the library that programs have preloaded (LD_PRELOAD) to report their "
        "allocations by themselves: tracelloc help lane.",
        _add_lane_path,
        _lane_path,
    ),
    "help": Subcommand("Shows a topic of the manual, or lists the topics.", _add_help, _help),
    "completion": Subcommand(
        "Prints a script that completes tracelloc's options in a shell.",
        _add_completion,
        _completion,
    ),
}
