"""tracelloc where Yama lets nobody but root inspect others: ``python -m tests.yama ARGUMENTS``.

A stand-in for kernels that have it (kernel.yama.ptrace_scope): what is made up are its answers for
processes that are no children. Nothing else is.
"""

import errno
import os
import re
import sys
from collections.abc import Callable
from typing import Any

from tracelloc.command import cli
from tracelloc.record.process import memory, ptrace


def is_refused(pid: int) -> bool:
    """Whether Yama's scope 1 keeps us from attaching: no ancestor of the process is us."""
    while pid > 1:
        if pid == os.getpid():
            return False
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            pid = int(stat.read().rpartition(")")[2].split()[1])
    return True


def refuse_memory_file(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuses to open /proc/PID/mem."""
    if event == "open" and isinstance(arguments[0], str):
        found = re.fullmatch(r"/proc/(\d+)/mem", arguments[0])
        if found is not None and is_refused(int(found[1])):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), arguments[0])


def refusing(whole: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that fails with EPERM if its first argument, a PID, is another's."""

    def part(pid: int, *arguments: Any) -> Any:
        if is_refused(pid):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        return whole(pid, *arguments)

    return part


if __name__ == "__main__":
    sys.addaudithook(refuse_memory_file)
    memory.read_process = refusing(memory.read_process)
    ptrace.seize = refusing(ptrace.seize)
    sys.exit(cli.main())
