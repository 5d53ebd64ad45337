"""Traces a program that others start, from its first allocation.

``record/kernel/execcatcher.py`` has stopped its process at exec; from there on it is followed as a
program that tracelloc starts.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tracelloc.errors import TargetError
from tracelloc.record.kernel.execcatcher import ExecCatcher
from tracelloc.record.session.launch import Launch
from tracelloc.text import printable


class CaughtLaunch(Launch):
    """Follows a caught program; a ``follower.Watcher``."""

    def begin(self) -> None:
        """Lets the program run, and waits until it is traced. Raises TracellocError."""
        # The kernel has reported the exec before anyone followed the process.
        self.executed(self.program.pid, same_thread=True)
        super().begin()


def catch_program(name: str, note_waiting: Callable[[], None]) -> int:
    """Waits until a program of this name is executed. Returns the PID of its stopped process.

    ``note_waiting`` is called when none can be missed any more. Raises TargetError if it was not
    executed in a PID namespace that can be seen from here.
    """
    catcher = ExecCatcher(name)
    try:
        note_waiting()
        pid = catcher.wait()
    finally:
        catcher.close()
    if not Path(f"/proc/{pid}").exists():
        raise TargetError(
            f"{printable(name)} was stopped, but process {pid} can't be seen",
            hint="run tracelloc in the PID namespace of the host",
        )
    return pid
