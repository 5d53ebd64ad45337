"""Programs that read what others have written: as user nobody, without network, within limits.

A file that takes one of them over has gained nothing: no rights, no descriptors but the pipe to us
and the file itself, no way to any other (no_new_privs, prctl(2)), and little memory.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Final

NOBODY: Final = 65534
"""User and group."""

CONFINE: Final = f"""
import ctypes, os, resource, struct
def confine(memory_bytes, files=256, opens=True):
    libc = ctypes.CDLL(None, use_errno=True)
    for kind, bound in (("AS", memory_bytes), ("CORE", 0), ("FSIZE", 0), ("NOFILE", files)):
        kind = getattr(resource, "RLIMIT_" + kind)
        hard = resource.getrlimit(kind)[1]
        bound = bound if hard < 0 else min(bound, hard)
        resource.setrlimit(kind, (bound, bound))
    if os.geteuid() == 0:
        libc.unshare(0x40000000)  # CLONE_NEWNET: where that is refused, there is a network
        try:
            os.setgroups([])
            os.setresgid({NOBODY}, {NOBODY}, {NOBODY})
            os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
        except PermissionError:
            pass  # root in name only, without CAP_SETUID: what it may do beyond is lost below
    libc.prctl(47, 4, 0, 0, 0)  # PR_CAP_AMBIENT, clear all
    libc.capset(struct.pack("=Ii", 0x20080522, 0), bytes(24))
    if libc.prctl(38, 1, 0, 0, 0):  # PR_SET_NO_NEW_PRIVS
        raise OSError(ctypes.get_errno(), "no_new_privs")
    if not opens:
        # landlock(7), where the kernel has it: all rights on files of its first version.
        rules = libc.syscall(ctypes.c_long(444), struct.pack("=Q", 0x1FFF), ctypes.c_long(8), 0)
        if rules >= 0:
            libc.syscall(ctypes.c_long(446), rules, 0)
            os.close(rules)
"""
"""Python source of ``confine(memory_bytes)``, which gives all of that up. Raises OSError.

``files``: so many may be open. ``opens``: whether it is to open any by name."""

_EXECUTE: Final = (
    CONFINE + "import sys\nconfine(int(sys.argv[1]))\nos.execv(sys.argv[2], sys.argv[2:])\n"
)


def start_confined(
    command: Sequence[str],
    memory_bytes: int,
    *,
    environment: Mapping[str, str],
    descriptors: Collection[int] = (),
) -> subprocess.Popen[bytes]:
    """Starts a program so, with pipes for its standard input and output. Raises OSError.

    ``command``: its path, then its arguments. ``descriptors`` of ours it finds under their numbers.
    """
    return start_reader([_EXECUTE, str(memory_bytes), *command], environment, descriptors)


def start_reader(
    script: Sequence[str],
    environment: Mapping[str, str] | None = None,
    descriptors: Collection[int] = (),
    channel: int | None = None,
) -> subprocess.Popen[bytes]:
    """Starts Python source with arguments, which is to call ``confine`` itself. Raises OSError.

    ``channel``: its standard input, a socket, instead of pipes.
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
        start_new_session=True,  # Ctrl-C is for us
    )
