"""What ``record`` asks for beside what every trace does."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tracelloc.command.commandline import CommandLine, recorded_command_line
from tracelloc.errors import UsageError
from tracelloc.text import format_size

TOP: Final = 10
"""Largest blocks that each moment has."""
LEAST_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """Where a recording goes, and how large it may get."""

    path: Path
    """``%p`` in it stands for the target's PID, ``%t`` for the time."""
    max_bytes: int
    max_s: float
    """How far it may reach back."""
    events: bool = False
    """Every event is kept, too."""


def check_bounds(given: argparse.Namespace) -> None:
    """Raises UsageError for recordings that hold next to nothing."""
    if given.recording_bytes < LEAST_BYTES:
        raise UsageError(f"--max-size must be at least {format_size(LEAST_BYTES)}")
    if given.max_time < 60:
        raise UsageError("--max-time must be at least 60s")


def record_options(
    given: argparse.Namespace, command: tuple[str, ...]
) -> tuple[CommandLine, RecordOptions]:
    """The trace that is to be recorded, and where. Raises UsageError."""
    check_bounds(given)
    given.top = TOP
    line = recorded_command_line(given, command)
    path = Path(given.recording)
    if "%" not in str(path) and path.exists():
        raise UsageError(f"{path} exists already", hint="recordings are not extended")
    if not path.parent.is_dir():
        raise UsageError(f"{path} cannot be written: there is no directory {path.parent}")
    return line, RecordOptions(path, given.recording_bytes, given.max_time, events=given.events)
