"""Texts that lists of processes show."""

from __future__ import annotations

import pwd
from functools import cache
from pathlib import Path
from typing import Final

_LONGEST_COMMAND: Final = 4096  # Most bytes of a command line that are read


@cache
def user_name(uid: int) -> str:
    """A user's name, or the number if there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def command_line(directory: Path) -> str:
    """The arguments of the process with this directory in /proc (proc_pid_cmdline(5)).

    Empty if it has none. Raises OSError if it has ended.
    """
    with open(directory / "cmdline", "rb", buffering=0) as file:
        words = file.read(_LONGEST_COMMAND).rstrip(b"\0").split(b"\0")
    return b" ".join(words).decode(errors="replace")
