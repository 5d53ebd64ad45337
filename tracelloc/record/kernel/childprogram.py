"""The program of ``child.Child``: calls the C library's free(3) in the requested way.

Runs as a script, isolated and without site packages, so that it starts quickly. Reads the
name of one of its functions per line, and answers each with a line.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
import time
from typing import Final

LIBC: Final = ctypes.CDLL(None, use_errno=True)
FREE: Final = LIBC.free
FREE.argtypes = [ctypes.c_void_p]
CALLS: Final = 1000
"""How often a second thread calls free."""

_PR_SET_SECCOMP: Final = 22
_PR_SET_NO_NEW_PRIVS: Final = 38
_SECCOMP_MODE_FILTER: Final = 2
_FILTER: Final = bytes.fromhex(
    "2000000000000000"  # the system call's number
    "350000024f010000"  # below 335: allow
    "2500010082010000"  # above 386: allow
    "0600000000000080"  # kill the process
    "060000000000ff7f"  # allow
)
"""struct sock_filter, include/uapi/linux/filter.h. Kills at numbers that x86-64 had not assigned
before Linux 6.11, as many programs' filters do at unknown system calls."""
_WITH_SHADOW_STACK: Final = bytes.fromhex(
    "53 4889fb"  # push %rbx; mov %rdi,%rbx: the function to call
    "bf01500000 be01000000 b89e000000 0f05"  # arch_prctl(ARCH_SHSTK_ENABLE, ARCH_SHSTK_SHSTK)
    "4885c0 7519"  # test %rax,%rax; jnz to the end
    "31ff ffd3"  # the function, with a null argument
    "bf02500000 be01000000 b89e000000 0f05"  # arch_prctl(ARCH_SHSTK_DISABLE, …)
    "31c0 5b c3"  # 0
    "5b c3"  # return arch_prctl's result
)
"""Machine code: calls a function with a shadow stack. No earlier call may return
meanwhile, so Python can't do this. arch/x86/include/uapi/asm/prctl.h."""


def _once(calls: int) -> float:
    start = time.perf_counter_ns()
    for _ in range(calls):
        FREE(None)
    return (time.perf_counter_ns() - start) / calls


def cost() -> float:
    """Returns nanoseconds per call."""
    return min(_once(300) for _ in range(6))


def thread() -> float:
    """Calls free in another thread."""
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


def seccomp() -> float:
    """Calls free under a filter that kills at unknown system calls."""

    class FilterProgram(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    code = ctypes.create_string_buffer(_FILTER, len(_FILTER))
    program = FilterProgram(len(_FILTER) // 8, ctypes.addressof(code))
    if LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or LIBC.prctl(
        _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0
    ):
        return -1
    return _once(1)


def shadow_stack() -> float:
    """Calls free with a shadow stack; returns nonzero if the machine has none."""
    memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(_WITH_SHADOW_STACK)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    call = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p)(start)
    return float(call(ctypes.cast(FREE, ctypes.c_void_p).value))


_FUNCTIONS: Final = {each.__name__: each for each in (cost, thread, leave, seccomp, shadow_stack)}


def main() -> None:
    """Answers requests until the input ends."""
    for line in sys.stdin:
        print(_FUNCTIONS[line.strip()](), flush=True)


if __name__ == "__main__":
    print(flush=True)
    main()
