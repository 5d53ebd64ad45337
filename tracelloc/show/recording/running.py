"""Tells viewers where the recordings of running processes are.

Each recorder keeps a small file named after the process, locked for as long as it runs, in a
directory that only its own user, or root, can write to.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

from tracelloc.errors import TargetError

_OF_ROOT: Final = Path("/run/tracelloc")
_LONGEST: Final = 1 << 14


class StartedProcess(Protocol):
    """A process that is identified by PID and start time, as the kernel may reuse PIDs."""

    @property
    def pid(self) -> int:
        """The process ID."""

    def start_ticks(self) -> int:
        """Returns the start time in clock ticks since boot. Raises TargetError."""


def directories() -> list[Path]:
    """Returns the directories of recorders' files: root's, and the user's if there is one."""
    own = os.environ.get("XDG_RUNTIME_DIR", "")
    return [_OF_ROOT, *([Path(own) / "tracelloc"] if own.startswith("/") else [])]


def _name(process: StartedProcess) -> str:
    return f"{process.pid}-{process.start_ticks()}"


@contextmanager
def noted(process: StartedProcess, recording: Path) -> Iterator[None]:
    """Lets viewers find a process's recording within the context; ignores errors."""
    found = directories()
    directory = found[0] if os.geteuid() == 0 else found[-1]
    path, descriptor = directory, -1
    with suppress(OSError, TargetError):
        path = directory / _name(process)
        directory.mkdir(mode=0o755, exist_ok=True)
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        os.fchmod(descriptor, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(descriptor, os.fsencode(recording.absolute()))
    try:
        yield
    finally:
        if descriptor >= 0:
            with suppress(OSError):
                path.unlink()
            os.close(descriptor)


def recording_of(process: StartedProcess) -> Path | None:
    """Returns the path to which a process is being recorded; None if unknown."""
    for directory in directories():
        with suppress(OSError, TargetError):
            # Another user's directory may have a pipe there, or a link.
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
            descriptor = os.open(directory / _name(process), flags)
            try:
                status = os.fstat(descriptor)
                is_trusted = stat.S_ISREG(status.st_mode) and status.st_uid in (0, os.geteuid())
                if is_trusted and _is_locked(descriptor):
                    return Path(os.fsdecode(os.read(descriptor, _LONGEST)))
            finally:
                os.close(descriptor)
    return None


def _is_locked(descriptor: int) -> bool:
    """Whether the recorder of a file still runs: a killed one leaves no lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
