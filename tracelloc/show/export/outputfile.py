"""A file that a profile is written to: its path, format and permissions."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tracelloc.errors import TracellocError, UsageError
from tracelloc.show.export import Exporter, exporter_for
from tracelloc.show.export.special import check_special, is_special, open_special
from tracelloc.show.presentation.profile import Metric, Profile
from tracelloc.system.safefiles.writing import check_replaceable, output_users, replace_file

PRIVATE: Final = 0o600
"""Call stacks tell what a program does: for its owner's eyes unless asked otherwise."""

_PLACEHOLDER: Final = re.compile("%([pt%])")


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A file to be written, and how."""

    path: Path
    """``%p`` in it stands for the target's PID, ``%t`` for the time of writing."""
    exporter: Exporter
    metric: Metric = Metric.BYTES
    mode: int = PRIVATE
    """Permissions of the file."""

    @classmethod
    def by_suffix(cls, path: str) -> OutputFile:
        """The format that the suffix stands for. Raises UsageError."""
        return cls(Path(path), exporter_for(path))

    def at(self, pid: int, time_s: float) -> OutputFile:
        """Fills in the path; ``time_s`` is seconds since 1970, shown as local time."""
        return replace(self, path=filled_in(self.path, pid, time_s))

    def content(self, profile: Profile) -> Iterable[bytes]:
        """What the file will hold, in pieces."""
        return self.exporter.write(profile, self.metric)

    @property
    def needs_freed(self) -> bool:
        """Whether stacks that hold nothing any more are in it."""
        return self.exporter.needs_freed(self.metric)

    def check(self) -> None:
        """Raises UsageError unless the file could be written now. Leaves no trace."""
        try:
            if is_special(self.path):
                check_special(self.path)
            else:
                check_replaceable(self.path, output_users())
        except OSError as error:
            raise UsageError(f"{self.path} cannot be written: {error.strerror}") from error

    def write(self, content: Iterable[bytes]) -> None:
        """Writes beside the file and renames: readers see the old content or the new.

        Raises TracellocError; the old file is then as it was.
        """
        try:
            if is_special(self.path):
                with open_special(self.path) as stream:
                    stream.writelines(content)
                return
            replace_file(self.path, content, output_users(), self.mode)
        except OSError as error:
            hint = "the file that was there is unchanged" if self.path.exists() else ""
            raise TracellocError(
                f"{self.path} could not be written: {error.strerror}", hint=hint
            ) from error


def filled_in(path: Path, pid: int, time_s: float) -> Path:
    """A path with the process and the time in place of ``%p`` and ``%t``."""
    texts = {"p": str(pid), "%": "%"}
    texts["t"] = time.strftime("%Y%m%d-%H%M%S", time.localtime(time_s))
    return Path(_PLACEHOLDER.sub(lambda match: texts[match[1]], str(path)))
