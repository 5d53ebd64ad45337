"""Opens recordings, several as one; heaptrack's files are converted to recordings first."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from tracelloc.errors import MalformedError, TracellocError
from tracelloc.show.importers import GZIP, ZSTD, content_of, heaptrack
from tracelloc.show.importers.heaptracktrace import convert
from tracelloc.show.recording.joined import AnyRecording, JoinedTraces
from tracelloc.show.recording.reader import RecordedTrace
from tracelloc.text import Progress, format_percent


def open_recordings(paths: Sequence[Path]) -> AnyRecording:
    """Opens one recording, or several as one. Raises TracellocError."""
    recordings = [open_recording(path) for path in paths]
    return recordings[0] if len(recordings) == 1 else JoinedTraces(recordings)


def open_recording(path: Path) -> RecordedTrace:
    """Opens a recording, or a heaptrack file as a recording. Raises TracellocError."""
    try:
        with path.open("rb") as stream:
            may_be = stream.read(4).startswith((ZSTD, GZIP, heaptrack.HEAD))
        content = content_of(path) if may_be else b""
    except (OSError, MalformedError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise TracellocError(f"{path} cannot be read: {why}") from error
    return _played(path, content) if heaptrack.is_heaptrack(content) else RecordedTrace(path)


def _played(path: Path, content: bytes) -> RecordedTrace:
    progress = Progress()
    try:
        # Only the open file remains, which goes away with tracelloc.
        with tempfile.TemporaryDirectory(prefix="tracelloc-") as directory:
            into = Path(directory) / path.name
            convert(content, path, into, lambda share: progress.note(
                f"reading {path.name}, {format_percent(share, 0)}"
            ))  # fmt: skip
            recording = RecordedTrace(into)
            recording.path = path
            return recording
    except MalformedError as error:
        raise TracellocError(f"{path} cannot be read: {error}") from error
    finally:
        progress.end()
