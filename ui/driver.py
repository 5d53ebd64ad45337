"""Textual's driver for Linux, for terminals that go away.

Textual writes from a thread that a write error would end; the thread that draws would then
wait for it for ever, and nothing would be detached or written any more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TextIO

from textual.drivers.linux_driver import LinuxDriver


class GuardedStream:
    """A stream whose reader may be gone: what is written then is dropped."""

    def __init__(self, stream: TextIO, lost: Callable[[], None]) -> None:
        """``lost`` is called once, from the thread that writes."""
        self._stream = stream
        self._lost = lost
        self._is_lost = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Writes, or drops."""
        self._guard(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        """Flushes, if there is still anything to flush to."""
        self._guard(self._stream.flush)

    def _guard(self, call: Callable[..., object], *arguments: str) -> None:
        if not self._is_lost:
            try:
                call(*arguments)
            except (OSError, ValueError):
                self._is_lost = True
                self._lost()


class TerminalDriver(LinuxDriver):
    """Ends the application when its terminal is gone."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._file: Any = GuardedStream(self._file, self._end)

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._app.exit)
