"""System call filters (seccomp) that tracelloc shares with the process it traces.

Container engines filter the calls of every process. The preloaded library makes no calls under a
filter, since that might end the program. Filters that tracelloc itself has can be tried first.
"""

import ctypes
import os
from functools import cache
from typing import Final

from tracelloc.record.process.identity import is_in_our_container
from tracelloc.record.process.procfs import Process

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_CALLS: Final = (
    # As the library calls them (probes/preloaded/kernel.h); arguments that can do no harm.
    (3, -1), (10, 0, 0, 0), (11, 0, 0), (14, 0, 0, 0, 8), (17, -1, 0, 0, 0), (21, 0, 0),
    (25, 0, 0, 0, 0), (28, 0, 0, 0), (35, 0, 0), (39,), (72, -1, 1033, 0), (77, -1, 0), (186,),
    (193, -1, 0, 0, 0), (302, 0, 9, 0, 0), (310, 0, 0, 0, 0, 0, 0), (319, 0, 0), (324, 4, 0),
)  # fmt: skip


def shared_filters(process: Process) -> int:
    """Returns how many filters shared with a process permit the library's system calls.

    A child inherits filters from tracelloc. A container's engine sets them for each process.
    """
    own = Process(os.getpid())
    is_child = process.parent_pid() == own.pid
    is_shared = own.has_seccomp_filter() and (is_child or is_in_our_container(process))
    return own.seccomp_filters() if is_shared and may_vouch() else 0


@cache
def may_vouch() -> bool:
    """Returns whether tracelloc's own filters permit the library's system calls, by trying."""
    own = Process(os.getpid())
    if not own.has_seccomp_filter():
        return True
    if not own.seccomp_filters():  # the kernel does not count them, so new ones would not be seen
        return False
    pid = os.fork()
    if not pid:
        for call in _CALLS:
            _LIBC.syscall(*(ctypes.c_long(word) for word in call))
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0
