"""Pipes and devices as outputs: written in place, with a limit on every wait."""

from __future__ import annotations

import errno
import io
import os
import select
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from tracelloc.system.safefiles.writing import open_existing, output_users, status_of

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

PATIENCE_S: Final = 10.0  # How long a pipe may stay full or without a reader
_LOOK_AGAIN_S: Final = 0.05


def is_special(path: Path) -> bool:
    """Whether a path is a pipe, a device or the like, which is written in place.

    Raises OSError.
    """
    try:
        mode = status_of(path, output_users()).st_mode
        return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
    except FileNotFoundError:
        return False


def check_special(path: Path) -> None:
    """Raises OSError unless it may be written; other users' pipes get no secrets."""
    _check_owner(status_of(path, output_users()))
    if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, "permission denied")


def open_special(path: Path, patience_s: float = PATIENCE_S) -> BinaryIO:
    """Opens a stream to a pipe or device. Opening and writing raise OSError.

    Opening waits at most ``patience_s`` for a reader, and writing for the reader to read.
    """
    deadline_s = time.monotonic() + patience_s
    while True:
        try:
            descriptor = open_existing(path, output_users())
            break
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if time.monotonic() >= deadline_s:
                raise OSError(errno.ENXIO, "nobody reads from this pipe") from error
        time.sleep(_LOOK_AGAIN_S)
    try:
        _check_owner(os.fstat(descriptor))
    except OSError:
        os.close(descriptor)
        raise
    return cast(BinaryIO, io.BufferedWriter(_PatientStream(descriptor, patience_s), 1 << 16))


def _check_owner(status: os.stat_result) -> None:
    ours = {0, *(user.uid for user in output_users())}
    if stat.S_ISFIFO(status.st_mode) and status.st_uid not in ours:
        raise PermissionError(errno.EPERM, "this pipe belongs to another user")


class _PatientStream(io.RawIOBase):
    """Stream to a descriptor, which it owns; a write waits while the pipe is full."""

    def __init__(self, descriptor: int, patience_s: float) -> None:
        self._descriptor = descriptor
        self._patience_s = patience_s

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer) -> int:
        room = select.poll()
        room.register(self._descriptor, select.POLLOUT)
        while True:
            try:
                return os.write(self._descriptor, data)
            except BlockingIOError:
                if not room.poll(self._patience_s * 1000):
                    raise TimeoutError(errno.ETIMEDOUT, "its reader does not read") from None

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()
