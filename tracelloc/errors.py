"""The errors a user can cause or cure. ``cli.main`` is the only place that catches them."""

import errno
import os
import signal
from typing import Final


class TracellocError(Exception):
    """An error that ends tracelloc with ``exit_code``: what is wrong, and a hint on what to do."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.is_reported = False  # Whether the user has been told already

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class UsageError(TracellocError):
    """An option or its value makes no sense."""

    exit_code = 2


class PrivilegeError(TracellocError):
    """Root or capabilities are missing."""


def privilege_hint() -> str:
    """Returns a hint for missing permissions."""
    if os.geteuid() == 0:
        return "a security module or a container's limits forbid it even to root"
    return "run tracelloc as root (sudo)"


def scarcity(error: OSError) -> str | None:
    """Returns which resource ran out, and what helps; None if the error is another one."""
    return _SCARCE.get(error.errno or 0)


_SCARCE: Final = {
    errno.EMFILE: "too many open files; raise the limit (ulimit -n)",
    errno.ENFILE: "the whole machine has too many open files",
    errno.ENOMEM: "there is no memory left for it; --sample, --min-size or a larger --max-memory "
    "may help",
}


class OutputError(TracellocError):
    """A stream can't be written. If its reader has closed it, the program ends silently."""

    def __init__(self, name: str, error: OSError) -> None:
        why = "it is closed" if error.errno == errno.EBADF else error.strerror
        super().__init__(f"{name} cannot be written: {why}")
        if error.errno == errno.EPIPE:
            # As if SIGPIPE had ended it.
            self.exit_code, self.is_reported = 128 + signal.SIGPIPE, True


class TargetError(TracellocError):
    """The process can't be traced: it has ended, is no program, or has nothing to probe."""


NOT_EXECUTABLE_STATUS: Final = 126
NOT_FOUND_STATUS: Final = 127  # Exit statuses that shells use for programs that can't be run


class ProgramError(TracellocError):
    """The program can't be executed; ``exit_code`` is that of a shell in this case."""

    def __init__(self, name: str, code: int) -> None:
        super().__init__(f"cannot execute {name}: {os.strerror(code)}")
        self.exit_code = NOT_FOUND_STATUS if code == errno.ENOENT else NOT_EXECUTABLE_STATUS


class UnsupportedError(TracellocError):
    """The kernel, machine or bcc can't do what tracing needs."""


class MalformedError(Exception):
    """A file's content violates its format; the text is a message for people."""
