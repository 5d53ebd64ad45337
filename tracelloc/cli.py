"""The command: checks, starts, reports, and ends through one path that writes everything."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace

from tracelloc.command.options import Mode, Options, parse_options
from tracelloc.command.parser import SUBCOMMANDS
from tracelloc.errors import TracellocError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program. Returns its exit status: 0 done, 1 error, 2 usage, 3 a broken rule."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    debug = "--debug" in arguments
    try:
        try:
            return _command(arguments)
        finally:
            _spare_stdout()
    except TracellocError as error:
        if debug:
            traceback.print_exc()
        print(f"tracelloc: error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 0
    except Exception as error:  # noqa: BLE001 - a last resort, so that it is one line too
        if debug:
            traceback.print_exc()
        message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        print(f"tracelloc: error: {message}; this is a bug, --debug shows more", file=sys.stderr)
        return 1


def _command(arguments: list[str]) -> int:
    if arguments and arguments[0] in SUBCOMMANDS:
        from tracelloc.command.subcommands import run_subcommand  # noqa: PLC0415 - as below

        _heed_interrupts()
        return run_subcommand(arguments[0], arguments[1:])
    return _run(parse_options(arguments, terminal=_has_screen()))


def _has_screen() -> bool:
    """Whether there is a terminal that one can draw on: that is done on standard error."""
    try:
        all_are = all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    except (AttributeError, ValueError):  # closed
        return False
    return all_are and os.environ.get("TERM", "") not in ("", "dumb")


def _run(options: Options) -> int:
    if options.name is not None:
        from tracelloc.target.processlist import find_target  # noqa: PLC0415 - as below

        options = replace(options, pid=find_target(options.name))
    for output in options.outputs:
        output.at(options.pid or os.getpid(), time.time()).check()
    # Only now: --help and wrong usage need none of the slow imports.
    if options.mode is Mode.TUI:
        from tracelloc.ui.run import run_screen  # noqa: PLC0415

        _heed_interrupts()
        return run_screen(options)
    from tracelloc.command.lifecycle import start_of  # noqa: PLC0415
    from tracelloc.command.run import Reports, trace  # noqa: PLC0415

    _heed_interrupts()
    front = Reports(options.report, has_stdout=not options.command)
    return trace(options, start_of(options), front)


def _heed_interrupts() -> None:
    """From here on ^C is an exception; until then it ended us at once."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _spare_stdout() -> None:
    """A reader that went away must not make the interpreter complain when it exits."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
