"""Prepares standard output and error for every command."""

from __future__ import annotations

import io
import os
import sys
from typing import Any

from tracelloc.errors import OutputError


class _StandardOutput(io.FileIO):
    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            _occupy(self.fileno(), os.O_WRONLY)
            raise OutputError("standard output", error) from error


def claim_streams() -> None:
    """Takes over standard output and error; descriptors that are closed become /dev/null."""
    if sys.stderr is None:
        _occupy(2, os.O_WRONLY)
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 - for the whole run
    if sys.stdout is None:
        # Writing to it is an error.
        _occupy(1, os.O_RDONLY)
    old = sys.stdout or sys.stderr
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_StandardOutput(1, "w", closefd=False)),
        encoding=old.encoding,
        errors=old.errors,
        line_buffering=bool(old.line_buffering),
    )


def _occupy(number: int, flags: int) -> None:
    """Opens /dev/null as descriptor ``number``, which executed programs do not inherit."""
    nothing = os.open(os.devnull, flags)
    if nothing != number:
        os.dup2(nothing, number, inheritable=False)
        os.close(nothing)
