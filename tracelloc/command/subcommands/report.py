"""Shows a snapshot of a recording as text, JSON or a file format.

To try it:
  tracelloc report server.rec --at=-5m
"""

from argparse import ArgumentParser, Namespace
from functools import partial
from pathlib import Path
from typing import Final

from tracelloc.command import arguments
from tracelloc.model.snapshotrequest import TOTALS_ONLY
from tracelloc.show.export import FORMATS
from tracelloc.show.report.optional import SECTIONS, parse_sections

_FORMATS: Final = ["text", "json", *FORMATS]


# fmt: off
def add_arguments(parser: ArgumentParser) -> None:
    add = partial(arguments.add_option, parser)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE",
        help="recording; several as one; -o also writes profiles in other formats: pprof, "
        "tracelloc's JSON, folded stacks")
    arguments.add_at(parser, "the snapshot to show")
    add("--since TIME", "show what has changed since this snapshot")
    add("--format", f"format of the standard output: {', '.join(_FORMATS)} (default "
        "text)", choices=_FORMATS, default="text")
    add("--top N", "entries per section (default 2)", type=arguments.count_type, default=2)
    names = ", ".join(name for name, wanted in SECTIONS.items() if wanted == TOTALS_ONLY)
    add("--show LIST", f"add sections to text and JSON: {names}",
        type=arguments.type_of(parse_sections), default=frozenset())
    arguments.add_output(parser, "to FILE instead")
    arguments.add_names(parser)
# fmt: on


def run(given: Namespace) -> None:
    from tracelloc.command.reportfile import report

    report(given)
