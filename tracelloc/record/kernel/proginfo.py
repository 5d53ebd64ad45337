"""The kernel's information on a loaded BPF program: its runs and its native code."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tracelloc.system import syscalls
from tracelloc.system.syscalls import U32, U64, layout


class ProgramInfo(ctypes.Structure):
    """``struct bpf_prog_info`` up to verified_insns (Linux 5.16), include/uapi/linux/bpf.h."""

    run_time_ns: int  # Total time of the program's runs while `statistics` were on
    run_cnt: int  # Number of the program's runs while `statistics` were on
    # Runs that the kernel skipped, as another was active on that processor. Always counted.
    recursion_misses: int
    # Instructions that the verifier processed before it accepted the program; at most 10**6.
    verified_insns: int
    jited_prog_len: int  # Bytes of native code
    # Address to which the native code was written; 0 if the kernel does not show it.
    jited_prog_insns: int

    _fields_ = layout(
        (ctypes.c_uint8 * 16, "head"),
        (U32, "jited_prog_len xlated_prog_len"),
        (U64, "jited_prog_insns"),
        (ctypes.c_uint8 * 160, "others"),
        (U64, "run_time_ns run_cnt recursion_misses"),
        (U32, "verified_insns"),
    )


class _InfoAttr(ctypes.Structure):
    _fields_ = layout((U32, "bpf_fd info_len"), (U64, "info"))


def program_info(program_fd: int, native_code: ctypes.Array[Any] | None = None) -> ProgramInfo:
    """Returns a program's information; ``native_code`` gets its code. Raises OSError."""
    info = ProgramInfo()
    if native_code is not None:
        info.jited_prog_len = len(native_code)
        info.jited_prog_insns = ctypes.addressof(native_code)
    attributes = _InfoAttr(program_fd, ctypes.sizeof(info), ctypes.addressof(info))
    syscalls.bpf(syscalls.BPF_OBJ_GET_INFO_BY_FD, attributes)
    return info


@contextmanager
def statistics() -> Iterator[None]:
    """A context in which the kernel adds up BPF programs' run times. Raises OSError."""
    descriptor = syscalls.bpf(syscalls.BPF_ENABLE_STATS, (ctypes.c_uint32 * 1)(0))
    try:
        yield
    finally:
        os.close(descriptor)
