"""A file that a profile is written to: its path, format and permissions."""

from __future__ import annotations

import errno
import io
import os
import re
import select
import stat
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from tracelloc.dataclass import dataclass, replace
from tracelloc.errors import TracellocError
from tracelloc.show.export import Exporter
from tracelloc.show.presentation.profile import Metric, Profile
from tracelloc.system.safefiles import writing
from tracelloc.system.syscalls import closed_on_error

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


PATIENCE_S: Final = 10.0  # How long a pipe may stay full or without a reader
_LOOK_AGAIN_S: Final = 0.05


def is_special(path: Path) -> bool:
    """Whether a path is a pipe, a device or another special file. Raises OSError."""
    try:
        mode = writing.status_of(path, writing.output_users()).st_mode
        return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
    except FileNotFoundError:
        return False


def check_special(path: Path) -> None:
    """Raises OSError if a pipe or device can't be written, or belongs to another user."""
    _check_owner(writing.status_of(path, writing.output_users()))
    if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, "permission denied")


def open_special(path: Path, patience_s: float = PATIENCE_S) -> BinaryIO:
    """Opens a pipe or device; opening and writing wait for ``patience_s``. Raises OSError."""
    deadline_s = time.monotonic() + patience_s
    while True:
        try:
            descriptor = writing.open_existing(path, writing.output_users())
            break
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if time.monotonic() >= deadline_s:
                raise OSError(errno.ENXIO, "nobody reads from this pipe") from error
        time.sleep(_LOOK_AGAIN_S)
    with closed_on_error(descriptor):
        _check_owner(os.fstat(descriptor))
    return cast(BinaryIO, io.BufferedWriter(_PatientStream(descriptor, patience_s), 1 << 16))


def _check_owner(status: os.stat_result) -> None:
    ours = {0, *(user.uid for user in writing.output_users())}
    if stat.S_ISFIFO(status.st_mode) and status.st_uid not in ours:
        raise PermissionError(errno.EPERM, "this pipe belongs to another user")


class _PatientStream(io.RawIOBase):
    """A stream that owns its descriptor; a write waits while the pipe is full."""

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


_PLACEHOLDER: Final = re.compile("%([pnt%])")


@dataclass(frozen=True, slots=True)
class OutputFile:
    """An output file: its path, format and metric."""

    path: Path  # `%p` is replaced by the target's PID, `%t` by the time of writing
    exporter: Exporter
    metric: Metric = Metric.BYTES

    def at(self, pid: int, time_s: float) -> OutputFile:
        """Returns the file with ``%p`` and ``%t`` filled in; ``time_s``: seconds since 1970."""
        return replace(self, path=filled_in(self.path, pid, time_s))

    def content(self, profile: Profile) -> Iterable[bytes]:
        return self.exporter.write(profile, self.metric)

    @property
    def needs_freed(self) -> bool:
        return self.exporter.needs_freed(self.metric)

    def check(self) -> None:
        """Raises TracellocError unless the file could be written now. Changes nothing."""
        check_output(self.path)

    def write(self, content: Iterable[bytes]) -> None:
        """Replaces the file by rename(2). The old one is unchanged if it raises TracellocError."""
        write_output(self.path, content)


def check_output(path: Path) -> None:
    """Raises TracellocError unless a file could be written now. Changes nothing."""
    try:
        if is_special(path):
            check_special(path)
        else:
            writing.check_replaceable(path, writing.output_users())
    except OSError as error:
        raise TracellocError(f"{path} cannot be written: {error.strerror}") from error


def write_output(path: Path, content: Iterable[bytes]) -> None:
    """Replaces a file by rename(2), or writes a special one in place. Raises TracellocError."""
    try:
        if is_special(path):
            with open_special(path) as stream:
                stream.writelines(content)
            return
        writing.replace_file(path, content, writing.output_users(), writing.PRIVATE)
    except OSError as error:
        hint = "the file that was there is unchanged" if path.exists() else ""
        raise TracellocError(f"{path} could not be written: {error.strerror}", hint=hint) from error


def filled_in(path: Path, pid: int, time_s: float, name: str = "%n") -> Path:
    """Returns a path with the PID, the program's name and the time for ``%p``, ``%n``, ``%t``."""
    texts = {"p": str(pid), "n": name, "%": "%"}
    texts["t"] = time.strftime("%Y%m%d-%H%M%S", time.localtime(time_s))
    return Path(_PLACEHOLDER.sub(lambda match: texts[match[1]], str(path)))
