"""Cache directories: files that can be regenerated at any time.

Root's cache is below /var/cache/tracelloc. Another user's is below ``$XDG_CACHE_HOME`` or
``~/.cache``, and is used with that user's rights.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from tracelloc.system.invoker import Invoker, open_trusted, rights_of
from tracelloc.system.safefiles.resolve import destination, directory_made
from tracelloc.system.safefiles.writing import replace_file

_MOST_FILES_LOOKED_AT: Final = 4096


class CacheDirectory:
    """A directory of cached files, of which the least recently used ones are removed."""

    def __init__(self, who: Invoker, name: str, suffix: str, most_files: int) -> None:
        """``name``: the directory's name; empty for the common directory."""
        self.path: Path = who.cache / "tracelloc" / name
        self._who = who
        self._suffix = suffix
        self._most_files = most_files

    def recall(self, name: str, most_bytes: int) -> bytes:
        """Reads a cached file. Raises OSError if it is missing, too large or not trusted."""
        with open(self.open(name), "rb") as stream:
            content = stream.read(most_bytes + 1)
        if len(content) > most_bytes:
            raise OSError(0, f"it is larger than {most_bytes >> 20} MiB")
        return content

    def open(self, name: str) -> int:
        """Opens a cached file to read. Raises OSError if it is missing or others can write it."""
        path = self.path / (name + self._suffix)
        with destination(path, self._who.user) as found, rights_of(self._who):
            descriptor = open_trusted(path, self._who)
            os.utime(found.name, dir_fd=found.directory, follow_symlinks=False)
        return descriptor

    def remember(self, name: str, pieces: Iterable[bytes]) -> None:
        """Writes a cached file. On any error, an old file stays, and nothing is raised."""
        user = self._who.user
        with suppress(OSError), directory_made(self.path, user) as directory:
            replace_file(self.path / (name + self._suffix), pieces, [user])
            with rights_of(self._who):
                self._drop_oldest(directory)

    def _drop_oldest(self, directory: int) -> None:
        ages = []
        with os.scandir(f"/proc/self/fd/{directory}") as entries:
            for entry, _ in zip(entries, range(_MOST_FILES_LOOKED_AT), strict=False):
                if entry.name.endswith(self._suffix) and entry.is_file(follow_symlinks=False):
                    ages.append((entry.stat(follow_symlinks=False).st_mtime_ns, entry.name))
        for _, name in sorted(ages, reverse=True)[self._most_files :]:
            os.unlink(name, dir_fd=directory)
