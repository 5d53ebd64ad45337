"""First steps of tracelloc: its own environment variables, its standard streams, a status line."""

import io
import os
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from typing import Any, Final

from tracelloc.errors import OutputError
from tracelloc.text import clear_status, show_status

# The name of the shell that restores the terminal if tracelloc is killed
TERMINAL_GUARD: Final = "tracelloc-terminal"


class _StandardOutput(io.FileIO):
    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            _occupy(self.fileno(), os.O_WRONLY)
            raise OutputError("standard output", error) from error


def claim_streams() -> None:
    """Takes over standard output and error; descriptors that are closed become /dev/null."""
    if sys.stderr is None:
        _occupy(2, os.O_WRONLY)
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 - for the whole run
    if sys.stdout is None:
        # Writing to it is an error.
        _occupy(1, os.O_RDONLY)
    old = sys.stdout or sys.stderr
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_StandardOutput(1, "w", closefd=False)), encoding=old.encoding,
        errors=old.errors, line_buffering=bool(old.line_buffering),
    )  # fmt: skip


def _occupy(number: int, flags: int) -> None:
    """Opens /dev/null as descriptor ``number``, which executed programs do not inherit."""
    nothing = os.open(os.devnull, flags)
    if nothing != number:
        os.dup2(nothing, number, inheritable=False)
        os.close(nothing)


# The terminal's alternate screen with an empty table below the cursor (xterm's control sequences).
_FRAME: Final = (
    "\x1b[?1049h\x1b[H\x1b[J\r\n\n\x1b[7m Stacks \x1b[m\r\n"
    "          live    growth/min  verdict    allocated in\r\n\n"
    " the first rows follow when the probes are loaded\x1b[H"
)
_NO_FRAME: Final = "\x1b[?1049l"


class StatusLine:
    """A line in which each text takes the place of the last one, from ``begin`` to ``end``."""

    def __init__(self) -> None:
        self._is_on = self.has_frame = False
        self.is_quiet = False  # Whether only errors and warnings are written

    def begin(self, text: str, *, frame: bool = False) -> None:
        """Shows the first text; ``frame``: at the top of the screen that comes."""
        self._is_on = not self.is_quiet and sys.stderr is not None and sys.stderr.isatty()
        self.has_frame = frame and self._is_on
        self._write(_FRAME)
        self.note(text)

    def _write(self, frame: str) -> None:
        if self.has_frame:
            with suppress(OSError, ValueError):
                print(frame, end="", file=sys.stderr, flush=True)

    def leave_frame(self) -> None:
        """Leaves the frame to the screen that takes its place; the line has ended."""
        self._is_on = self.has_frame = False

    def note(self, text: str) -> None:
        """Shows the current step, as printable text, between ``begin`` and ``end`` only."""
        if self._is_on:
            with suppress(OSError, ValueError):  # the terminal is gone
                show_status(f"{text}…")

    def end(self) -> None:
        """Removes the line. May be called twice."""
        if self._is_on:
            with suppress(OSError, ValueError):
                clear_status()
        self._write(_NO_FRAME)
        self._is_on = self.has_frame = False


# glibc's malloc.h
_M_ARENA_MAX: Final = -8
_M_MMAP_THRESHOLD: Final = -3
_M_TRIM_THRESHOLD: Final = -1

STARTUP: Final = StatusLine()  # The program's own


OWN_PREFIX: Final = "TRACELLOC_"  # Prefix of tracelloc's own variables: passwords, tokens
# The variables of tracelloc's own that were in `os.environ` when it started.
OWN_VARIABLES: Final[dict[str, str]] = {}


def take_own_variables() -> None:
    """Removes tracelloc's own variables from the environment that child processes inherit."""
    for name in [name for name in os.environ if name.startswith(OWN_PREFIX)]:
        OWN_VARIABLES[name] = os.environ.pop(name)


def import_numpy() -> None:
    """Imports numpy without the thread per processor that its BLAS would start."""
    _limit_malloc()
    variable = "OPENBLAS_NUM_THREADS"
    if variable not in os.environ:
        os.environ[variable] = "1"
        import_module("numpy")
        # Programs that are started must not see it.
        del os.environ[variable]


def _limit_malloc() -> None:
    """Has glibc return large arrays at once, and not keep an arena for each thread (mallopt(3)).

    Batches of events are smaller: mapped anew each time, they would cost a fifth more to read.
    """
    mallopt = getattr(import_module("ctypes").CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_THRESHOLD, 1 << 22)
        mallopt(_M_TRIM_THRESHOLD, 1 << 23)


def not_ignored(numbers: Iterable[int], *, interrupts: bool = False) -> list[int]:
    """Returns the signals that tracelloc was not started to ignore, as nohup(1) has it.

    ``interrupts``: includes SIGINT always, which shell scripts have their background commands
    ignore, though ``kill -INT`` is how the scripts end them.
    """
    always = {signal.SIGINT} if interrupts else set()
    return [n for n in numbers if n in always or signal.getsignal(n) is not signal.SIG_IGN]
