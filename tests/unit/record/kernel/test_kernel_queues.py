"""Real queues of requests in the kernel, which may have the only pointers to blocks."""

import ctypes
import mmap
import os
import struct

import pytest

from tracelloc.record.process.procfs import Process
from tracelloc.record.reachability.roots import kernel_queue

LIBC = ctypes.CDLL(None, use_errno=True)
IO_SETUP, IO_DESTROY, IO_URING_SETUP, IO_URING_ENTER = 206, 207, 425, 426  # x86-64
POLL_ADD, POLL_IN, SQES = 6, 1, 0x10000000  # include/uapi/linux/io_uring.h


def submit_poll(ring: int, parameters: bytes, file: int) -> None:
    """Submits a request that ends when the file can be read."""
    entries, tail_at, array_at = (struct.unpack_from("I", parameters, at)[0] for at in (0, 44, 64))
    with (
        mmap.mmap(ring, array_at + 4 * entries) as queue,
        mmap.mmap(ring, 64 * entries, offset=SQES) as requests,
    ):
        struct.pack_into("BBHiQQIIQ", requests, 0, POLL_ADD, 0, 0, file, 0, 0, 0, POLL_IN, 1)
        struct.pack_into("I", queue, array_at, 0)
        struct.pack_into("I", queue, tail_at, 1)
        assert LIBC.syscall(IO_URING_ENTER, ring, 1, 0, 0, None, 0) == 1


def test_requests_under_way_are_seen() -> None:
    own = Process(os.getpid())
    assert kernel_queue(own) == ""
    parameters = ctypes.create_string_buffer(120)
    ring = LIBC.syscall(IO_URING_SETUP, 8, parameters)
    if ring < 0:
        pytest.skip(f"io_uring_setup(2): {os.strerror(ctypes.get_errno())}")
    read_end, write_end = os.pipe()
    try:
        assert kernel_queue(own) == "", "an idle ring points to nothing"
        submit_poll(ring, parameters.raw, read_end)
        assert kernel_queue(own) == "io_uring"
        os.write(write_end, b"x")
        assert LIBC.syscall(IO_URING_ENTER, ring, 0, 1, 1, None, 0) == 0  # waits for its end
        assert kernel_queue(own) == ""
    finally:
        for each in (ring, read_end, write_end):
            os.close(each)
    context = ctypes.c_ulong(0)
    assert LIBC.syscall(IO_SETUP, 8, ctypes.byref(context)) == 0
    try:
        assert kernel_queue(Process(os.getpid())) == "AIO"
    finally:
        LIBC.syscall(IO_DESTROY, context)
    assert kernel_queue(Process(os.getpid())) == ""
