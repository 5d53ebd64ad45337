"""Reports errors of the command as one line, with a traceback if requested."""

import errno
import resource
import sys
import traceback
from typing import Final

from tracelloc.errors import TracellocError, scarcity
from tracelloc.text import printable

_LONGEST_MESSAGE: Final = 1000  # Most characters of an unexpected error
# How the dynamic linker and CPython report that a module could not be loaded without memory.
_NOT_LOADED: Final = (
    "failed to map segment", "without exception set", "without setting an exception",
)  # fmt: skip


def report_failure(error: BaseException, *, debug: bool) -> int:
    """Writes the error to standard error, unless it is ^C. Returns tracelloc's exit status."""
    if isinstance(error, KeyboardInterrupt):
        return 0
    if debug:
        traceback.print_exception(error)
    if not (isinstance(error, TracellocError) and error.is_reported):
        print(f"tracelloc: error: {_message_of(error)}", file=sys.stderr)
    return error.exit_code if isinstance(error, TracellocError) else 1


def _message_of(error: BaseException) -> str:
    if isinstance(error, TracellocError):
        # It may hold names that somebody else has chosen; a list has lines.
        return "\n".join(printable(line) for line in str(error).split("\n"))
    if isinstance(error, MemoryError) or _is_out_of_address_space(error):
        error = OSError(errno.ENOMEM, "")
    why = scarcity(error) if isinstance(error, OSError) else None
    if why is not None:
        return why
    text = printable(str(error))[:_LONGEST_MESSAGE]
    message = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"{message}; this is a bug, --debug shows more"


def _is_out_of_address_space(error: BaseException) -> bool:
    is_limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
    may_be = is_limited and isinstance(error, ImportError | SystemError)
    return may_be and any(words in str(error) for words in _NOT_LOADED)
