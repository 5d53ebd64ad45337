"""Shows what grew and what shrank from one profile to another.

Profiles are recordings (their last snapshot, or RECORDING@TIME), pprof files (also those of Go and
others), JSON snapshots and folded stacks. With -o, the difference is written to a file instead; in
flame graphs, colors show growth. With several runs of each side, figures are medians, and a figure
counts as changed only if the ranges of both sides do not overlap.

To try it:
  tracelloc diff before.pb.gz after.pb.gz
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tracelloc.command.arguments import add_option, add_output, count_type, type_of
from tracelloc.show.alerts.rules import FAILED_STATUS, parse_change_rule
from tracelloc.show.presentation.profile import METRICS
from tracelloc.text import print_lines, printable, progress_of

if TYPE_CHECKING:
    from tracelloc.show.presentation.profile import Profile
    from tracelloc.show.report.diff import Comparison


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("before_file", metavar="BEFORE", help="earlier profile, or RECORDING@TIME")
    parser.add_argument("after_file", metavar="AFTER", help="later profile, or RECORDING@TIME")
    add = partial(add_option, parser)
    add("--before FILE", "another run of BEFORE (repeatable)", action="append", default=[])
    add("--after FILE", "another run of AFTER (repeatable)", action="append", default=[])
    add("--top N", "stacks to list (default 10)", type=count_type, default=10)
    add("--markdown", "at most 60 lines of Markdown instead of the list, for pull requests")
    add("--fail-if RULE", f"end with exit status {FAILED_STATUS} if a metric's total has grown by "
        "more: 'peak > +5%%', 'allocated > +1MiB', 'blocks > +100' (repeatable)",
        type=type_of(parse_change_rule), action="append", default=[])  # fmt: skip
    add_output(parser, "the difference to FILE instead of the list")


def _read(given: Namespace, note: Callable[[str], None]) -> Comparison:
    from tracelloc.show.importers import check_metrics, read_profile
    from tracelloc.show.recording.joined import split_time
    from tracelloc.show.report.diff import Comparison

    metrics = {METRICS[given.metric], *(rule.metric for rule in given.fail_if)}

    def read(path: str) -> Profile:
        note(f"reading {printable(path)}")
        profile = read_profile(*split_time(path))
        check_metrics(profile, path, metrics)
        return profile

    before = [read(path) for path in (given.before_file, *given.before)]
    return Comparison(before, [read(path) for path in (given.after_file, *given.after)])


def run(given: Namespace) -> int:
    from tracelloc.command.outputs import outputs_of
    from tracelloc.show.presentation.combined import difference
    from tracelloc.show.report.diff import diff_report, markdown_lines

    outputs = outputs_of(given)
    metric = METRICS[given.metric]
    with progress_of(f"reading {printable(given.before_file)}") as progress:
        compared = _read(given, progress.note)
        progress.note("comparing")
        before, after = compared.middle(metric)
        found = difference(before, after)
        outputs = tuple(output.at(found.target.pid, found.time_s) for output in outputs)
        for output in outputs:
            output.check()
        for output in outputs:
            progress.note(f"writing {printable(str(output.path))}")
            output.write(output.content(found))
    if given.markdown:
        print_lines(markdown_lines(compared, found, metric, given.fail_if))
    elif not outputs:
        coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        print_lines(compared.noise_lines(metric))
        print_lines(diff_report(before, after, found, metric, given.top, coloured=coloured))
    broken = [rule for rule in given.fail_if if compared.breaks(rule)]
    for rule in broken:
        print(f"tracelloc: --fail-if: {rule.text}: {compared.change(rule.metric)}", file=sys.stderr)
    return FAILED_STATUS if broken else 0
