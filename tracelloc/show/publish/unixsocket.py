"""A Unix socket to listen on: a file that belongs to its user alone."""

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
    """Makes the socket. One that nobody listens on any more is replaced. Raises TracellocError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # From the moment on that it is there: bind(2) takes the permissions over.
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
    """Gives the socket, which is root's, to a user. Raises OSError."""
    handle = found.open(os.O_PATH)
    try:
        status = os.fstat(handle)
        # Whoever can change the directory could have put something else there.
        if stat.S_ISSOCK(status.st_mode) and (status.st_uid, status.st_nlink) == (0, 1):
            os.chown(f"/proc/self/fd/{handle}", *owner)
    finally:
        os.close(handle)


def _is_left_over(path: str) -> bool:
    """Whether it is a socket of ours that nobody answers at."""
    status = os.stat(path, follow_symlinks=False)
    ours = {user.uid for user in output_users()}
    if not stat.S_ISSOCK(status.st_mode) or status.st_uid not in ours:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.setblocking(False)
        return caller.connect_ex(path) == errno.ECONNREFUSED
