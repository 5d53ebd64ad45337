"""System calls that Python has no name for: bpf(2) and perf_event_open(2)."""

from __future__ import annotations

import ctypes
import os
import platform
from typing import Final

_BPF: Final = {"x86_64": 321, "aarch64": 280}
_PERF_EVENT_OPEN: Final = {"x86_64": 298, "aarch64": 241}
_PERF_FLAG_FD_CLOEXEC: Final = 8

BPF_MAP_CREATE: Final = 0
BPF_OBJ_GET_INFO_BY_FD: Final = 15
BPF_LINK_CREATE: Final = 28
BPF_ENABLE_STATS: Final = 32


def bpf(command: int, attributes: ctypes.Structure | ctypes.Array[ctypes.c_uint32]) -> int:
    """Carries out a BPF command. Returns its result; raises OSError."""
    return _call(
        _BPF[platform.machine()],
        ctypes.c_int(command),
        ctypes.byref(attributes),
        ctypes.c_uint(ctypes.sizeof(attributes)),
    )


def perf_event_open(attributes: ctypes.Structure, pid: int) -> int:
    """The descriptor of an event of a process, on every processor. Raises OSError."""
    return _call(
        _PERF_EVENT_OPEN[platform.machine()],
        ctypes.byref(attributes),
        ctypes.c_int(pid),
        ctypes.c_int(-1),
        ctypes.c_int(-1),
        ctypes.c_ulong(_PERF_FLAG_FD_CLOEXEC),
    )


def _call(number: int, *arguments: object) -> int:
    result: int = ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
