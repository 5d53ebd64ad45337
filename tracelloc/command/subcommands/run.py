"""Runs a test program and reports what it has leaked at its end.

Leaks are blocks that nothing points to when the program ends, by call stack with file and line. It
needs neither root nor another build of the program. The exit status is 3 if something leaked, else
that of the program.

To try it:
  tracelloc run --leaks -- ./server
"""

import gc
import signal
from argparse import SUPPRESS, ArgumentParser, Namespace
from functools import partial
from pathlib import Path
from typing import Final

from tracelloc.command.arguments import add_option, count_type, duration_type
from tracelloc.command.commandline import recorded_command_line
from tracelloc.command.processargument import settle_target
from tracelloc.errors import UsageError
from tracelloc.startup import import_numpy

_SIGNALS: Final = "USR1", "USR2", "ALRM", "IO", "PWR", "QUIT", "WINCH"


# fmt: off
def add_arguments(parser: ArgumentParser) -> None:
    add = partial(add_option, parser)
    add("--leaks", "report blocks that nothing points to at the end of CMD (the default)")
    add("--suppressions FILE", "leaks that are known, in LeakSanitizer's syntax: lines of "
        "leak:PATTERN, compared with functions, source files and modules (repeatable)",
        action="append", type=Path, default=[])
    add("--top N", "call stacks to list (default 20); the files have all", type=count_type,
        default=20)
    add("--sarif FILE", "also write the leaks as SARIF 2.1.0, for code scanning; here and below, "
        "%%p is the program's PID and %%n its name", type=Path)
    add("--no-children", "check the first process only, not those that it starts",
        action="store_false", dest="children")
    add("--at SIGNAL", "also check whenever tracelloc gets this signal, such as USR1",
        type=lambda name: name.upper().removeprefix("SIG"), choices=_SIGNALS)
    add("--every TIME", "also check at this interval while CMD runs", type=duration_type)
    # For the plug-in of pytest: answers its requests, and follows the Python that runs the tests.
    parser.add_argument("--tests", action="store_true", help=SUPPRESS)
    add("--junit FILE", "also write the result as JUnit XML", type=Path)
    add("--log-file FILE", "also write the report for CTest, which counts what it finds there",
        type=Path)
# fmt: on


def run(given: Namespace) -> int:
    if not given.command:
        raise UsageError("a program is required", hint="tracelloc run --leaks -- CMD [ARG...]")
    line = recorded_command_line(Namespace(debug=given.debug), given.command)
    settle_target(line)
    gc.disable()  # what is made now stays; until tracing begins
    import_numpy()
    from tracelloc.command.testruns import LeakCheck, check_leaks, serve_tests
    from tracelloc.record.worker.zygote import ZYGOTE

    ZYGOTE.fork_off()
    if given.tests:
        return serve_tests(line, given.suppressions)

    check = LeakCheck(
        given.suppressions, given.top, sarif=given.sarif, junit=given.junit, log=given.log_file,
        at=given.at and signal.Signals[f"SIG{given.at}"], every_s=given.every,
    )  # fmt: skip
    return check_leaks(line, check, children=given.children)
