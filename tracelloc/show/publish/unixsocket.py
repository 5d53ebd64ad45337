"""A Unix socket to listen on, which only its owner can access."""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

from tracelloc.errors import TracellocError
from tracelloc.system.invoker import User, rights_of
from tracelloc.system.safefiles.resolve import Destination
from tracelloc.system.safefiles.writing import output_users, remove_file, tried
from tracelloc.text import printable


def listen_at(path: str, queue_length: int) -> socket.socket:
    """Creates the socket, replacing a stale one. Raises TracellocError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # bind(2) takes over the permissions, so they hold as soon as the file exists.
        os.fchmod(listener.fileno(), 0o600)
        try:
            _bind(listener, path)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not _is_left_over(path):
                raise
            remove_socket(path)
            _bind(listener, path)
        listener.listen(queue_length)
    except (OSError, ValueError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise TracellocError(f"cannot listen on unix:{printable(path)}: {reason}") from error
    return listener


def remove_socket(path: str) -> None:
    """Removes the file. Raises OSError."""
    remove_file(Path(path), output_users())


def _bind(listener: socket.socket, path: str) -> None:
    """Binds without following other users' links. Raises OSError, ValueError."""
    users = output_users()

    def act(found: Destination) -> None:
        with rights_of(found.user):
            listener.bind(path)
        if found.user != users[0]:
            with suppress(PermissionError):
                _give(found, users[0])

    tried(Path(path), users, act)


def _give(found: Destination, owner: User) -> None:
    handle = found.open(os.O_PATH)
    try:
        status = os.fstat(handle)
        # A user who can write to the directory may have replaced the file.
        if stat.S_ISSOCK(status.st_mode) and (status.st_uid, status.st_nlink) == (0, 1):
            os.chown(f"/proc/self/fd/{handle}", *owner)
    finally:
        os.close(handle)


def _is_left_over(path: str) -> bool:
    """Whether it is a stale socket of tracelloc's user, on which no process listens."""
    status = os.stat(path, follow_symlinks=False)
    ours = {user.uid for user in output_users()}
    if not stat.S_ISSOCK(status.st_mode) or status.st_uid not in ours:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.setblocking(False)
        return caller.connect_ex(path) == errno.ECONNREFUSED
