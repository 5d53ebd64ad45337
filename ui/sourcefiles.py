"""Source files whose lines the screens show."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from tracelloc.system.syscalls import open_inside, open_regular

_LARGEST_BYTES: Final = 4 << 20
_MOST: Final = 8
"""Most files in the cache. They are not read again if they change: the program is older."""


class SourceFiles:
    """Reads source files in a process's root directory or on this machine, with a cache."""

    def __init__(self) -> None:
        self._read: dict[tuple[int | None, str], list[str] | OSError] = {}

    def read(self, pid: int | None, path: str) -> list[str]:
        """Returns a file's lines; the root directory of ``pid`` is tried first. Raises OSError."""
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
    """Returns the lines of a source file, or the error that prevents reading it."""
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
