"""Finds the process that a command line names by -p PID, -n NAME, a plain word or a command.

It imports nothing slow to refuse a wrong process, and nothing of ``record`` to show help.
"""

# ruff: noqa: PLC0415
from __future__ import annotations

import errno
import os
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from tracelloc.command.arguments import add_option, is_pid, pid_type
from tracelloc.errors import ProgramError, UsageError

if TYPE_CHECKING:
    from tracelloc.command.commandline import Options
    from tracelloc.record.process.procfs import Process
import itertools
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tracelloc.errors import TargetError, scarcity
from tracelloc.startup import import_numpy


def add_process(parser: ArgumentParser, about: str = "") -> None:
    """Adds ``-p``, ``-n`` and a plain word for either (see ``take_plain``) if they are missing."""
    name = "its name in ps, executable, argv[0] or script, instead"
    if about:
        add_option(parser, "-p --pid PID", about, type=pid_type)
        add_option(parser, "-n --name NAME", name, type=str)
    about = "PID or name of the process, without -p or -n"
    parser.add_argument("process", metavar="PROCESS", nargs="?", help=about)


def take_plain(given: Namespace) -> None:
    """Stores a plain word as the value of ``-p`` or ``-n``. Raises UsageError."""
    word = given.process
    named = [option for option in ("pid", "name", "group_name") if getattr(given, option, None)]
    if word is not None and named and getattr(given, "what", word) is None:
        given.what, word = word, None
    if len(named) + (word is not None) > 1:
        options = [f"--{option.removesuffix('_name')}" for option in named]
        both = " and ".join([*options, word or ""][:2])
        raise UsageError(f"{both} both name a process", hint="leave out one")
    if word is not None and is_pid(word):
        given.pid = int(word)
    elif word is not None:
        given.name = word


def named_pid(given: Namespace) -> int | None:
    """Returns the PID of the named process; None if none is named. Raises TargetError."""
    from tracelloc.record.process.identity import find_target

    pid: int | None = given.pid
    return pid if given.name is None else find_target(given.name)


def named_process(given: Namespace) -> Process:
    """Opens the named process. Raises UsageError if none is named, and TargetError."""
    from tracelloc.record.process.identity import open_target

    pid = named_pid(given)
    if pid is None:
        raise UsageError("a process is required", hint="write its PID or its name")
    return open_target(pid)


def choose_process(*, plain: bool, note: str = "") -> int | None:
    """Has the user choose a process; None: none is. ``note``: why it is asked for again."""
    import_numpy()
    from tracelloc.record.process.processlist import ProcessScan
    from tracelloc.ui.application import ScreenApp, prepare_screens
    from tracelloc.ui.driver import restored_terminal
    from tracelloc.ui.picker import PickerScreen

    prepare_screens(plain=plain)
    with restored_terminal():
        return ScreenApp(PickerScreen(ProcessScan().list_at_once, note=note)).run()


def settle_target(given: Options) -> None:
    """Finds the PID of a name. Raises TargetError, or ProgramError if a program is missing."""
    if given.command and not _may_exist(given.command[0]):
        raise ProgramError(given.command[0], errno.ENOENT)
    has_name = given.pid is not None or given.name is not None
    if has_name and not (given.command or given.waits):
        given.pid, given.name = named_process(given).pid, None


def _may_exist(program: str) -> bool:
    """Whether a program's file exists, or may exist where this process can't look."""
    for place in [""] if "/" in program else os.get_exec_path():
        try:
            os.stat(os.path.join(place, program))  # noqa: PTH118 - as execvp joins them
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            pass
        return True
    return False


def report_numbers(every_s: float | None, most: int | None) -> Iterator[int]:
    """Yields the number of each report, from 1, when it is due: once if ``every_s`` is None."""
    for number in itertools.count(1):
        began_s = time.monotonic()
        yield number
        sys.stdout.flush()
        if every_s is None or number == most:
            return
        time.sleep(max(0.0, began_s + every_s - time.monotonic()))


@contextmanager
def reading_heap() -> Iterator[None]:
    """Raises TargetError instead of an OSError or MemoryError of reading a process's heap."""
    try:
        yield
    except MemoryError as error:
        raise TargetError("the heap can't be read: there is no memory left") from error
    except OSError as error:
        raise TargetError(f"the heap can't be read: {scarcity(error) or error}") from error
