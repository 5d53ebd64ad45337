"""Whether a process can be traced at all, said before anything is done to it."""

from __future__ import annotations

import os

from tracelloc.errors import TargetError
from tracelloc.procfs import Process


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
    if process.state() in "ZX":
        raise TargetError(f"process {pid} ({process.command()}) has already ended")
    _check_bits(process)
    return process


def _check_bits(process: Process) -> None:
    """The fifth byte of an ELF file says 32 or 64 bits (EI_CLASS)."""
    try:
        with open(process.directory / "exe", "rb") as executable:
            head = executable.read(5)
    except OSError:
        # Not readable: attaching will say why.
        return
    if len(head) == 5 and head[4] == 1:
        raise TargetError(
            f"process {process.pid} ({process.command()}) is a 32-bit program",
            hint="tracelloc traces 64-bit programs",
        )
