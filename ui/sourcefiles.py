"""Source files that screens show lines of."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from tracelloc.system.syscalls import open_inside, open_regular

_LARGEST_BYTES: Final = 4 << 20
_MOST: Final = 8
"""Files that are kept; they may be changed while tracing goes on, but the program not."""


class SourceFiles:
    """Reads source files as a process sees them, or as they lie here."""

    def __init__(self) -> None:
        self._read: dict[tuple[int | None, str], list[str] | OSError] = {}

    def read(self, pid: int | None, path: str) -> list[str]:
        """The lines of a file. Raises OSError. ``pid``: whose root directory is looked in first."""
        key = pid, path
        if key not in self._read:
            if len(self._read) >= _MOST:
                self._read.clear()
            self._read[key] = read_source(*key)
        found = self._read[key]
        if isinstance(found, OSError):
            raise found
        return found


def read_source(pid: int | None, path: str) -> list[str] | OSError:
    """The lines of a source file, or why they can't be read."""
    last: OSError = FileNotFoundError(2, "No such file or directory")
    ways: list[Callable[[], int]] = [partial(open_regular, path)]
    if pid is not None:
        ways.insert(0, partial(open_inside, f"/proc/{pid}/root", path))
    for opened in ways:
        try:
            with open(opened(), "rb") as stream:
                return stream.read(_LARGEST_BYTES).decode(errors="replace").splitlines()
        except OSError as error:
            last = error
    return last
