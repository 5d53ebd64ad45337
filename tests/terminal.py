"""A real terminal: tmux runs the program, takes keys and tells what is on the screen."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

PATIENCE_S = 60.0
_LOOK_S = 0.04  # Between two looks at the screen, for each of which a process is started
_numbers = itertools.count()


class Terminal:
    """One program in a terminal of its own, ``width`` times ``height`` cells."""

    def __init__(
        self,
        command: Sequence[str | Path | int],
        directory: Path,
        *,
        width: int = 80,
        height: int = 24,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.socket = f"tracelloc-{os.getpid()}-{next(_numbers)}"
        words = [f"{name}={value}" for name, value in (environment or {}).items()]
        line = shlex.join(["env", *words, *map(str, command)])
        # What it leaves behind stays to be read.
        self._tmux(
            "-f", "/dev/null", "new-session", "-d", "-x", str(width), "-y", str(height),
            "-c", str(directory), f"{line}; echo ended with $?; cat",
        )  # fmt: skip

    def _tmux(self, *words: str) -> str:
        command = ["tmux", "-L", self.socket, *words]
        done = subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S)
        return done.stdout.decode(errors="replace")

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["tmux", "-L", self.socket, "kill-server"], check=False, capture_output=True)

    @property
    def pid(self) -> int:
        """Of the shell that runs the program."""
        return int(self._tmux("display-message", "-p", "#{pane_pid}"))

    def screen(self) -> list[str]:
        """The lines of the screen."""
        return self._tmux("capture-pane", "-p").splitlines()

    def colours(self) -> str:
        """The screen with its escape sequences."""
        return self._tmux("capture-pane", "-p", "-e", "-N")

    def press(self, *keys: str) -> None:
        """Keys by tmux's names."""
        self._tmux("send-keys", *keys)

    def type(self, text: str) -> None:
        """Text, as it is."""
        self._tmux("send-keys", "-l", text)

    def resize(self, width: int, height: int) -> None:
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    def wait_until(self, holds: Callable[[list[str]], bool], what: str) -> list[str]:
        """Looks until this holds of the lines. Returns them."""
        end_s = time.monotonic() + PATIENCE_S
        while True:
            lines = self.screen()
            if holds(lines):
                return lines
            if time.monotonic() > end_s:
                raise AssertionError(f"never saw {what}:\n" + "\n".join(lines))
            time.sleep(_LOOK_S)

    def wait_for(self, pattern: str) -> list[str]:
        """Looks until a line matches. Returns all lines."""
        search = re.compile(pattern).search
        return self.wait_until(lambda lines: any(map(search, lines)), pattern)

    def leave(self, pattern: str) -> None:
        """Quits the screen, which asks once when it has traced for a minute, until this shows."""
        self.press("q")
        lines = self.wait_for(rf"{pattern}|q quit · e export first")
        if not any(re.search(pattern, line) for line in lines):
            self.press("q")
            self.wait_for(pattern)

    def quit(self) -> int:
        self.leave(r"^ended with \d+$")
        return self.wait_for_end()

    def wait_for_end(self) -> int:
        lines = self.wait_for(r"^ended with \d+$")
        return int(next(line for line in lines if line.startswith("ended with")).split()[-1])
