"""Where memory is resident, whatever a process has mapped."""

import ctypes
import errno
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tracelloc.record.process import memory
from tracelloc.record.process.memory import PAGE_BYTES, RemoteMemory
from tracelloc.record.process.procfs import Process

_NORESERVE = 0x4000
_MAPPED_BYTES = 4096 * PAGE_BYTES
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


@pytest.fixture
def mapped(request: pytest.FixtureRequest) -> Iterator[int]:
    """The address of so many bytes of memory that nobody has touched."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
    start = _LIBC.mmap(None, request.param, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    assert start not in (None, (1 << 64) - 1)
    yield start
    _LIBC.munmap(start, request.param)


def runs(start: int, end: int) -> list[tuple[int, int, int]]:
    return list(RemoteMemory(Process(os.getpid())).resident_runs([(start, end)], lambda: True))


def by_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels before 6.7 have no such request."""

    def scan(*_: object, **__: object) -> int:
        raise OSError(errno.ENOTTY, "not there")

    monkeypatch.setattr(memory, "scan_pages", scan)


@pytest.mark.parametrize("mapped", [_MAPPED_BYTES], indirect=True)
def test_runs_are_where_pages_were_written_to(mapped: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than are asked about at once; pages that were only read hold nothing."""
    monkeypatch.setattr(memory, "_REGIONS", 7)
    _LIBC.madvise(ctypes.c_void_p(mapped), ctypes.c_size_t(_MAPPED_BYTES), 15)  # MADV_NOHUGEPAGE
    written = [page for page in range(0, 4096, 5) if page % 3] + [4094, 4095]
    for page in written:
        ctypes.memset(mapped + page * PAGE_BYTES, 1, 1)
    assert ctypes.string_at(mapped + 1003 * PAGE_BYTES, 1) == b"\0"
    expected = [(0, mapped + at * PAGE_BYTES, mapped + (at + 1) * PAGE_BYTES) for at in written]
    expected[-2:] = [(0, mapped + 4094 * PAGE_BYTES, mapped + 4096 * PAGE_BYTES)]
    found = runs(mapped, mapped + _MAPPED_BYTES)
    by_pages(monkeypatch)
    looked_at = runs(mapped, mapped + _MAPPED_BYTES)
    assert set(expected) <= set(looked_at)
    zero = (0, mapped + 1003 * PAGE_BYTES, mapped + 1004 * PAGE_BYTES)
    assert set(looked_at) - set(expected) <= {zero}
    assert found in (expected, looked_at)


@pytest.mark.parametrize("mapped", [16 << 40], indirect=True)
def test_terabytes_of_nothing(mapped: int, monkeypatch: pytest.MonkeyPatch) -> None:
    began_s = time.process_time()
    with suppress(OSError):  # on kernels before 6.7
        assert runs(mapped, mapped + (16 << 40)) == []
    by_pages(monkeypatch)
    monkeypatch.setattr(memory, "_MOST_ADDRESSES", 3 << 30)
    with pytest.raises(OSError, match="its mappings have terabytes"):
        runs(mapped, mapped + (16 << 40))
    assert time.process_time() - began_s < 20
    # It ends in the middle when it is to.
    answers = iter([True, True, False])
    remote = RemoteMemory(Process(os.getpid()))
    assert list(remote.resident_runs([(mapped, mapped + (16 << 40))], lambda: next(answers))) == []
