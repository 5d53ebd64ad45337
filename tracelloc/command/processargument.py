"""The process that a command line names, by -p PID, -n NAME or a plain word; the command, too.

Nothing slow is imported to refuse what there is not, and for help nothing of ``record``.
"""

from __future__ import annotations

import errno
import os
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from tracelloc.command.arguments import add_option, pid_type
from tracelloc.errors import ProgramError, UsageError

if TYPE_CHECKING:
    from tracelloc.record.process.procfs import Process


def add_process(parser: ArgumentParser, about: str, *, plain: bool = True) -> None:
    """``-p`` and ``-n``. ``plain``: a word without an option names the process as well."""
    add = partial(add_option, parser)
    add("-p --pid PID", about, type=pid_type)
    add("-n --name NAME", "its name in ps, executable, argv[0] or script, instead", type=str)
    if plain:
        add_plain_process(parser)


def add_plain_process(parser: ArgumentParser) -> None:
    """A process without an option; ``take_plain_process`` takes it."""
    about = "PID or name of the process, without -p or -n"
    parser.add_argument("process", metavar="PROCESS", nargs="?", help=about)


def take_plain_process(given: Namespace) -> None:
    """Takes a plain word for what ``-p`` or ``-n`` take. Raises UsageError."""
    word = given.process
    others = {"-p": given.pid, "-n": given.name, "--group": getattr(given, "group", None)}
    named = [option for option, value in others.items() if value is not None]
    if word is not None and named and getattr(given, "what", word) is None:
        given.what, word = word, None
    if len(named) + (word is not None) > 1:
        both = " and ".join([*named, word or ""][:2])
        raise UsageError(f"{both} both name a process", hint="leave out one")
    if word is None:
        return
    if not word.isdecimal():
        given.name = word
        return
    try:
        given.pid = pid_type(word)
    except ArgumentTypeError as error:
        raise UsageError(str(error)) from None


def could_be_process(word: str) -> bool:
    """Whether a plain word names a process, as far as one can tell."""
    from tracelloc.record.process.byname import is_running  # noqa: PLC0415

    return word.isdecimal() or is_running(word)


def named_pid(given: Namespace) -> int | None:
    """Returns the PID of the named process; None if none is named. Raises TargetError."""
    from tracelloc.record.process.byname import find_target  # noqa: PLC0415

    pid: int | None = given.pid
    return pid if given.name is None else find_target(given.name)


def named_process(given: Namespace) -> Process:
    """Opens the named process. Raises UsageError if none is named, and TargetError."""
    from tracelloc.record.process.opentarget import open_target  # noqa: PLC0415

    pid = named_pid(given)
    if pid is None:
        raise UsageError("a process is required", hint="write its PID or its name")
    return open_target(pid)


def settle_target(given: Namespace, command: Sequence[str]) -> None:
    """Finds the PID of a name. Raises TargetError or ProgramError for what there is not."""
    if command:
        _check_program(command[0])
    elif not given.pid is given.name is None and not given.wait:
        given.pid, given.name = named_process(given).pid, None


def _check_program(name: str) -> None:
    """Raises ProgramError if no such file can exist."""
    places = [""] if "/" in name else os.get_exec_path()
    for place in places:
        try:
            os.stat(os.path.join(place, name))  # noqa: PTH118 - as execvp joins them
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:  # the user who executes it may see more
            pass
        return
    raise ProgramError(name, errno.ENOENT)
