"""Prints the path of the library that programs can preload.

With it in LD_PRELOAD, a program reports its allocations without probes: see tracelloc help preload.

To try it:
  tracelloc library-path
"""

from argparse import Namespace
from typing import Final

from tracelloc.command.subcommands import Subcommand, SubcommandGroup
from tracelloc.text import print_lines


def _run(given: Namespace) -> None:  # noqa: ARG001 - it takes no arguments
    from tracelloc.record.sources.preloaded.sharedarea import preloaded_library

    print_lines([str(preloaded_library())])


SUBCOMMAND: Final = Subcommand(__name__, SubcommandGroup.HELP, lambda _parser: None, _run)
