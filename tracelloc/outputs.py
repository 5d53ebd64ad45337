"""Files that results are written to: checked before tracing, whole or not at all."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tracelloc.errors import TracellocError, UsageError
from tracelloc.export import Exporter, exporter_for
from tracelloc.export.folded import export as folded


@dataclass(frozen=True, slots=True)
class Output:
    """A file to be written, and how."""

    path: Path
    exporter: Exporter

    @classmethod
    def flamegraph(cls, path: str) -> Output:
        """Folded stacks, whatever the name."""
        return cls(Path(path), folded)

    @classmethod
    def by_suffix(cls, path: str) -> Output:
        """The format that the suffix stands for. Raises UsageError."""
        return cls(Path(path), exporter_for(path))

    def check(self) -> None:
        """Raises UsageError unless the file could be written now. Leaves no trace."""
        try:
            if _is_special(self.path):
                if not os.access(self.path, os.W_OK):
                    raise PermissionError(13, "permission denied")
            elif self.path.is_dir():
                raise IsADirectoryError(21, "it is a directory")
            else:
                with tempfile.NamedTemporaryFile(dir=self.path.parent, prefix=".tracelloc-"):
                    pass
        except OSError as error:
            raise UsageError(f"{self.path} cannot be written: {error.strerror}") from error

    def write(self, content: Iterable[bytes]) -> None:
        """Writes beside the file and renames: readers see the old content or the new.

        Raises TracellocError; the old file is then as it was.
        """
        try:
            if _is_special(self.path):
                with open(self.path, "wb", buffering=1 << 16) as stream:
                    stream.writelines(content)
                return
            self._replace(content)
        except OSError as error:
            raise TracellocError(f"{self.path} could not be written: {error.strerror}") from error

    def _replace(self, content: Iterable[bytes]) -> None:
        descriptor, name = tempfile.mkstemp(dir=self.path.parent, prefix=".tracelloc-")
        try:
            with os.fdopen(descriptor, "wb", buffering=1 << 16) as stream:
                stream.writelines(content)
            os.replace(name, self.path)
        except BaseException:
            os.unlink(name)
            raise


def _is_special(path: Path) -> bool:
    """A pipe or device: written as it is, not replaced."""
    try:
        return not stat.S_ISREG(path.stat().st_mode) and not path.is_dir()
    except FileNotFoundError:
        return False
