"""A file that a profile is written to: its path, format and permissions."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tracelloc.errors import TracellocError
from tracelloc.show.export import Exporter, exporter_for
from tracelloc.show.export.special import check_special, is_special, open_special
from tracelloc.show.presentation.profile import Metric, Profile
from tracelloc.system.safefiles.writing import (
    PRIVATE,
    check_replaceable,
    output_users,
    replace_file,
)

_PLACEHOLDER: Final = re.compile("%([pt%])")


@dataclass(frozen=True, slots=True)
class OutputFile:
    """Path, format and permissions of an output file."""

    path: Path  # `%p` is replaced by the target's PID, `%t` by the time of writing
    exporter: Exporter
    metric: Metric = Metric.BYTES

    @classmethod
    def by_suffix(cls, path: str) -> OutputFile:
        """Makes an output file whose format the suffix selects. Raises UsageError."""
        return cls(Path(path), exporter_for(path))

    def at(self, pid: int, time_s: float) -> OutputFile:
        """Fills in the path; ``time_s`` is seconds since 1970, shown as local time."""
        return replace(self, path=filled_in(self.path, pid, time_s))

    def content(self, profile: Profile) -> Iterable[bytes]:
        """Returns the file's content in pieces."""
        return self.exporter.write(profile, self.metric)

    @property
    def needs_freed(self) -> bool:
        """Whether the file includes stacks without live blocks."""
        return self.exporter.needs_freed(self.metric)

    def check(self) -> None:
        """Raises TracellocError unless the file could be written now. Leaves no trace."""
        check_output(self.path)

    def write(self, content: Iterable[bytes]) -> None:
        """Writes a temporary file and renames it: readers see the old or the new content.

        Raises TracellocError; the old file is then unchanged.
        """
        write_output(self.path, content)


def check_output(path: Path) -> None:
    """Raises TracellocError unless a file could be written now. Leaves no trace."""
    try:
        if is_special(path):
            check_special(path)
        else:
            check_replaceable(path, output_users())
    except OSError as error:
        raise TracellocError(f"{path} cannot be written: {error.strerror}") from error


def write_output(path: Path, content: Iterable[bytes]) -> None:
    """Writes a file as ``OutputFile.write``. Raises TracellocError."""
    try:
        if is_special(path):
            with open_special(path) as stream:
                stream.writelines(content)
            return
        replace_file(path, content, output_users(), PRIVATE)
    except OSError as error:
        hint = "the file that was there is unchanged" if path.exists() else ""
        raise TracellocError(f"{path} could not be written: {error.strerror}", hint=hint) from error


def filled_in(path: Path, pid: int, time_s: float) -> Path:
    """Returns a path with the PID and the time in place of ``%p`` and ``%t``."""
    texts = {"p": str(pid), "%": "%"}
    texts["t"] = time.strftime("%Y%m%d-%H%M%S", time.localtime(time_s))
    return Path(_PLACEHOLDER.sub(lambda match: texts[match[1]], str(path)))
