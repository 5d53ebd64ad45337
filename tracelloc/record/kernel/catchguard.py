"""Lets a caught process run if tracelloc ends without a word: a program of its own.

Arguments: the descriptor of ``ExecCatcher``'s map, whose only key is the process, and the number of
bpf(2). tracelloc writes to standard input when it has let the process run; if it is killed before,
that closes.
"""

import ctypes
import os
import signal
import sys
import time

BPF_MAP_GET_NEXT_KEY = 4  # include/uapi/linux/bpf.h
# For a second: the kernel may close the standard input before it detaches the program.
LOOKS, EVERY_S = 100, 0.01


class Attributes(ctypes.Structure):
    """``union bpf_attr``, elements of maps. Without a key, the first key follows."""

    _fields_ = (
        ("map_fd", ctypes.c_uint32), ("key", ctypes.c_uint64), ("next_key", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
    )  # fmt: skip


def main() -> None:
    """Waits until tracelloc writes to standard input; if it ends before, lets the process run."""
    if sys.stdin.buffer.read(1):
        return
    map_fd, number = map(int, sys.argv[1:])
    libc = ctypes.CDLL(None)
    process = ctypes.c_uint64()
    wanted = Attributes(map_fd, 0, ctypes.addressof(process), 0)
    for _ in range(LOOKS):
        if libc.syscall(number, BPF_MAP_GET_NEXT_KEY, ctypes.byref(wanted), 32) == 0:
            os.kill(process.value, signal.SIGCONT)
            return
        time.sleep(EVERY_S)


if __name__ == "__main__":
    main()
