"""Reads the registers of all threads of a process, without stopping one.

A BPF iterator over tasks copies them (``probes/registers.bpf.c``), which needs BTF.
"""

import ctypes
import errno
import os
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tracelloc import probes
from tracelloc.architecture import Architecture, native
from tracelloc.errors import UnsupportedError
from tracelloc.record.kernel.btf import FUNCTION, KernelTypes
from tracelloc.record.kernel.capabilities import check_bpf
from tracelloc.record.kernel.precompiled import compiled
from tracelloc.record.kernel.programs import TRACING, Programs
from tracelloc.record.process.procfs import Process
from tracelloc.system import syscalls
from tracelloc.system.syscalls import U32, U64, closed_after, layout

Rows = npt.NDArray[Any]  # An array of `row_dtype`

_SOURCE: Final = "registers.bpf.c"
_PROGRAM: Final = "read_registers"
_ATTACH_TYPE: Final = 28  # BPF_TRACE_ITER, include/uapi/linux/bpf.h
_READ_BYTES: Final = 1 << 16
_MOST_BYTES: Final = 1 << 28


@cache
def row_dtype(architecture: Architecture) -> np.dtype[Any]:
    """Returns the layout of ``struct thread_registers``."""
    words = (np.uint64, (architecture.general.kernel_count,))
    head = layout((np.uint64, "pid tid thread_pointer signal_stack"), (words, "registers"))
    return np.dtype(list(head))


class _IteratorLinkAttr(ctypes.Structure):
    _fields_ = layout(
        (U32, "prog_fd target_fd attach_type flags"), (U64, "iter_info"), (U32, "iter_info_len")
    )


class _TaskInfo(ctypes.Structure):
    _fields_ = layout((U32, "tid pid pid_fd"))


class _IteratorAttr(ctypes.Structure):
    _fields_ = layout((U32, "link_fd flags"))


class ThreadWords(NamedTuple):
    """Words that may be pointers, from the kernel's records of a process's threads."""

    threads: int  # Number of threads
    words: npt.NDArray[np.uint64]  # All registers, and the addresses of alternate signal stacks


class ThreadRegisters(NamedTuple):
    """The registers of one thread."""

    thread_id: int
    # Where the thread's variables are (`fs_base`, `tpidr_el0`); 0 if unknown.
    thread_pointer: int
    stack_pointer: int
    signal_stack: int  # Address of the alternate signal stack; 0 if there is none
    words: npt.NDArray[np.uint64]  # All other registers


class RegisterReader:
    """Reads registers of processes' threads by a BPF iterator, until ``close``."""

    def __init__(self, *, debug: bool = False) -> None:
        """Compiles (once) and loads the iterator. Raises UnsupportedError, PrivilegeError."""
        check_bpf()
        types = KernelTypes()
        target = types.type_id(FUNCTION, "bpf_iter_task")
        if target is None:
            raise UnsupportedError("this kernel has no BPF iterator over tasks (Linux 5.8)")
        offsets = {"THREAD_POINTER": thread_pointer_offset(types, native().threads.kernel_field)}
        for name, member in (("TGID", "tgid"), ("TID", "pid"), ("SIGNAL_STACK", "sas_ss_sp")):
            offsets[name] = types.offset_of("task_struct", member)
        flags = [f"-D{name}_OFFSET={offset}" for name, offset in offsets.items()]
        text = (probes.directory() / _SOURCE).read_text(encoding="utf-8")
        code = compiled(text, flags, probes.kernel_headers(), debug=debug)
        self._lock = threading.Lock()  # A search may still run when the trace ends
        self._programs = Programs(code, debug=debug)
        try:
            self._programs.load(_PROGRAM, TRACING, _ATTACH_TYPE, target)
        except BaseException:
            self._programs.close()
            raise

    def read(self, process: Process) -> ThreadWords:
        """Reads the registers of all threads of a process now, as words. Raises OSError."""
        rows = self._read(process)
        words = np.concatenate([rows["registers"].reshape(-1), rows["signal_stack"]])
        return ThreadWords(len(rows), np.ascontiguousarray(words))

    def read_threads(self, process: Process) -> list[ThreadRegisters]:
        """Reads the registers of a process's threads now, thread by thread. Raises OSError."""
        return threads_in(self._read(process), native())

    def _read(self, process: Process) -> Rows:
        with self._lock:
            if _PROGRAM not in self._programs.loaded:
                raise OSError(errno.EBADF, "the trace has ended")
            info = _TaskInfo(pid=process.pid)
            attributes = _IteratorLinkAttr(
                prog_fd=self._programs.fd(_PROGRAM),
                attach_type=_ATTACH_TYPE,
                iter_info=ctypes.addressof(info),
                iter_info_len=ctypes.sizeof(info),
            )
            return _rows(attributes)

    def close(self) -> None:
        with self._lock:
            self._programs.close()


def threads_in(rows: Rows, architecture: Architecture) -> list[ThreadRegisters]:
    """Returns the threads in rows of ``row_dtype``."""
    general = architecture.general
    at = general.names.index(general.stack_pointer)
    return [
        ThreadRegisters(
            int(row["tid"]), int(row["thread_pointer"]), int(row["registers"][at]),
            int(row["signal_stack"]), np.delete(row["registers"], at),
        )
        for row in rows
    ]  # fmt: skip


def thread_pointer_offset(types: KernelTypes, field: Sequence[str]) -> int:
    """Returns where ``task_struct`` has the thread pointer. ``field``: in ``thread_struct``."""
    try:
        outer = types.offset_of("task_struct", "thread")
        return outer + types.offset_of("thread_struct", *field)
    except UnsupportedError:
        return 0


def _rows(attributes: _IteratorLinkAttr) -> Rows:
    """Runs the iterator, and returns its rows (``row_dtype``). Raises OSError."""
    with closed_after(syscalls.bpf(syscalls.BPF_LINK_CREATE, attributes)) as link:
        iterator = syscalls.bpf(syscalls.BPF_ITER_CREATE, _IteratorAttr(link_fd=link))
    found = bytearray()
    with closed_after(iterator):
        while len(found) < _MOST_BYTES and (piece := os.read(iterator, _READ_BYTES)):
            found += piece
    row = row_dtype(native())
    return np.frombuffer(bytes(found[: len(found) // row.itemsize * row.itemsize]), row)
