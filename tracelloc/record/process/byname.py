"""Finds the process with a given name, and opens processes; imports nothing slow."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from tracelloc.errors import TargetError, TracellocError
from tracelloc.model.codefiles import base_name
from tracelloc.record.process.identity import absence_hint, user_name
from tracelloc.record.process.procfs import PROC, Process
from tracelloc.text import format_time, printable

_INTERPRETER: Final = re.compile(r"-?(python|perl|ruby|node|php|bash|dash|sh|lua|guile)[\d.]*")
_CODE_FOLLOWS: Final = ("-c", "-e", "-r")
_MOST_LISTED: Final = 10  # Processes of a name that an error lists: those with the largest PIDs
_LONGEST_COMMAND: Final = 60
# Options of interpreters whose value is a separate word.
_VALUE_FOLLOWS: Final = ("-X", "-W", "-I", "-o", "-d", "--require", "--import")


def find_target(name: str) -> int:
    """Returns the PID of the only process of this name. Raises TargetError, which lists several."""
    found = [process for process in _processes(PROC) if name in _names_of(process)]
    if not found:
        raise TargetError(
            f"no process is called {printable(name)}", hint="pgrep -af finds the PID for -p"
        )
    if len(found) == 1:
        return found[0].pid
    shown = [_line_of(process) for process in found[-_MOST_LISTED:]]
    if len(shown) < len(found):
        shown.append(f"    and {len(found) - len(shown):,} more; pgrep -af lists all")
    lines = "\n".join(shown)
    raise TargetError(
        f"{len(found)} processes are called {printable(name)}, choose one by -p:\n{lines}"
    )


def is_running(name: str, root: Path = PROC) -> bool:
    """Returns whether any process has this name (see ``find_target``)."""
    return any(name in _names_of(process) for process in _processes(root))


def _processes(root: Path) -> Iterator[Process]:
    for pid in sorted(int(entry.name) for entry in root.iterdir() if entry.name.isdecimal()):
        process = Process(pid, root)
        # A process that ends meanwhile, or can't be parsed, must not hide others.
        with suppress(TracellocError, OSError, ValueError, IndexError):
            if pid == os.getpid() or not process.exists() or process.is_kernel_thread():
                continue
            yield process


def _names_of(process: Process) -> set[str]:
    try:
        names = {process.command(), base_name(process.executable() or "")}
        arguments = process.arguments()
    except (TracellocError, OSError):  # it has ended meanwhile
        return set()
    script = script_of(arguments)
    return names | {base_name(word) for word in (*arguments[:1], script) if word}


def script_of(arguments: Sequence[str]) -> str | None:
    """Returns the script or module in an interpreter's command line; None if not an interpreter."""
    if not arguments or not _INTERPRETER.fullmatch(base_name(arguments[0])):
        return None
    words = iter(arguments[1:])
    for word in words:
        if word == "-m":
            return next(words, None)
        if word in _CODE_FOLLOWS:
            return None
        if not word.startswith("-"):
            return word
        if word in _VALUE_FOLLOWS:
            next(words, None)
    return None


def _line_of(process: Process) -> str:
    try:
        user = user_name(process.user_ids()[0])
    except IndexError:
        user = "?"
    program, *arguments = process.arguments() or [process.command()]
    command = " ".join([base_name(program), *arguments])
    started = format_time(process.started_s())
    command = printable(command)
    if len(command) > _LONGEST_COMMAND:
        command = f"{command[: _LONGEST_COMMAND - 1]}…"
    return f"    {process.pid:>7}  {user:<12} {started}  {command}"


def open_target(pid: int) -> Process:
    """Returns the process with a PID. Raises TargetError with the reason if it is untraceable."""
    process = Process(pid)
    if pid == os.getpid():
        raise TargetError("tracelloc cannot trace itself", hint="name another process")
    if not process.directory.exists():
        raise TargetError(f"there is no process {pid}", hint=absence_hint())
    if process.is_kernel_thread():
        raise TargetError(
            f"{pid} ({printable(process.command())}) is a kernel thread", hint="name a user process"
        )
    if not process.exists():
        raise TargetError(f"process {pid} ({printable(process.command())}) has already ended")
    # If it is not readable, attaching reports why.
    with suppress(OSError):
        check_bits(process)
    return process


def check_bits(process: Process) -> None:
    """Raises TargetError if a process runs a 32-bit program, OSError if that can't be read."""
    if is_32_bit(process):
        raise TargetError(
            f"process {process.pid} ({printable(process.command())}) is a 32-bit program",
            hint="tracelloc traces 64-bit programs",
        )


def is_32_bit(process: Process) -> bool:
    """Returns whether a process runs a 32-bit program. Raises OSError."""
    with open(process.memory_directory / "exe", "rb") as executable:
        # The fifth byte of an ELF file is its class (EI_CLASS).
        return executable.read(5)[4:] == b"\x01"
