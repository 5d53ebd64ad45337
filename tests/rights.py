"""Runs a command with the rights that people first try a tool with. Needs root.

    python -m tests.rights root|container|nobpf|user [--beside PROGRAM [ARG...]] -- CMD [ARG...]

The checkout is at /mnt, in a mount namespace of its own.
``container``: as root in a container by Docker's defaults; ``nobpf``: as root with all
capabilities, in a container that refuses bpf(2); ``user``: an ordinary user without any.
"""

import argparse
import ctypes
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tracelloc.architecture import native

USER: Final = 65534  # nobody: the ordinary user
ROOT: Final = Path(__file__).parents[1]
SEEN_AT: Final = Path("/mnt")  # Where the command finds the checkout

# Docker Engine 28, docs.docker.com/engine/security/seccomp and /engine/containers/run: what a
# container may not call without further capabilities, by the machine's numbers, and what it may.
_REFUSED_BY_DOCKER: Final = {
    "x86_64": (
        135, 139, 153, 155, 156, 159, 161, 163, 164, 165, 166, 167, 168, 169, 170, 171, 172, 173,
        174, 175, 176, 177, 178, 179, 180, 205, 212, 227, 237, 238, 239, 246, 248, 249, 250, 256,
        272, 279, 298, 300, 303, 304, 305, 308, 312, 313, 320, 321, 323, *range(425, 434), 442,
    ),
    "aarch64": (
        18, 39, 40, 41, 42, 51, 58, 60, 89, 92, 97, 104, 105, 106, 112, 142, 161, 162, 170, 171,
        217, 218, 219, 224, 225, 235, 236, 237, 238, 239, 241, 262, 264, 265, 266, 268, 272, 273,
        280, 282, 294, *range(425, 434), 442,
    ),
}  # fmt: skip
# CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, SETPCAP, NET_BIND_SERVICE, NET_RAW,
# SYS_CHROOT, MKNOD, AUDIT_WRITE, SETFCAP.
_DOCKER_CAPABILITIES: Final = 0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31
_EPERM: Final = 1

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_NEW_MOUNTS: Final = 0x20000
_NEW_PIDS: Final = 0x20000000  # CLONE_NEWNS, CLONE_NEWPID, linux/sched.h
_BIND: Final = 1 << 12
_PRIVATE: Final = 1 << 18 | 1 << 14  # MS_BIND, MS_PRIVATE | MS_REC, sys/mount.h
_DROP_BOUNDING: Final = 24
_SET_SECCOMP: Final = 22, 2  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
_LAST_CAPABILITY: Final = Path("/proc/sys/kernel/cap_last_cap")


def _checked(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _refuse(calls: Sequence[int]) -> None:
    """Makes system calls fail with EPERM from here on (seccomp(2))."""
    load, equal, ret = 0x20, 0x15, 0x06
    lines = [(load, 0, 0, 0)]  # seccomp_data.nr
    lines += [(equal, len(calls) - n, 0, call) for n, call in enumerate(calls)]
    lines += [(ret, 0, 0, 0x7FFF0000), (ret, 0, 0, 0x00050000 | _EPERM)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
    program = struct.pack("HxxxxxxQ", len(lines), ctypes.addressof(code))
    buffer = ctypes.create_string_buffer(program)
    _checked(_LIBC.prctl(*_SET_SECCOMP, ctypes.c_void_p(ctypes.addressof(buffer)), 0, 0))


def _keep_capabilities(kept: Sequence[int]) -> None:
    """Gives up all other capabilities, for this program and those that it executes."""
    for number in range(int(_LAST_CAPABILITY.read_text()) + 1):
        if number not in kept:
            _checked(_LIBC.prctl(_DROP_BOUNDING, number, 0, 0, 0))
    mask = sum(1 << number for number in kept)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    header = ctypes.create_string_buffer(struct.pack("II", 0x20080522, 0))
    data = ctypes.create_string_buffer(struct.pack("6I", low, low, 0, high, high, 0))
    _checked(_LIBC.capset(header, data))


def _in_new_namespace() -> None:
    """Continues as the first process in a PID namespace of its own."""
    _checked(_LIBC.unshare(_NEW_PIDS))
    child = os.fork()
    if child:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF)
    _checked(_LIBC.mount(b"proc", b"/proc", b"proc", 0, None))


def _as_container() -> None:
    _in_new_namespace()
    # Docker begins the filter while it still may; the program gets fewer rights with its exec.
    _refuse(_REFUSED_BY_DOCKER[native().name])
    _keep_capabilities(_DOCKER_CAPABILITIES)


def _without_bpf() -> None:
    _in_new_namespace()
    _refuse([native().system_call("bpf")])


def _as_user() -> None:
    os.setgroups([])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)


TAKE: Final[dict[str, Callable[[], None]]] = {
    "root": lambda: None, "container": _as_container, "nobpf": _without_bpf, "user": _as_user,
}  # fmt: skip


def _begin(command: Sequence[str], variables: dict[str, str]) -> int:
    """Starts a program that nobody waits for before the end. Returns its PID."""
    with open(os.devnull, "r+") as null:
        streams = [(os.POSIX_SPAWN_DUP2, null.fileno(), number) for number in range(3)]
        return os.posix_spawn(command[0], command, os.environ | variables, file_actions=streams)


def main() -> int:
    """Takes the rights of a kind, and runs the command. Returns its exit status."""
    parser = argparse.ArgumentParser(prog="tests.rights", description=__doc__)
    parser.add_argument("--preload", default="", help="LD_PRELOAD of the program beside it")
    parser.add_argument("--beside", nargs="+", default=(), help="a program; PID stands for its PID")
    parser.add_argument("kind", choices=TAKE)
    own, command = sys.argv[1:], []
    if "--" in own:
        own, command = own[: own.index("--")], own[own.index("--") + 1 :]
    given = parser.parse_args(own)
    # Others may be unable to look into the directory that this checkout lies in.
    _checked(_LIBC.unshare(_NEW_MOUNTS))
    _checked(_LIBC.mount(None, b"/", None, _PRIVATE, None))
    _checked(_LIBC.mount(bytes(ROOT), str(SEEN_AT).encode(), None, _BIND, None))
    os.environ |= {"PYTHONPATH": str(SEEN_AT), "HOME": "/nonexistent"}
    os.chdir("/")
    TAKE[given.kind]()
    beside = _begin(given.beside, {"LD_PRELOAD": given.preload}) if given.beside else 0
    command = [str(beside) if word == "PID" else word for word in command]
    try:
        return subprocess.run(command, check=False).returncode & 0xFF
    finally:
        if beside:
            os.kill(beside, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
