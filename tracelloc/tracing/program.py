"""A program that we start ourselves: its process waits until tracing is ready."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Sequence
from typing import Final, NoReturn

from tracelloc.errors import TracellocError
from tracelloc.text import printable

_NOT_FOUND: Final = 127
_NOT_EXECUTABLE: Final = 126
_SIGNAL_STATUS: Final = 128
"""What shells make of a program that could not be run, or was ended by a signal."""


class ProgramError(TracellocError):
    """The program can't be executed; the exit status is what shells use."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.exit_code = _NOT_FOUND if code == errno.ENOENT else _NOT_EXECUTABLE


class Program:
    """A command line, and the process that executes it. Its streams and directory are ours."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self.pid = 0
        self._go_fd = -1
        self._failure_fd = -1
        self._status: int | None = None

    def start(self) -> None:
        """Makes the process, which waits for ``go``. Its parent is the calling thread."""
        read_fd, self._go_fd = os.pipe2(os.O_CLOEXEC)
        self._failure_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        self.pid = os.fork()
        if not self.pid:
            self._become(read_fd, write_fd)
        os.close(read_fd)
        os.close(write_fd)

    def _become(self, go_fd: int, failure_fd: int) -> NoReturn:
        """In the new process: waits, then executes the command."""
        try:
            os.close(self._go_fd)
            if os.read(go_fd, 1):
                # Python ignores these, and what is ignored stays so.
                for number in (signal.SIGPIPE, signal.SIGXFSZ):
                    signal.signal(number, signal.SIG_DFL)
                os.execvp(self._command[0], self._command)  # noqa: S606 - as the user wrote it
        except OSError as error:
            os.write(failure_fd, str(error.errno).encode())
        finally:
            os._exit(_NOT_EXECUTABLE)

    def go(self) -> None:
        """Has the command executed. Raises ProgramError if it can't be."""
        os.write(self._go_fd, b"g")
        os.close(self._go_fd)
        self._go_fd = -1
        with os.fdopen(self._failure_fd, "rb") as failure:
            self._failure_fd = -1
            # Closed by exec.
            text = failure.read()
        if text:
            code = int(text)
            name = printable(self._command[0])
            raise ProgramError(f"{name} can't be executed: {os.strerror(code)}", code)

    def note_end(self, status: int) -> None:
        """For whoever has waited for it: ``status`` as of waitpid(2)."""
        self._status = status

    def wait(self) -> int:
        """Waits until it has ended. Returns its exit status, 128 + n after signal n."""
        if self._status is None:
            _, self._status = os.waitpid(self.pid, 0)
        code = os.waitstatus_to_exitcode(self._status)
        return code if code >= 0 else _SIGNAL_STATUS - code

    def abandon(self) -> None:
        """Ends the process if it still waits for ``go``."""
        for descriptor in (self._go_fd, self._failure_fd):
            if descriptor >= 0:
                os.close(descriptor)
        if self._go_fd >= 0:
            self.wait()
        self._go_fd = self._failure_fd = -1
