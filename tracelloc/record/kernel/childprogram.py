"""The program of ``overhead.ProbedChild``: calls the C library's free(3) in the requested way.

Runs as a script, isolated and without site packages, so that it starts quickly. Reads the
name of one of its functions per line, and maybe bytes in hexadecimal that depend on the machine,
and answers each line with one.
"""

import ctypes
import mmap
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

LIBC: Final = ctypes.CDLL(None, use_errno=True)
FREE: Final = LIBC.free
FREE.argtypes = [ctypes.c_void_p]
CALLS: Final = 1000  # How often a second thread calls free

_PR_SET_SECCOMP: Final = 22
_PR_SET_NO_NEW_PRIVS: Final = 38
_SECCOMP_MODE_FILTER: Final = 2


def _once(calls: int) -> float:
    start = time.perf_counter_ns()
    for _ in range(calls):
        FREE(None)
    return (time.perf_counter_ns() - start) / calls


def cost() -> float:
    """Returns the nanoseconds that a call of free takes."""
    return min(_once(300) for _ in range(20))


def thread() -> float:
    """Calls free in another thread; returns 0."""
    other = threading.Thread(target=_once, args=(CALLS,))
    other.start()
    other.join()
    return 0


def leave() -> float:
    """Ends the main thread; another thread answers in its place."""

    def go_on() -> None:
        ended = False
        while not ended:
            with open("/proc/self/stat") as stat:
                ended = ") Z " in stat.read()
        print(0, flush=True)
        main()

    threading.Thread(target=go_on).start()
    LIBC.pthread_exit(None)
    return 0


def seccomp(code: bytes) -> float:
    """Calls free under a filter: instructions of ``struct sock_filter`` (linux/filter.h)."""

    class FilterProgram(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    memory = ctypes.create_string_buffer(code, len(code))
    program = FilterProgram(len(code) // 8, ctypes.addressof(memory))
    if LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or LIBC.prctl(
        _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0
    ):
        return -1
    return _once(1)


def shadow_stack(code: bytes) -> float:
    """Calls free with a shadow stack; returns nonzero if the machine has none.

    ``code`` does it: no earlier call may return meanwhile, so Python can't.
    """
    memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(code)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    call = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p)(start)
    return float(call(ctypes.cast(FREE, ctypes.c_void_p).value))


_FUNCTIONS: Final[dict[str, Callable[..., float]]] = {
    each.__name__: each for each in (cost, thread, leave, seccomp, shadow_stack)
}


def main() -> None:
    """Answers requests until the input ends."""
    for line in sys.stdin:
        name, *arguments = line.split()
        print(_FUNCTIONS[name](*map(bytes.fromhex, arguments)), flush=True)


if __name__ == "__main__":
    print(flush=True)
    main()
