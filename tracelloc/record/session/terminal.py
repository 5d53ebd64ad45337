"""A pseudoterminal for a launched program while tracelloc's own terminal shows something else.

A thread reads the program's output at once, so that the program never waits for a reader. The
end of the output is kept (pty(7), termios(3)).
"""

import errno
import fcntl
import os
import pty
import struct
import termios
import threading
from contextlib import suppress
from typing import BinaryIO, Final

from tracelloc.errors import OutputError

_KEPT_BYTES: Final = 1 << 17  # Bytes of output that are kept: its end
_PIECE_BYTES: Final = 1 << 16
_LINE_END: Final = b"\r\n"  # What the pseudoterminal makes of a line feed (ONLCR)


class ProgramTerminal:
    """A pseudoterminal for a launched program, whose output it reads and keeps. Thread safe."""

    def __init__(self, rows: int, columns: int, copy_to: BinaryIO | None = None) -> None:
        self._ours, self._its = pty.openpty()
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        # Streams, each with what ends a line there
        self._copies = [] if copy_to is None else [(copy_to, _LINE_END)]
        self._lock = threading.Lock()
        self._kept = bytearray()
        self._written = 0
        self._thread = threading.Thread(target=self._read, name="terminal", daemon=True)
        self._thread.start()

    def adopt(self) -> None:
        """Makes this terminal the calling process's; called in the program's, before its exec."""
        os.setsid()
        fcntl.ioctl(self._its, termios.TIOCSCTTY, 0)
        for stream in range(3):
            os.dup2(self._its, stream)

    def release(self) -> None:
        """Closes tracelloc's copy of the program's side, so that reading ends with the program."""
        os.close(self._its)

    def last_output(self) -> tuple[int, bytes]:
        """Returns (number of bytes that the program has written, the last, kept bytes)."""
        with self._lock:
            return self._written, bytes(self._kept)

    def pass_on(self, stream: BinaryIO) -> None:
        """Copies further output of the program to a stream, tracelloc's terminal, as well."""
        with self._lock:
            # It puts a carriage return before each line feed itself.
            self._copies.append((stream, b"\n"))

    def join(self) -> None:
        self._thread.join()
        os.close(self._ours)

    def _read(self) -> None:
        while piece := self._read_once():
            with self._lock:
                self._kept += piece
                self._written += len(piece)
                del self._kept[:-_KEPT_BYTES]
                for stream, line_end in self._copies:
                    # The reader may be gone, or the disk full: the program goes on.
                    with suppress(OSError, OutputError):
                        stream.write(piece.replace(_LINE_END, line_end))
                        stream.flush()

    def _read_once(self) -> bytes:
        """Reads the next output; empty once the last program has closed its side."""
        try:
            return os.read(self._ours, _PIECE_BYTES)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return b""
