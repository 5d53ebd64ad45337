"""Identity of a process: its program, its user, its namespaces, its container, its machine."""

import os
import pwd
import re
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

from tracelloc.architecture import native
from tracelloc.errors import TargetError
from tracelloc.model.process import Target
from tracelloc.record.process.procfs import Process

_INITIAL: Final = 0xEFFFFFFC  # PROC_PID_INIT_INO, include/linux/proc_ns.h

PidNamespace = tuple[int, int]  # Device and inode


def pid_namespace() -> PidNamespace | None:
    """Returns tracelloc's PID namespace; None if it is the initial one."""
    found = _at("/proc/self/ns/pid")
    return None if found[1] == _INITIAL else found


def absence_hint() -> str:
    """Returns a hint for messages that a PID may be one of another namespace; empty if not."""
    if pid_namespace() is None:
        return ""
    return (
        "tracelloc runs in a container's PID namespace: name the PID that the process has there, "
        "or run tracelloc outside of it (--pid=host)"
    )


def other_pid_namespace(process: Process) -> PidNamespace | None:
    """Returns a process's PID namespace; None if it is tracelloc's, or unknown."""
    try:
        found = _at(f"{process.memory_directory}/ns/pid")
    except OSError:
        return None
    return None if found == _at("/proc/self/ns/pid") else found


def is_in_our_container(process: Process) -> bool:
    """Returns whether tracelloc runs in a container, and a process runs in that one, too."""
    if pid_namespace() is None:
        return False
    names, places = ("pid", "mnt"), (f"{process.memory_directory}/ns", "/proc/self/ns")
    try:
        theirs, ours = ([_at(f"{place}/{name}") for name in names] for place in places)
    except OSError:
        return False
    return theirs == ours


def _at(path: str) -> PidNamespace:
    status = os.stat(path)
    # The kernel's own encoding of a device number (new_encode_dev, include/linux/kdev_t.h).
    major, minor = os.major(status.st_dev), os.minor(status.st_dev)
    return minor & 0xFF | major << 8 | (minor & ~0xFF) << 12, status.st_ino


# The ID by which Docker, containerd, CRI-O and podman name control groups (cgroups(7)).
_CONTAINER: Final = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
# A pod's UID in a control group's path; systemd's names have underscores in it.
POD: Final = r"[/-]pod(?P<id>[0-9a-f]{8}[-_][-_0-9a-f]{27})"
_POD: Final = re.compile(rf"{POD}(?![-_0-9a-f])")
_LARGEST_BYTES: Final = 1 << 16


def target_of(process: Process, exec_count: int, number: int) -> Target:
    """Describes a process as a target. Raises TargetError and PrivilegeError."""
    groups = _control_groups(process)
    return Target(
        process.pid,
        process.command(),
        process.parent_pid(),
        exec_count,
        number,
        executable=process.executable() or "",
        container_id=_last(_CONTAINER, groups),
        host=os.uname().nodename,
        machine=native().short_name,
        pod_uid=_last(_POD, groups).replace("_", "-"),
    )


def forked_target(process: Process, parent: Target, number: int) -> Target:
    """Describes a child process that was just forked. Raises TargetError and PrivilegeError."""
    return replace(
        parent,
        pid=process.pid,
        command=process.command(),
        parent_pid=process.parent_pid(),
        exec_count=0,
        number=number,
        has_ended=False,
    )


def renamed_target(process: Process, before: Target, exec_count: int) -> Target:
    """Describes a process that has executed another program; unchanged if it has ended."""
    command, executable = before.command, before.executable
    with suppress(TargetError):
        command, executable = process.command(), process.executable() or ""
    return replace(before, command=command, executable=executable, exec_count=exec_count)


def _control_groups(process: Process) -> str:
    try:
        with open(process.memory_directory / "cgroup", "rb") as stream:
            return stream.read(_LARGEST_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _last(pattern: re.Pattern[str], groups: str) -> str:
    found: list[str] = pattern.findall(groups)
    return found[-1] if found else ""


def open_end(pid: int, *, follow: bool) -> int:
    """Opens a descriptor that is readable once a process ends, or the follower signals it."""
    if follow:
        return os.eventfd(0, os.EFD_CLOEXEC)
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError as error:
        raise TargetError(f"there is no process {pid}") from error


_LONGEST_COMMAND: Final = 4096  # Most bytes of a command line that are read


@cache
def user_name(uid: int) -> str:
    """Returns a user's name, or the number if there is no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def command_line(directory: Path) -> str:
    """Returns a process's command line (proc_pid_cmdline(5)), or nothing. Raises OSError."""
    with open(directory / "cmdline", "rb", buffering=0) as file:
        words = file.read(_LONGEST_COMMAND).rstrip(b"\0").split(b"\0")
    return b" ".join(words).decode(errors="replace")
