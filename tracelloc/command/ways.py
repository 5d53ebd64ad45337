"""What works here without probes, for the user who was refused them."""

from __future__ import annotations

import os

from tracelloc.errors import PrivilegeError, TracellocError, UnsupportedError
from tracelloc.record.process.procfs import Process
from tracelloc.record.sources.preloaded.sharedarea import LIBRARY


def refusal_of_probes(why: TracellocError, process: Process) -> TracellocError:
    """Returns the error that a process can't be probed, with what works here instead."""
    pid, ways = process.pid, []
    if may_read := can_be_read(process):
        ways.append(f"tracelloc leaks -p {pid} and heap -p {pid}")
    if LIBRARY.exists():
        ways.append("tracelloc -- CMD")
        if not Process(os.getpid()).has_seccomp_filter():
            ways.append("LD_PRELOAD=$(tracelloc library-path) CMD, then -p")
        if may_read:
            ways.append(f"tracelloc -p {pid} --preload inject")
    works = f"here work {', '.join(ways)}; " if ways else ""
    is_missing = isinstance(why, UnsupportedError)
    how = why.hint if is_missing else "tracelloc doctor says how to get probes"
    return PrivilegeError(why.message, hint=f"{works}{how}")


def can_be_read(process: Process) -> bool:
    """Returns whether the kernel lets tracelloc read a process's memory (ptrace(2))."""
    try:
        os.close(os.open(process.memory_directory / "mem", os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
