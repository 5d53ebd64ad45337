"""A Unix socket to listen on: a file that belongs to its user alone."""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import suppress

from tracelloc.errors import TracellocError
from tracelloc.invoker import invoker
from tracelloc.text import printable


def listen_at(path: str, queue_length: int) -> socket.socket:
    """Makes the socket. One that nobody listens on any more is replaced. Raises TracellocError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # From the moment on that it is there: bind(2) takes the permissions over.
        os.fchmod(listener.fileno(), 0o600)
        try:
            listener.bind(path)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not _is_left_over(path):
                raise
            os.unlink(path)
            listener.bind(path)
        who = invoker()
        with suppress(PermissionError):
            os.chown(path, who.uid, who.gid, follow_symlinks=False)
        listener.listen(queue_length)
    except (OSError, ValueError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise TracellocError(f"cannot listen on unix:{printable(path)}: {reason}") from error
    return listener


def _is_left_over(path: str) -> bool:
    """Whether it is a socket of ours that nobody answers at."""
    status = os.stat(path, follow_symlinks=False)
    if not stat.S_ISSOCK(status.st_mode) or status.st_uid not in (os.geteuid(), invoker().uid):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.setblocking(False)
        return caller.connect_ex(path) == errno.ECONNREFUSED
