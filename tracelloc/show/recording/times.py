"""Finds the snapshot of a recording that a time given by the user selects."""

import re
from datetime import datetime
from pathlib import Path
from typing import Final

from tracelloc.errors import UsageError
from tracelloc.show.recording.joined import AnyRecording, missed_count
from tracelloc.text import format_time, parse_duration, plural

_CLOCK: Final = re.compile(r"(\d{1,2}):(\d\d)(?::(\d\d))?")
_DAY_S: Final = 86_400
_TOLERANCE_S: Final = 1.0
_FORMS: Final = "times are 03:15, 03:15:30, 2026-11-22T03:15, +90m from the start, -5m from the end"


def find_moment(recording: AnyRecording, text: str | None) -> int:
    """Returns the last snapshot not after a time; None: the last of all. Raises UsageError."""
    moments = recording.moments
    if text is None:
        return len(moments) - 1
    return recording.find(parse_time(text, moments[0].time_s, moments[-1].time_s))


def count_words(recording: AnyRecording) -> str:
    """Returns, in words, how many snapshots a recording has, and how many it has missed."""
    words = plural(len(recording.moments), "snapshot")
    missed = missed_count(recording.about)
    return f"{words}, {missed:,} missed" if missed else words


def parse_time(text: str, first_s: float, last_s: float) -> float:
    """Parses a time typed by the user; returns seconds since 1970. Raises UsageError."""
    try:
        time_s = _seconds(text, first_s, last_s)
    except (ValueError, OverflowError):
        raise UsageError(f"{text!r} is not a time", hint=_FORMS) from None
    if not first_s - _TOLERANCE_S <= time_s <= last_s + _TOLERANCE_S:
        raise UsageError(
            f"{text} is not recorded",
            hint=f"recorded is from {format_time(first_s)} to {format_time(last_s)}",
        )
    return time_s


def _seconds(text: str, first_s: float, last_s: float) -> float:
    if text.startswith("+"):
        return first_s + parse_duration(text[1:])
    if text.startswith("-"):
        return last_s - parse_duration(text[1:])
    if (clock := _CLOCK.fullmatch(text)) is not None:
        hour, minute, second = (int(part or 0) for part in clock.groups())
        day = datetime.fromtimestamp(last_s).replace(
            hour=hour, minute=minute, second=second, microsecond=0
        )
        at_s = day.timestamp()
        # The latest time that the clock showed this.
        return at_s if at_s <= last_s + _TOLERANCE_S else at_s - _DAY_S
    return datetime.fromisoformat(text).timestamp()


def split_time(text: str) -> tuple[Path, str | None]:
    """Splits ``FILE@03:15`` into the path and the time; None if there is no time."""
    path = Path(text)
    name, at, time_text = text.rpartition("@")
    if not at or path.exists():
        return path, None
    return Path(name), time_text
