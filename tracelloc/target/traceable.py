"""Whether a process can be traced at all, said before anything is done to it."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tracelloc.errors import TargetError, TracellocError
from tracelloc.target.procfs import PROC, Process, base_name
from tracelloc.text import printable


def open_target(pid: int) -> Process:
    """The process with this PID. Raises TargetError with the reason if it can't be traced."""
    process = Process(pid)
    if pid == os.getpid():
        raise TargetError("tracelloc cannot trace itself", hint="name another process")
    if not process.directory.exists():
        raise TargetError(f"there is no process {pid}")
    if process.is_kernel_thread():
        raise TargetError(
            f"{pid} ({process.command()}) is a kernel thread", hint="name a user process"
        )
    if not process.exists():
        raise TargetError(f"process {pid} ({process.command()}) has already ended")
    _check_bits(process)
    return process


def find_target(name: str, root: Path = PROC) -> int:
    """The PID of the process with this name: its short name, or its program's or first word's.

    Raises TargetError if there is none or, with a list of them, if there are several.
    """
    found = [process for process in _processes(root) if name in _names_of(process)]
    if not found:
        raise TargetError(f"no process is called {printable(name)}", hint="-p takes a PID")
    if len(found) == 1:
        return found[0].pid
    lines = "\n".join(_line_of(process) for process in found)
    raise TargetError(
        f"{len(found)} processes are called {printable(name)}, choose one by -p:\n{lines}"
    )


def _processes(root: Path) -> Iterator[Process]:
    """Those that could be meant, by PID."""
    for pid in sorted(int(entry.name) for entry in root.iterdir() if entry.name.isdecimal()):
        process = Process(pid, root)
        with suppress(TracellocError):
            if pid == os.getpid() or not process.exists() or process.is_kernel_thread():
                continue
            yield process


def _names_of(process: Process) -> set[str]:
    try:
        names = {process.command(), base_name(process.executable() or "")}
        return names | {base_name(word) for word in process.arguments()[:1]}
    except TracellocError:  # it has ended meanwhile
        return set()


def _line_of(process: Process) -> str:
    """PID, user, when it was started, and its command line."""
    try:
        user_id = process.user_ids()[0]
        user = pwd.getpwuid(user_id).pw_name
    except (IndexError, KeyError):
        user = str(process.user_ids()[:1])
    command = " ".join(process.arguments()) or process.command()
    started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(process.started_s()))
    return f"    {process.pid:>7}  {user:<12} {started}  {printable(command)[:200]}"


def _check_bits(process: Process) -> None:
    """The fifth byte of an ELF file says 32 or 64 bits (EI_CLASS)."""
    try:
        with open(process.memory_directory / "exe", "rb") as executable:
            head = executable.read(5)
    except OSError:
        # Not readable: attaching will say why.
        return
    if len(head) == 5 and head[4] == 1:
        raise TargetError(
            f"process {process.pid} ({process.command()}) is a 32-bit program",
            hint="tracelloc traces 64-bit programs",
        )
