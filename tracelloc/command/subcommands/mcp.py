"""Serves agents by the Model Context Protocol.

It reads messages from standard input and answers on standard output (the stdio transport). It is
read-only, unless --allow-trace names processes that it may trace, or programs that it may run.

To try it:
  tracelloc mcp --skill
"""

import sys
from argparse import ArgumentParser, Namespace
from typing import Final

from tracelloc.command.arguments import add_option
from tracelloc.startup import import_numpy
from tracelloc.text import print_lines

_SKILL: Final = """---
name: tracelloc
description: Finds what leaks memory in native programs, by call stack, file and line.
---
# Memory leaks with tracelloc
"""


def add_arguments(parser: ArgumentParser) -> None:
    who = "process that may be traced, or name of a program that may be traced or run (repeatable)"
    add_option(parser, "--allow-trace PID|NAME", who, action="append", default=[])
    add_option(parser, "--skill", "print a SKILL.md for agents with a shell", action="store_true")


def run(given: Namespace) -> None:
    if given.skill:
        from tracelloc.show.manual import text_of

        page = text_of("agents")
        print_lines([_SKILL, page[page.index("## How") : page.index("## Without")].rstrip()])
        return
    import_numpy()
    from tracelloc.command.agenttools import AgentTools
    from tracelloc.command.mcpserver import serve

    serve(sys.stdin.buffer, sys.stdout.buffer, AgentTools(given.allow_trace))
