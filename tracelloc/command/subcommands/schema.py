"""Prints the JSON Schema of what tracelloc writes as JSON.

KIND selects one output: report, sums (of --follow), snapshot (-o FILE.json), heap, leaks, holders,
census (objects), top, symbols, on_leak, watch_hook or pytest. The draft is 2020-12.

To try it:
  tracelloc schema leaks
"""

import json
from argparse import ArgumentParser, Namespace
from typing import Final

from tracelloc.command.subcommands import Subcommand, SubcommandGroup
from tracelloc.text import print_lines

_KINDS: Final = (
    "report", "sums", "snapshot", "heap", "leaks", "holders", "census", "top", "symbols", "on_leak",
    "watch_hook", "pytest",
)  # fmt: skip


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("kind", nargs="?", metavar="KIND", choices=_KINDS, help="default: all")


def _run(given: Namespace) -> None:
    from tracelloc.show.manual import text_of

    schema = json.loads(text_of("schema.json"))
    if given.kind is not None:
        schema["anyOf"] = [{"$ref": f"#/$defs/{given.kind}"}]
    print_lines(json.dumps(schema, indent=1, ensure_ascii=False).splitlines())


SUBCOMMAND: Final = Subcommand(__name__, SubcommandGroup.HELP, _add_arguments, _run)
