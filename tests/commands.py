"""Other programs, run for what they do or say."""

from __future__ import annotations

import subprocess
from typing import Any


def run(*command: object, timeout: float = 120, **options: Any) -> str:
    """Runs a command, which must succeed. Returns its standard output."""
    words = [str(word) for word in command]
    return subprocess.run(
        words, capture_output=True, text=True, check=True, timeout=timeout, **options
    ).stdout
