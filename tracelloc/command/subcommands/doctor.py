"""Lists which ways of tracing work here, and what helps.

It tries each way on processes of its own. With -p, it also reports what would be missing or slow in
a trace of that process, and how to fix it. It traces nothing. The exit status is 0 if any way of
tracing works.

To try it:
  tracelloc doctor
"""

import sys
from argparse import ArgumentParser, Namespace

from tracelloc.command.processargument import add_process, named_pid
from tracelloc.errors import TracellocError
from tracelloc.text import print_lines, progress_of


def add_arguments(parser: ArgumentParser) -> None:
    add_process(parser, "process to check as well")


def run(given: Namespace) -> None:
    pid = named_pid(given)
    from tracelloc.command.ways import diagnose, diagnosis_lines, why_not_traced

    with progress_of("looking"):
        findings = diagnose(pid)
    print_lines(diagnosis_lines(findings))
    sys.stdout.flush()
    if why := why_not_traced(findings):
        raise TracellocError(why)
