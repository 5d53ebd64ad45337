"""Identity of a process: its program, its user, its namespaces, its container, its machine."""

import os
import pwd
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

from tracelloc.architecture import native
from tracelloc.errors import TargetError, TracellocError
from tracelloc.model.codefiles import base_name
from tracelloc.model.process import Target
from tracelloc.record.process.procfs import PROC, Process
from tracelloc.system.groupnames import GroupNames
from tracelloc.text import format_time, printable

_INITIAL: Final = 0xEFFFFFFC  # PROC_PID_INIT_INO, include/linux/proc_ns.h

PidNamespace = tuple[int, int]  # Device and inode


def pid_namespace() -> PidNamespace | None:
    """Returns tracelloc's PID namespace; None if it is the initial one."""
    found = _at("/proc/self/ns/pid")
    return None if found[1] == _INITIAL else found


def absence_hint() -> str:
    """Returns a hint for messages that a PID may be one of another namespace; empty if not."""
    hint = (
        "tracelloc runs in a container's PID namespace: name the PID that the process has there, "
        "or run tracelloc outside of it (--pid=host)"
    )
    return "" if pid_namespace() is None else hint


def other_pid_namespace(process: Process) -> PidNamespace | None:
    """Returns a process's PID namespace; None if it is tracelloc's, or unknown."""
    with suppress(OSError):
        found = _at(f"{process.memory_directory}/ns/pid")
        return None if found == _at("/proc/self/ns/pid") else found
    return None


def is_in_our_container(process: Process) -> bool:
    """Returns whether tracelloc runs in a container, and a process runs in that one, too."""
    directory = process.memory_directory
    with suppress(OSError):
        return pid_namespace() is not None and all(
            _at(f"{directory}/ns/{name}") == _at(f"/proc/self/ns/{name}") for name in ("pid", "mnt")
        )
    return False


def _at(path: str) -> PidNamespace:
    status = os.stat(path)
    # The kernel's own encoding of a device number (new_encode_dev, include/linux/kdev_t.h).
    major, minor = os.major(status.st_dev), os.minor(status.st_dev)
    return minor & 0xFF | major << 8 | (minor & ~0xFF) << 12, status.st_ino


_LARGEST_BYTES: Final = 1 << 16


def target_of(process: Process, exec_count: int, number: int) -> Target:
    """Describes a process as a target. Raises TargetError and PrivilegeError."""
    owner = GroupNames().name(_control_groups(process))
    return Target(
        process.pid,
        process.command(),
        process.parent_pid(),
        exec_count,
        number,
        executable=process.executable() or "",
        container_id=owner.container_id,
        host=os.uname().nodename,
        machine=native().short_name,
        pod_uid=owner.pod_uid,
        namespace=owner.namespace,
        pod=owner.pod,
        container=owner.container,
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
    with suppress(OSError), open(process.memory_directory / "cgroup", "rb") as stream:
        return stream.read(_LARGEST_BYTES).decode(errors="replace")
    return ""


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


_INTERPRETER: Final = re.compile(r"-?(python|perl|ruby|node|php|bash|dash|sh|lua|guile)[\d.]*")
_CODE_FOLLOWS: Final = ("-c", "-e", "-r")
_MOST_LISTED: Final = 10  # Processes of a name that an error lists: those with the largest PIDs
_MOST_SHOWN: Final = 60
# Options of interpreters whose value is a separate word.
_VALUE_FOLLOWS: Final = ("-X", "-W", "-I", "-o", "-d", "--require", "--import")


def find_target(name: str) -> int:
    """Returns the PID of the only process of this name. Raises TargetError, which lists several."""
    found = [process for process in _processes(PROC) if name in _names_of(process)]
    if not found:
        hint = "pgrep -af finds the PID for -p"
        raise TargetError(f"no process is called {printable(name)}", hint=hint)
    if len(found) == 1:
        return found[0].pid
    lines = [_line_of(process) for process in found[-_MOST_LISTED:]]
    if len(lines) < len(found):
        lines.append(f"    and {len(found) - len(lines):,} more; pgrep -af lists all")
    which = f"{len(found)} processes are called {printable(name)}, choose one by -p:"
    raise TargetError("\n".join([which, *lines]))


def is_running(name: str, root: Path = PROC) -> bool:
    """Returns whether any process has this name (see ``find_target``)."""
    return any(name in _names_of(process) for process in _processes(root))


def _processes(root: Path) -> Iterator[Process]:
    for pid in sorted(int(entry.name) for entry in root.iterdir() if entry.name.isdecimal()):
        process = Process(pid, root)
        # A process that ends meanwhile, or can't be parsed, must not hide others.
        with suppress(TracellocError, OSError, ValueError, IndexError):
            if pid == os.getpid() or not process.exists() or process.is_kernel_thread():
                continue
            yield process


def _names_of(process: Process) -> set[str]:
    try:
        names = {process.command(), base_name(process.executable() or "")}
        arguments = process.arguments()
    except (TracellocError, OSError):  # it has ended meanwhile
        return set()
    script = script_of(arguments)
    return names | {base_name(word) for word in (*arguments[:1], script) if word}


def script_of(arguments: Sequence[str]) -> str | None:
    """Returns the script or module in an interpreter's command line; None if not an interpreter."""
    if not arguments or not _INTERPRETER.fullmatch(base_name(arguments[0])):
        return None
    words = iter(arguments[1:])
    for word in words:
        if word == "-m":
            return next(words, None)
        if word in _CODE_FOLLOWS:
            return None
        if not word.startswith("-"):
            return word
        if word in _VALUE_FOLLOWS:
            next(words, None)
    return None


def _line_of(process: Process) -> str:
    try:
        user = user_name(process.user_ids()[0])
    except IndexError:
        user = "?"
    program, *arguments = process.arguments() or [process.command()]
    command = printable(" ".join([base_name(program), *arguments]))
    if len(command) > _MOST_SHOWN:
        command = f"{command[: _MOST_SHOWN - 1]}…"
    return f"    {process.pid:>7}  {user:<12} {format_time(process.started_s())}  {command}"


def open_target(pid: int) -> Process:
    """Returns the process with a PID. Raises TargetError with the reason if it is untraceable."""
    process = Process(pid)
    if pid == os.getpid():
        raise TargetError("tracelloc cannot trace itself", hint="name another process")
    if not process.directory.exists():
        raise TargetError(f"there is no process {pid}", hint=absence_hint())
    if process.is_kernel_thread():
        what = f"{pid} ({printable(process.command())}) is a kernel thread"
        raise TargetError(what, hint="name a user process")
    if not process.exists():
        raise TargetError(f"process {pid} ({printable(process.command())}) has already ended")
    # If it is not readable, attaching reports why.
    with suppress(OSError):
        check_bits(process)
    return process


def check_bits(process: Process) -> None:
    """Raises TargetError if a process runs a 32-bit program, OSError if that can't be read."""
    if is_32_bit(process):
        what = f"process {process.pid} ({printable(process.command())}) is a 32-bit program"
        raise TargetError(what, hint="tracelloc traces 64-bit programs")


def is_32_bit(process: Process) -> bool:
    """Returns whether a process runs a 32-bit program. Raises OSError."""
    with open(process.memory_directory / "exe", "rb") as executable:
        # The fifth byte of an ELF file is its class (EI_CLASS).
        return executable.read(5)[4:] == b"\x01"
