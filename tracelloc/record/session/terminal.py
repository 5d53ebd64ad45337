"""A terminal for a program that we start while our own shows something else: a pty.

What the program writes is read by a thread at once, so that it never waits for a reader,
and the end of it is kept (pty(7), termios(3)).
"""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import select
import struct
import termios
import threading
from contextlib import suppress
from typing import BinaryIO, Final

_KEPT_BYTES: Final = 4 << 20
"""The end of what was written."""
_PIECE_BYTES: Final = 1 << 16


class ProgramTerminal:
    """Both ends of it. Thread safe."""

    def __init__(self, rows: int, columns: int, copy_to: BinaryIO | None = None) -> None:
        """``copy_to`` gets all that the program writes, as it is. Raises OSError."""
        self._ours, self._its = pty.openpty()
        self.resize(rows, columns)
        self._copies = [] if copy_to is None else [copy_to]
        self._lock = threading.Lock()
        self._kept = bytearray()
        self._first = 0
        """How many bytes were written before those that are kept."""
        self._thread = threading.Thread(target=self._read, name="terminal", daemon=True)
        self._thread.start()

    def resize(self, rows: int, columns: int) -> None:
        """Tells the program how large it is."""
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, size)

    def adopt(self) -> None:
        """In the program's process, before it executes: its terminal and streams are these."""
        os.setsid()
        fcntl.ioctl(self._its, termios.TIOCSCTTY, 0)
        for stream in range(3):
            os.dup2(self._its, stream)

    def release(self) -> None:
        """The program has its end; when it closes that, nothing more comes."""
        os.close(self._its)

    def type(self, data: bytes) -> None:
        """Keys for the program. Dropped if it has not read so many that there is no room."""
        if select.select([], [self._ours], [], 0)[1]:
            os.write(self._ours, data)

    def written_since(self, position: int) -> tuple[int, bytes]:
        """What was written from a position on, as far as it is kept, and the next position."""
        with self._lock:
            start = max(0, position - self._first)
            return self._first + len(self._kept), bytes(self._kept[start:])

    def pass_on(self, stream: BinaryIO) -> None:
        """From here on, what is written goes to this stream as well."""
        with self._lock:
            self._copies.append(stream)

    def join(self) -> None:
        """Waits until all programs have closed it and all of it was read."""
        self._thread.join()
        os.close(self._ours)

    def _read(self) -> None:
        while piece := self._read_once():
            with self._lock:
                self._kept += piece
                surplus = len(self._kept) - _KEPT_BYTES
                if surplus > 0:
                    del self._kept[:surplus]
                    self._first += surplus
                for stream in self._copies:
                    # Whoever reads it may be gone, or the disk full: the program goes on.
                    with suppress(OSError):
                        stream.write(piece)
                        stream.flush()

    def _read_once(self) -> bytes:
        """What was written since; nothing once the last program has closed its end."""
        try:
            return os.read(self._ours, _PIECE_BYTES)
        except OSError as error:
            if error.errno == errno.EIO:
                return b""
            raise
