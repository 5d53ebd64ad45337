"""Injects the library into programs, and is killed at one of its steps; says what came of it.

    python -m tests.breakoff EVERY COMMAND...

Each step that changes anything in the stopped program or lets it go on, and is a multiple of EVERY,
is tried with a program of its own. The program must answer as before, also after the next
injection, which removes what the first one has left: descriptors and incomplete mappings.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tracelloc.architecture import native
from tracelloc.architecture.aarch64 import AARCH64
from tracelloc.record.mallocs.discovery import EVERYTHING, allocators_in
from tracelloc.record.process import ptrace
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.sources.injected.injector import Injection

STEPS = (
    "seize", "interrupt", "set_registers", "set_signal_mask", "resume_to_call", "resume", "detach",
)  # fmt: skip


def counted(function: Callable[..., Any], counts: list[int], last: int) -> Callable[..., Any]:
    """The function; the call with that number kills this process instead."""

    def call(*arguments: Any) -> Any:
        counts.append(0)
        if len(counts) == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments)

    return call


def inject(pid: int, last: int, *, withdraws: bool) -> None:
    """Is killed at that step of injecting the library, or of withdrawing it."""
    space = AddressSpace(Process(pid))
    space.refresh()
    injection = Injection(space, allocators_in(space.modules, EVERYTHING))
    if withdraws:
        injection.begin()
    counts: list[int] = []
    for name in STEPS:
        setattr(ptrace, name, counted(getattr(ptrace, name), counts, last))
    os.pwrite = counted(os.pwrite, counts, last)
    if withdraws:
        injection.withdraw()
    else:
        injection.begin()
    if last < sys.maxsize:
        os.write(1, f"{len(counts)} steps\n".encode())


def forked(pid: int, last: int, *, withdraws: bool) -> int:
    """Injects the library in a child. Returns its status, that of waitpid(2)."""
    child = os.fork()
    if not child:
        signal.alarm(60)
        inject(pid, last, withdraws=withdraws)
        os._exit(0)
    return os.waitpid(child, 0)[1]


def ours(pid: int) -> list[str]:
    """Returns a process's descriptors and mappings of the library."""
    fds = [str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()]
    maps = [
        line.split(maxsplit=5)[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
    ]
    return [path.strip() for path in (*fds, *maps) if path.startswith("/memfd:")]


# One page of the shared memory, and the library's parts; on 64-bit Arm, two and a gap.
PARTS = 3 if native() is AARCH64 else 4
WHOLE = [
    *["/memfd:libtracelloc-injected.so (deleted)"] * PARTS, "/memfd:tracelloc-preload (deleted)",
]  # fmt: skip


def is_through(command: Sequence[str], last: int, *, withdraws: bool) -> bool:
    """Tries one step. Returns whether there are not so many."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as program:
        assert program.stdout.readline() == "ready\n"
        status = forked(program.pid, last, withdraws=withdraws)
        for again in (False, True):
            if again and (
                forked(program.pid, sys.maxsize, withdraws=True) or ours(program.pid) != WHOLE
            ):
                os.write(1, f"step {last} {withdraws=}: {ours(program.pid)}\n".encode())
            program.stdin.write("5\n")
            program.stdin.flush()
            answer = program.stdout.readline()
            if answer != "done\n":
                os.write(1, f"step {last} {withdraws=}: {answer!r}\n".encode())
        program.kill()
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return not os.WIFSIGNALED(status)


def main() -> None:
    every = int(sys.argv[1])
    for withdraws in (False, True):
        last = every
        while not is_through(sys.argv[2:], last, withdraws=withdraws):
            last += every


if __name__ == "__main__":
    main()
