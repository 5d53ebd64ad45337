"""The command: checks, starts, reports, and ends through one path that writes everything."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

from tracelloc.errors import TracellocError
from tracelloc.options import Options, parse_options


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program. Returns its exit status: 0 done, 1 error, 2 usage."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    debug = "--debug" in arguments
    try:
        return _run(parse_options(arguments))
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


def _run(options: Options) -> int:
    # Only now: --help and wrong usage need none of the slow imports.
    from tracelloc import system  # noqa: PLC0415
    from tracelloc.target import open_target  # noqa: PLC0415
    from tracelloc.tracer import Tracer  # noqa: PLC0415

    for output in options.outputs:
        output.check()
    process = open_target(options.pid)
    system.check_all()
    system.raise_file_limit()
    tracer = Tracer(process, options)
    try:
        tracer.run()
    finally:
        _spare_stdout()
    return 0


def _spare_stdout() -> None:
    """A reader that went away must not make the interpreter complain when it exits."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
