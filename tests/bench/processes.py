"""Starts and ends programs under measurement and the tools beside them."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from tests.harness import read_line

# How long anything may take before it is given up; never how long it is waited for.
PATIENCE_S = 60.0
NOTICES = 50  # Lines that a wrapper may print before the program's own first one


class SkippedError(Exception):
    """Something can't be measured here; the message says why."""


def end(process: subprocess.Popen[bytes], *, whole_group: bool = False) -> None:
    """Kills a process that we started, or the group that it leads, and reaps it."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            if whole_group:
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
    process.wait(PATIENCE_S)


class Program:
    """Answers each number of milliseconds with the units of work done and the time taken.

    May stand behind a wrapper, which prints lines of its own first.
    """

    def __init__(self, command: Sequence[str | Path]) -> None:
        """Raises SkippedError if it does not become ready."""
        self.process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )
        self.pid = self.process.pid
        try:
            self._await_ready()
        except (EOFError, TimeoutError) as error:
            self.close()
            raise SkippedError(f"{command[0]} did not start: {error}") from error

    def _await_ready(self) -> None:
        for _ in range(NOTICES):
            if read_line(self.process.stdout, "the program") == "ready":
                return
        raise EOFError("too many words before it was ready")

    def ask(self, seconds: float) -> list[int]:
        """Lets it work that long. Returns its figures."""
        self.process.stdin.write(f"{round(seconds * 1000)}\n".encode())
        return [*map(int, read_line(self.process.stdout, "the program").split())]

    def work(self, seconds: float) -> tuple[int, float]:
        """Lets it work that long. Returns the units of work, and the seconds they took."""
        done, took_ns = self.ask(seconds)
        return done, took_ns / 1e9

    def close(self) -> None:
        """Ends it by the end of its input, by force if it must be."""
        with suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(5.0)
        except subprocess.TimeoutExpired:
            end(self.process, whole_group=True)
        self.process.stdout.close()


@contextmanager
def program(command: Sequence[str | Path]) -> Iterator[Program]:
    """A Program that is gone afterwards."""
    with closing(Program(command)) as running:
        yield running


def cpu_seconds(pid: int) -> float:
    """CPU time of a process since its start, in user and kernel mode."""
    # The kernel's number of another process's clock, include/linux/posix-timers.h.
    return time.clock_gettime((~pid << 3) | 2)


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def last_words(path: Path) -> str:
    """The last line of a file that says anything."""
    lines = path.read_text(errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "it said nothing").strip()
