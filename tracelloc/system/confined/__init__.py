"""Confined processes for untrusted files: no rights, no network, no files, bounded resources.

A file that takes over such a process gains nothing. The process runs as a user that owns nothing
(see ``OWN_USERS``). Its only descriptors are the pipe to tracelloc and the file, and it can open
no others (no_new_privs, prctl(2); Landlock). It may make few system calls
(``tracelloc.system.confined.systemcalls``), start no processes, and use little memory.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from tracelloc.system.confined.systemcalls import Confinement, filter_of

NOBODY: Final = 65534  # Fallback user and group, for user namespaces without higher numbers
# First user and group number; the id of the tracelloc process is added. No distribution or systemd
# uses numbers from 0x70000000 to 0x7FFFFFFE (https://systemd.io/UIDS-GIDS).
OWN_USERS: Final = 0x72000000

_FILTERS: Final = {each.value: filter_of(each) for each in Confinement}

# Python source of `confine(memory_bytes)`, which drops these rights. Raises OSError.
#
# `files`: the most open files. `role`: the value of a `Confinement`.
CONFINE: Final = f"""
import ctypes, os, resource, struct
libc = ctypes.CDLL(None, use_errno=True)
def limit(kind, bound):
    kind = getattr(resource, "RLIMIT_" + kind)
    hard = resource.getrlimit(kind)[1]
    bound = bound if hard < 0 else min(bound, hard)
    resource.setrlimit(kind, (bound, bound))
def become(user):
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
def filter_calls(role):
    code = {_FILTERS!r}[role]
    if code:
        code = ctypes.create_string_buffer(code, len(code))
        program = struct.pack("@HP", len(code) // 8, ctypes.addressof(code))
        # PR_SET_SECCOMP, SECCOMP_MODE_FILTER. EINVAL: a kernel without.
        if libc.prctl(22, 2, program, 0, 0) and ctypes.get_errno() != 22:
            raise OSError(ctypes.get_errno(), "seccomp")
def confine_files(opens):
    # landlock(7), where the kernel has it: all rights that its version knows.
    version = libc.syscall(ctypes.c_long(444), None, ctypes.c_long(0), 1)
    if version <= 0:
        return
    files = (0x1FFF, 0x3FFF, 0x7FFF, 0x7FFF, 0xFFFF)[min(version, 5) - 1]
    if opens:
        files &= ~13  # EXECUTE, READ_FILE, READ_DIR
    words = [files]
    if version >= 4:
        words.append(3)  # NET_BIND_TCP, NET_CONNECT_TCP
    if version >= 6:
        words.append(3)  # SCOPE_ABSTRACT_UNIX_SOCKET, SCOPE_SIGNAL
    rules = struct.pack(f"={{len(words)}}Q", *words)
    rules = libc.syscall(ctypes.c_long(444), rules, ctypes.c_long(len(rules)), 0)
    if rules >= 0:
        libc.syscall(ctypes.c_long(446), rules, 0)
        os.close(rules)
def confine(memory_bytes, files=256, role="reader"):
    for kind, bound in (("AS", memory_bytes), ("CORE", 0), ("FSIZE", 0), ("NOFILE", files)):
        limit(kind, bound)
    processes = 0 if role == "reader" else None
    if os.geteuid() == 0:
        libc.unshare(0x40000000)  # CLONE_NEWNET: where that is refused, there is a network
        # Some user namespaces have no such high numbers, or no other user at all; and where there
        # is no CAP_SETUID, root is one in name only: what it may do beyond is lost below.
        for user in ({OWN_USERS} + os.getppid(), {NOBODY}):
            try:
                become(user)
            except OSError as error:
                if error.errno not in (1, 22):  # EPERM, EINVAL
                    raise
            else:
                processes = 64 if processes is None else processes
                break
    if processes is not None:
        limit("NPROC", processes)
    libc.prctl(47, 4, 0, 0, 0)  # PR_CAP_AMBIENT, clear all
    libc.capset(struct.pack("=Ii", 0x20080522, 0), bytes(24))
    if libc.prctl(38, 1, 0, 0, 0):  # PR_SET_NO_NEW_PRIVS
        raise OSError(ctypes.get_errno(), "no_new_privs")
    confine_files(opens=role == "program")
    filter_calls(role)
"""

_EXECUTE: Final = (
    CONFINE
    + "import sys\nconfine(int(sys.argv[1]), role='program')\nos.execv(sys.argv[2], sys.argv[2:])\n"
)


def start_confined(
    command: Sequence[str],
    memory_bytes: int,
    *,
    environment: Mapping[str, str],
    descriptors: Collection[int] = (),
) -> subprocess.Popen[bytes]:
    """Starts a confined program with pipes as its standard input and output. Raises OSError.

    ``command``: its path, then its arguments. ``descriptors``: inherited under their numbers.
    """
    return start_reader([_EXECUTE, str(memory_bytes), *command], environment, descriptors)


def start_reader(
    script: Sequence[str],
    environment: Mapping[str, str] | None = None,
    descriptors: Collection[int] = (),
    channel: int | None = None,
) -> subprocess.Popen[bytes]:
    """Starts Python source with arguments. The source must call ``confine``. Raises OSError.

    ``channel``: a socket as its standard input, instead of pipes.
    """
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", *script],
        stdin=subprocess.PIPE if channel is None else channel,
        stdout=subprocess.PIPE if channel is None else subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        cwd="/",
        env=environment,
        pass_fds=tuple(descriptors),
        start_new_session=True,  # Ctrl-C is for tracelloc
    )
