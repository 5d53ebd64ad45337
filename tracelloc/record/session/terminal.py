"""A pseudoterminal for a launched program while tracelloc's own terminal shows something else.

A thread reads the program's output at once, so that the program never waits for a reader. The
end of the output is kept (pty(7), termios(3)).
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

from tracelloc.errors import OutputError

_KEPT_BYTES: Final = 4 << 20  # Bytes of output that are kept: its end
_PIECE_BYTES: Final = 1 << 16
_LINE_END: Final = b"\r\n"  # What the pseudoterminal makes of a line feed (ONLCR)


class ProgramTerminal:
    """Both ends of the pseudoterminal. Thread safe."""

    def __init__(self, rows: int, columns: int, copy_to: BinaryIO | None = None) -> None:
        """``copy_to`` gets all of the program's output, unchanged. Raises OSError."""
        self._ours, self._its = pty.openpty()
        self.resize(rows, columns)
        self._copies = [] if copy_to is None else [(copy_to, _LINE_END)]
        """Streams, each with what ends a line there."""
        self._lock = threading.Lock()
        self._kept = bytearray()
        self._first = 0
        """Number of bytes written before the kept ones."""
        self._thread = threading.Thread(target=self._read, name="terminal", daemon=True)
        self._thread.start()

    def resize(self, rows: int, columns: int) -> None:
        """Sets the terminal's size and notifies the program."""
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, size)

    def adopt(self) -> None:
        """Makes this the terminal and streams of the program's process, before it executes."""
        os.setsid()
        fcntl.ioctl(self._its, termios.TIOCSCTTY, 0)
        for stream in range(3):
            os.dup2(self._its, stream)

    def release(self) -> None:
        """Closes tracelloc's copy of the program's end, so that reading ends with the program."""
        os.close(self._its)

    def type(self, data: bytes) -> None:
        """Sends keys to the program; drops them if its input buffer is full."""
        if select.select([], [self._ours], [], 0)[1]:
            os.write(self._ours, data)

    def written_since(self, position: int) -> tuple[int, bytes]:
        """Output from a position on, as far as it is kept, and the next position."""
        with self._lock:
            start = max(0, position - self._first)
            return self._first + len(self._kept), bytes(self._kept[start:])

    def pass_on(self, stream: BinaryIO) -> None:
        """Copies further output to this terminal as well."""
        with self._lock:
            # It puts a carriage return before each line feed itself.
            self._copies.append((stream, b"\n"))

    def join(self) -> None:
        """Waits until all programs have closed the terminal and all output was read."""
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
                for stream, line_end in self._copies:
                    # The reader may be gone, or the disk full: the program goes on.
                    with suppress(OSError, OutputError):
                        stream.write(piece.replace(_LINE_END, line_end))
                        stream.flush()

    def _read_once(self) -> bytes:
        """The next output; empty once the last program has closed its end."""
        try:
            return os.read(self._ours, _PIECE_BYTES)
        except OSError as error:
            if error.errno == errno.EIO:
                return b""
            raise
