"""How often BPF programs ran and how long, as the kernel adds it up (BPF_ENABLE_STATS)."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from tracelloc import syscalls

_INFO_BYTES: Final = 216
_RUN_TIME_OFFSET: Final = 192
"""run_time_ns, run_cnt and recursion_misses in ``struct bpf_prog_info``,
include/uapi/linux/bpf.h."""


@dataclass(frozen=True, slots=True)
class ProgramRuns:
    """How often a program ran, and the nanoseconds it took, while statistics were on."""

    count: int
    time_ns: int
    skipped: int
    """Runs that the kernel left out, another being under way on that processor. Always counted."""


def read_runs(program_fd: int) -> ProgramRuns:
    """What the kernel has added up for a program. Raises OSError."""
    info = ctypes.create_string_buffer(_INFO_BYTES)
    attributes = (ctypes.c_uint32 * 4)(program_fd, _INFO_BYTES)
    ctypes.cast(attributes, ctypes.POINTER(ctypes.c_uint64))[1] = ctypes.addressof(info)
    syscalls.bpf(syscalls.BPF_OBJ_GET_INFO_BY_FD, attributes)
    time_ns, count, skipped = struct.unpack_from("<QQQ", info, _RUN_TIME_OFFSET)
    return ProgramRuns(count, time_ns, skipped)


@contextmanager
def statistics() -> Iterator[None]:
    """Lets the kernel add up every program's runs. Raises OSError if it can't."""
    descriptor = syscalls.bpf(syscalls.BPF_ENABLE_STATS, (ctypes.c_uint32 * 1)(0))
    try:
        yield
    finally:
        os.close(descriptor)
