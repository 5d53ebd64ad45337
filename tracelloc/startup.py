"""First steps of tracelloc: its own environment variables, and a status line.

The line is on standard error, where that is a terminal.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from typing import Final

from tracelloc.text import clear_status, show_status


class StatusLine:
    """A line in which each text takes the place of the last one, from ``begin`` to ``end``."""

    def __init__(self) -> None:
        self._is_on = False

    def begin(self, text: str) -> None:
        """Shows the first text."""
        self._is_on = sys.stderr is not None and sys.stderr.isatty()
        self.note(text)

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
        self._is_on = False


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
