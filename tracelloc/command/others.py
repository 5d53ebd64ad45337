"""Commands that don't trace: ``tracelloc symbols``, ``tracelloc diff``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tracelloc.command.arguments import add_output, count_type, positive_type
from tracelloc.command.options import Parser, outputs_of
from tracelloc.errors import UsageError
from tracelloc.reading import read_profile
from tracelloc.report.diff import diff_report
from tracelloc.symbols.inventory import json_inventory, take_inventory, text_inventory
from tracelloc.target.processes import open_target
from tracelloc.text import Progress, printable
from tracelloc.views.combined import difference
from tracelloc.views.profile import METRICS


def symbols(arguments: Sequence[str]) -> int:
    """Prints what names, lines and unwind tables there are per mapped file."""
    parser = Parser(
        prog="tracelloc symbols",
        description="Shows, for each file that a process has mapped as code, where function "
        "names and source lines come from, and which package or option would add what is "
        "missing. Nothing is traced.",
    )
    add = parser.add_argument
    add("-p", "--pid", type=positive_type, required=True, metavar="PID", help="process to look at")
    add("--json", action="store_true", help="one JSON array instead of text")
    add("--debug", action="store_true", help="show tracebacks")
    given = parser.parse_args(arguments)
    reports = take_inventory(open_target(given.pid))
    text = (
        json_inventory(reports) + "\n"
        if given.json
        else "".join(f"{line}\n" for line in text_inventory(reports))
    )
    sys.stdout.buffer.write(text.encode(errors="backslashreplace"))
    return 0


def diff(arguments: Sequence[str]) -> int:
    """Prints or writes what one export has more than another."""
    parser = Parser(
        prog="tracelloc diff",
        description="Shows what the second of two profiles has more than the first, stack by "
        "stack. Profiles are pprof files (also those of Go and others), JSON snapshots and "
        "folded stacks; with -o the difference is written instead, flame graphs coloured by "
        "growth.",
    )
    add = parser.add_argument
    add("before", type=Path, metavar="BEFORE", help="profile to compare with")
    add("after", type=Path, metavar="AFTER", help="profile that is looked at")
    add("--top", type=count_type, default=10, metavar="N", help="stacks to list (default 10)")
    add_output(parser)
    add("--debug", action="store_true", help="show tracebacks")
    given = parser.parse_args(arguments)
    outputs = outputs_of(given)
    progress = Progress()
    try:
        progress.note(f"reading {printable(str(given.before))}")
        before = read_profile(given.before)
        progress.note(f"reading {printable(str(given.after))}")
        after = read_profile(given.after)
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
        lines = diff_report(before, after, found, metric, given.top, coloured=coloured)
        text = "".join(f"{line}\n" for line in lines)
        sys.stdout.buffer.write(text.encode(errors="backslashreplace"))
    return 0


COMMANDS: Final[dict[str, Callable[[Sequence[str]], int]]] = {"diff": diff, "symbols": symbols}
