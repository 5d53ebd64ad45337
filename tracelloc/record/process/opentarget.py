"""Opens the process that is to be looked at or traced; imports nothing slow."""

from __future__ import annotations

import os
from contextlib import suppress

from tracelloc.errors import TargetError
from tracelloc.record.process.namespaces import absence_hint
from tracelloc.record.process.procfs import Process
from tracelloc.text import printable


def open_target(pid: int) -> Process:
    """Returns the process with this PID. Raises TargetError with the reason if untraceable."""
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
    """Raises TargetError if the program is a 32-bit program, OSError if it can't be read."""
    if is_32_bit(process):
        raise TargetError(
            f"process {process.pid} ({printable(process.command())}) is a 32-bit program",
            hint="tracelloc traces 64-bit programs",
        )


def is_32_bit(process: Process) -> bool:
    """Returns whether the program is a 32-bit program. Raises OSError."""
    with open(process.memory_directory / "exe", "rb") as executable:
        # The fifth byte of an ELF file is its class (EI_CLASS).
        return executable.read(5)[4:] == b"\x01"
