"""Opens recordings, several as one; other profiles are converted to recordings first."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from tracelloc.errors import MalformedError, TracellocError
from tracelloc.show.importers import content_of, is_text, read_profile
from tracelloc.show.importers.profiletrace import convert_profile
from tracelloc.show.recording.container import is_recording
from tracelloc.show.recording.joined import AnyRecording, JoinedTraces
from tracelloc.show.recording.reader import RecordedTrace


def open_recordings(paths: Sequence[Path]) -> AnyRecording:
    """Opens one recording, or several as one. Raises TracellocError."""
    recordings = [open_recording(path) for path in paths]
    return recordings[0] if len(recordings) == 1 else JoinedTraces(recordings)


def open_recording(path: Path) -> RecordedTrace:
    """Opens a recording, or a profile as a recording. Raises TracellocError."""
    try:
        if is_recording(path):
            return RecordedTrace(path)
        content = content_of(path)
    except (OSError, MalformedError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise TracellocError(f"{path} cannot be read: {why}") from error
    profile = read_profile(path)
    try:
        # Only the open file remains, which goes away with tracelloc.
        with tempfile.TemporaryDirectory(prefix="tracelloc-") as directory:
            into = Path(directory) / path.name
            convert_profile(profile, _tool_of(content), into)
            recording = RecordedTrace(into)
            recording.path = path
            return recording
    except MalformedError as error:
        raise TracellocError(f"{path} cannot be read: {error}") from error


def _tool_of(content: bytes) -> str:
    if content.lstrip()[:1] == b"{":
        return "tracelloc's snapshot"
    return "folded stacks" if is_text(content) else "pprof"
