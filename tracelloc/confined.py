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
def confine(memory_bytes, files=256):
    libc = ctypes.CDLL(None, use_errno=True)
    for kind, bound in (("AS", memory_bytes), ("CORE", 0), ("FSIZE", 0), ("NOFILE", files)):
        kind = getattr(resource, "RLIMIT_" + kind)
        hard = resource.getrlimit(kind)[1]
        bound = bound if hard < 0 else min(bound, hard)
        resource.setrlimit(kind, (bound, bound))
    if os.geteuid() == 0:
        libc.unshare(0x40000000)  # CLONE_NEWNET: where that is refused, there is a network
        os.setgroups([])
        os.setresgid({NOBODY}, {NOBODY}, {NOBODY})
        os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
    libc.prctl(47, 4, 0, 0, 0)  # PR_CAP_AMBIENT, clear all
    libc.capset(struct.pack("=Ii", 0x20080522, 0), bytes(24))
    if libc.prctl(38, 1, 0, 0, 0):  # PR_SET_NO_NEW_PRIVS
        raise OSError(ctypes.get_errno(), "no_new_privs")
"""
"""Python source of ``confine(memory_bytes)``, which gives all of that up. Raises OSError.

``files``: so many may be open."""

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
