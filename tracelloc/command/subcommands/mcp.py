"""Serves agents by the Model Context Protocol.

It reads messages from standard input and answers on standard output, as agents' programs expect it
of a server that they start (stdio). It only looks, unless --allow-trace names processes that
may be traced, or programs that may be run.
"""

import sys
from argparse import ArgumentParser, Namespace
from typing import Final

from tracelloc.command.arguments import add_option
from tracelloc.command.subcommands import Subcommand, SubcommandGroup
from tracelloc.startup import import_numpy


def _add_arguments(parser: ArgumentParser) -> None:
    about = (
        "process that may be traced, or name of a program that may be traced or run (repeatable)"
    )
    add_option(parser, "--allow-trace PID|NAME", about, action="append", default=[])


def _run(given: Namespace) -> None:
    import_numpy()
    from tracelloc.command.agenttools import AgentTools
    from tracelloc.command.mcpserver import serve

    serve(sys.stdin.buffer, sys.stdout.buffer, AgentTools(given.allow_trace))


SUBCOMMAND: Final = Subcommand(__name__, SubcommandGroup.CHECK, _add_arguments, _run)
