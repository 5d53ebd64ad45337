"""The entry point of the command: selects a subcommand or a trace, and reports its errors."""

import os
import signal
import sys
import time
from collections.abc import Sequence

from tracelloc.command import commandline
from tracelloc.command.failures import report_failure
from tracelloc.command.parser import parse_subcommand
from tracelloc.command.processargument import choose_process, settle_target
from tracelloc.command.subcommands import SubcommandGroup, find_subcommand, subcommand_names
from tracelloc.startup import STARTUP, import_numpy, take_own_variables


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program. Returns its exit status: 0 done, 1 error, 2 usage, 3 a broken rule."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    began_s = time.monotonic()
    debug = "--debug" in arguments
    take_own_variables()
    try:
        try:
            return _command(arguments, began_s)
        finally:
            sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - a last resort: it is one line
        return report_failure(error, debug=debug)


def _command(arguments: list[str], began_s: float) -> int:
    if arguments and arguments[0].startswith("--log-file="):
        arguments = _in_our_order(arguments)
    if arguments and arguments[0] in subcommand_names():
        _take_interrupts()
        return _run_subcommand(arguments[0], arguments[1:])
    given = commandline.parse_command_line(arguments, terminal=has_screen())
    STARTUP.is_quiet = given.quiet
    is_attaching = given.mode is commandline.Mode.TUI and not given.command and not given.waits
    STARTUP.begin(commandline.what_begins(given), frame=is_attaching and given.pid is not None)
    try:
        return _run(given, began_s)
    finally:
        STARTUP.end()


def _in_our_order(arguments: list[str]) -> list[str]:
    """Reorders the words of CTest's memory check (CMake's sources, ``cmCTestMemCheckHandler``)."""
    log, *rest = arguments
    at = next((n for n, word in enumerate(rest) if n and not word.startswith("-")), len(rest))
    before = rest[1:at] if rest[at - 1 : at] == ["--"] else [*rest[1:at], "--"]
    return [*rest[:1], log, *before, *rest[at:]]


def _run_subcommand(name: str, arguments: list[str]) -> int:
    subcommand = find_subcommand(name)
    command: tuple[str, ...] = ()
    if subcommand.takes_command:
        arguments, command = commandline.split_command(arguments)
    given = parse_subcommand(subcommand, arguments)
    given.command = command
    STARTUP.is_quiet = given.quiet
    if subcommand.group is SubcommandGroup.FILES:  # Their content decides how much memory it takes
        import_numpy()
        from tracelloc.system.memorylimits import default_budget, limit_own_memory  # noqa: PLC0415

        limit_own_memory(default_budget() // 2)
    return subcommand.module.run(given) or 0


def has_screen() -> bool:
    """Whether the standard streams are terminals on which the screen can be drawn."""
    try:
        all_are = all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    except (AttributeError, ValueError):  # closed
        return False
    return all_are and os.environ.get("TERM", "") not in ("", "dumb")


def _run(given: commandline.Options, began_s: float) -> int:
    settle_target(given)
    # Imported late: --help, wrong calls and the list of processes need none of the slow imports.
    is_chosen = given.mode is commandline.Mode.TUI and not given.names_target
    if is_chosen:
        _take_interrupts()
        given.pid = choose_process(plain=given.plain)
        if given.pid is None:
            return 0
        STARTUP.begin(commandline.what_begins(given), frame=True)
    from tracelloc.record.worker.zygote import ZYGOTE  # noqa: PLC0415

    # It gets ready while this process does.
    ZYGOTE.start()
    import_numpy()
    from tracelloc.command.options import completed  # noqa: PLC0415

    options = completed(given)
    for output in options.outputs:
        output.at(options.pid or os.getpid(), time.time()).check()
    if options.mode is commandline.Mode.TUI:
        from tracelloc.command.screen import run_screen  # noqa: PLC0415

        _take_interrupts()
        return run_screen(options, is_chosen=is_chosen)
    from tracelloc.command.lifecycle import start_of  # noqa: PLC0415
    from tracelloc.command.reports import Reports  # noqa: PLC0415
    from tracelloc.command.run import trace  # noqa: PLC0415

    _take_interrupts()
    front = Reports(
        options.report, has_stdout=not options.command, began_s=began_s,
        is_every_full=options.json_full,
    )  # fmt: skip
    return trace(options, start_of(options), front)


def _take_interrupts() -> None:
    """Makes ^C raise an exception; until this call, it ends the process at once."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
