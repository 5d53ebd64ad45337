"""System calls that Python does not wrap, and safe opening of files by others' paths.

bpf(2), perf_event_open(2), openat2(2), process_vm_readv(2), ioctl PAGEMAP_SCAN.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from tracelloc.architecture import native

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_OPENAT2: Final = 437
_PERF_FLAG_FD_CLOEXEC: Final = 8
_RESOLVE_NO_MAGICLINKS: Final = 0x02
_RESOLVE_IN_ROOT: Final = 0x10

_LIBC: Final = ctypes.CDLL(None, use_errno=True)

BPF_MAP_CREATE: Final = 0
BPF_MAP_UPDATE_ELEM: Final = 2
BPF_MAP_DELETE_ELEM: Final = 3
BPF_MAP_GET_NEXT_KEY: Final = 4
BPF_PROG_LOAD: Final = 5
BPF_OBJ_GET_INFO_BY_FD: Final = 15
BPF_RAW_TRACEPOINT_OPEN: Final = 17
BPF_MAP_LOOKUP_AND_DELETE_ELEM: Final = 21
BPF_MAP_LOOKUP_BATCH: Final = 24
BPF_MAP_DELETE_BATCH: Final = 27
BPF_LINK_CREATE: Final = 28
BPF_ENABLE_STATS: Final = 32
BPF_ITER_CREATE: Final = 33


U32: Final = ctypes.c_uint32
U64: Final = ctypes.c_uint64


def layout(*members: tuple[Any, str]) -> tuple[tuple[str, Any], ...]:
    """Returns the ``_fields_`` of a structure from (type, names of members of this type)."""
    return tuple((name, kind) for kind, names in members for name in names.split())


def bpf_number() -> int:
    """Returns the number of bpf(2) on this machine."""
    return native().system_call("bpf")


def bpf(command: int, attributes: ctypes.Structure | ctypes.Array[ctypes.c_uint32]) -> int:
    """Carries out a BPF command. Returns its result; raises OSError."""
    return _call(
        bpf_number(), ctypes.c_int(command), ctypes.byref(attributes),
        ctypes.c_uint(ctypes.sizeof(attributes)),
    )  # fmt: skip


def perf_event_open(attributes: ctypes.Structure, pid: int) -> int:
    """Opens a perf event of one process on all processors. Raises OSError."""
    return _call(
        native().system_call("perf_event_open"), ctypes.byref(attributes), ctypes.c_int(pid),
        ctypes.c_int(-1), ctypes.c_int(-1), ctypes.c_ulong(_PERF_FLAG_FD_CLOEXEC),
    )  # fmt: skip


class _OpenHow(ctypes.Structure):
    _fields_ = layout((U64, "flags mode resolve"))


class NotRegularError(OSError):
    """A path leads to a pipe, a device or another special file, which was not opened."""


@contextmanager
def closed_after(descriptor: int) -> Iterator[int]:
    """A context at whose end a descriptor is closed."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def closed_on_error(descriptor: int) -> Iterator[None]:
    """A context that closes a descriptor if an error leaves it."""
    try:
        yield
    except BaseException:
        os.close(descriptor)
        raise


def open_inside(root: str | os.PathLike[str], path: str, flags: int = 0) -> int:
    """Opens a file or directory as if ``root`` were ``/``. Raises as ``open_regular``."""
    with closed_after(os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as directory:
        flags |= os.O_PATH | os.O_CLOEXEC
        how = _OpenHow(flags=flags, resolve=_RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
        handle = _call(
            _OPENAT2, ctypes.c_int(directory), ctypes.c_char_p(os.fsencode(path.lstrip("/"))),
            ctypes.byref(how), ctypes.c_size_t(ctypes.sizeof(how)),
        )  # fmt: skip
    return _reopened(handle)


def open_regular(path: str | os.PathLike[str]) -> int:
    """Opens a regular file to read. Raises OSError; NotRegularError for other files.

    Other files are not opened: opening rewinds a tape, starts a watchdog or waits for a pipe.
    """
    return _reopened(os.open(path, os.O_PATH | os.O_CLOEXEC))


def _reopened(handle: int) -> int:
    """Opens the file of an O_PATH handle to read. Closes the handle."""
    with closed_after(handle):
        mode = os.fstat(handle).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise NotRegularError(errno.EINVAL, "it is not a regular file")
        # Without O_NONBLOCK, another process's lease on the file (fcntl(2)) would block the open.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        return os.open(f"/proc/self/fd/{handle}", flags)


def opened_at_once(path: str, flags: int) -> int:
    """Opens a file for ``open``, without waiting for another process's lease (fcntl(2)) or pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


def read_process(pid: int, pieces: npt.NDArray[np.uint64], into: npt.NDArray[np.uint64]) -> int:
    """Reads pieces of a process's memory, one after the other, into an array.

    ``pid``: the id of the process or of any of its threads. ``pieces``: at most 1,024 rows of
    (address, length in bytes). Returns the number of bytes read, which is lower than requested
    if a piece cannot be read. Raises OSError; EFAULT if the first piece cannot be read.
    """
    assert pieces.flags.c_contiguous
    assert pieces[:, 1].sum() <= into.nbytes
    local = (ctypes.c_uint64 * 2)(into.ctypes.data, into.nbytes)
    return _call(
        native().system_call("process_vm_readv"), ctypes.c_int(pid), local, ctypes.c_ulong(1),
        ctypes.c_void_p(pieces.ctypes.data), ctypes.c_ulong(len(pieces)), ctypes.c_ulong(0),
    )  # fmt: skip


class _PageScan(ctypes.Structure):
    _fields_ = layout(
        (U64, "size flags start end walk_end regions most_regions most_pages"),
        (U64, "inverted all_of any_of returned"),
    )


_PAGEMAP_SCAN: Final = 0xC0606610  # _IOWR('f', 16, struct pm_scan_arg)
_PAGE_IS_PRESENT, _PAGE_IS_SWAPPED, _PAGE_IS_ZERO = 1 << 3, 1 << 4, 1 << 5


def scan_pages(
    pagemap: int, start: int, end: int, regions: npt.NDArray[np.uint64], *, swapped: bool = False
) -> int:
    """Finds a process's resident memory, except for pages that hold only zeros.

    ``swapped``: finds the memory that is swapped out instead. ``pagemap``: the process's open
    pagemap file. ``regions``: receives rows of start, end and category; unused rows are 0. Returns
    the end address of the scanned range. Raises OSError: ENOTTY on kernels before 6.7.
    """
    regions[:] = 0
    kind = _PAGE_IS_SWAPPED if swapped else _PAGE_IS_PRESENT
    wanted = _PageScan(
        ctypes.sizeof(_PageScan), 0, start, end, 0, regions.ctypes.data, len(regions), 0,
        _PAGE_IS_ZERO, kind | _PAGE_IS_ZERO, 0, kind,
    )  # fmt: skip
    checked(_LIBC.ioctl(pagemap, ctypes.c_ulong(_PAGEMAP_SCAN), ctypes.byref(wanted)))
    return int(wanted.walk_end)


def _call(number: int, *arguments: object) -> int:
    return checked(_LIBC.syscall(ctypes.c_long(number), *arguments))


def checked(result: int) -> int:
    """Returns the result of a function of the C library; if it is negative, raises OSError."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
