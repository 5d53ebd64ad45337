"""What a recording says at its end, read by ``tracelloc report`` in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tracelloc.text import printable

_PATIENCE_S: Final = 120.0


def report_on(recording: str, top: int) -> dict[str, Any] | None:
    """The JSON report on the last snapshot, with so many stacks; None if it can't be read."""
    words = ["report", recording, "--format", "json", "--top", str(top)]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tracelloc", *words], stdin=subprocess.DEVNULL,
            capture_output=True, timeout=_PATIENCE_S, check=True,
        )  # fmt: skip
        report: dict[str, Any] = json.loads(done.stdout.splitlines()[0])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    return report


def stack_name(stack: Sequence[Mapping[str, Any]]) -> str:
    """A stack's innermost function that is not hidden, with its source line."""
    frame = next((one for one in stack if not one.get("hidden")), None)
    if frame is None:
        return "?"
    name = printable(frame.get("symbol") or frame.get("label") or "?")
    file, line = frame.get("file"), frame.get("line")
    return f"{name} ({printable(file.rpartition('/')[2])}:{line})" if file else name
