"""Real queues of requests in the kernel, which may have the only pointers to blocks."""

import ctypes
import os

import pytest

from tracelloc.record.process.procfs import Process
from tracelloc.record.reachability.roots import kernel_queue

LIBC = ctypes.CDLL(None, use_errno=True)
IO_SETUP, IO_DESTROY, IO_URING_SETUP = 206, 207, 425  # x86-64


def test_io_uring_is_seen() -> None:
    own = Process(os.getpid())
    assert kernel_queue(own) == ""
    ring = LIBC.syscall(IO_URING_SETUP, 8, ctypes.create_string_buffer(120))
    if ring < 0:
        pytest.skip(f"io_uring_setup(2): {os.strerror(ctypes.get_errno())}")
    try:
        assert kernel_queue(own) == "io_uring"
    finally:
        os.close(ring)
    assert kernel_queue(own) == ""


def test_aio_is_seen() -> None:
    context = ctypes.c_ulong(0)
    assert LIBC.syscall(IO_SETUP, 8, ctypes.byref(context)) == 0
    try:
        assert kernel_queue(Process(os.getpid())) == "AIO"
    finally:
        LIBC.syscall(IO_DESTROY, context)
    assert kernel_queue(Process(os.getpid())) == ""
