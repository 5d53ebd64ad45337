"""Checks whether tracing will work here.

It checks the machine and, with -p, a process. It reports what is missing, what will be slow, and
how to fix it. Nothing is traced. The exit status is 0 if tracing will work.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import Final

from tracelloc.command.processargument import add_process, named_pid
from tracelloc.command.subcommands import Subcommand, SubcommandGroup
from tracelloc.errors import TracellocError
from tracelloc.text import print_lines, progress_of


def _add_arguments(parser: ArgumentParser) -> None:
    add_process(parser, "process to check as well")


def _run(given: Namespace) -> None:
    pid = named_pid(given)
    from tracelloc.command.doctor import diagnose, diagnosis_lines, failures

    with progress_of("looking"):
        findings = diagnose(pid)
    print_lines(diagnosis_lines(findings))
    sys.stdout.flush()
    if failures(findings):
        raise TracellocError("tracing will not work here")


SUBCOMMAND: Final = Subcommand(__name__, SubcommandGroup.CHECK, _add_arguments, _run)
