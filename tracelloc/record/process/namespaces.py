"""PID namespaces, in which a process's threads may have other ids than tracelloc sees."""

from __future__ import annotations

import os
from typing import Final

from tracelloc.record.process.procfs import Process

_INITIAL: Final = 0xEFFFFFFC  # PROC_PID_INIT_INO, include/linux/proc_ns.h

PidNamespace = tuple[int, int]  # Device and inode


def pid_namespace() -> PidNamespace | None:
    """Returns tracelloc's PID namespace; None if it is the initial one."""
    found = _at("/proc/self/ns/pid")
    return None if found[1] == _INITIAL else found


def absence_hint() -> str:
    """Returns why a PID may be unknown: it is one of another namespace."""
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
    """Returns whether tracelloc runs in a container, and the process in the same one."""
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
