"""What is said on standard error while tracing: lines, and one that shows progress."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import Final

_PROGRESS_S: Final = 10.0
"""Time between progress lines where standard error is no terminal."""


class Messages:
    """For one thread, but for ``say_aside``."""

    def __init__(self) -> None:
        self._last_progress_s = 0.0
        self._progress_shown = False

    def say(self, message: str) -> None:
        """A line of its own."""
        # The terminal may be gone; that must not keep files from being written.
        with suppress(OSError):
            print(f"tracelloc: {message}", file=sys.stderr, flush=True)

    def say_aside(self, message: str) -> None:
        """For other threads: on a line of its own, whatever progress is being shown."""
        self.say(f"\r\x1b[K{message}" if sys.stderr.isatty() else message)

    def show_progress(self, line: str) -> None:
        """On a terminal in place of the last such line, else now and then."""
        now = time.monotonic()
        terminal = sys.stderr.isatty()
        if not terminal and now - self._last_progress_s < _PROGRESS_S:
            return
        self._last_progress_s = now
        if terminal:
            print(f"\rtracelloc: {line}\x1b[K", end="", file=sys.stderr, flush=True)
            self._progress_shown = True
        else:
            self.say(line)

    def end_progress(self) -> None:
        """What is said next begins on a line of its own."""
        if self._progress_shown:
            print(file=sys.stderr)
            self._progress_shown = False
