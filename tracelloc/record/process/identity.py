"""Identity of a traced process: its program, its container, its machine."""

from __future__ import annotations

import os
import re
from typing import Final

from tracelloc.errors import TargetError
from tracelloc.model.process import Target
from tracelloc.record.process.procfs import Process

_CONTAINER: Final = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
"""The ID by which Docker, containerd, CRI-O and podman name control groups (cgroups(7))."""
_LARGEST_BYTES: Final = 1 << 16


def target_of(process: Process, exec_count: int, number: int) -> Target:
    """Describes a process as a target. Raises TargetError and PrivilegeError."""
    return Target(
        process.pid,
        process.command(),
        process.parent_pid(),
        exec_count,
        number,
        executable=process.executable() or "",
        container_id=_container_id(process),
        host=os.uname().nodename,
    )


def _container_id(process: Process) -> str:
    """Returns the innermost container's ID; empty if there is none, or it is unknown."""
    try:
        with open(process.memory_directory / "cgroup", "rb") as stream:
            text = stream.read(_LARGEST_BYTES).decode(errors="replace")
    except OSError:
        return ""
    found: list[str] = _CONTAINER.findall(text)
    return found[-1] if found else ""


def open_end(pid: int, *, follow: bool) -> int:
    """Opens a descriptor that is readable at the end; with ``follow``, the follower signals it."""
    if follow:
        return os.eventfd(0, os.EFD_CLOEXEC)
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError as error:
        raise TargetError(f"there is no process {pid}") from error
