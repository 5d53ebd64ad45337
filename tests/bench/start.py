"""How soon after the start is there something to read, and what does that cost?

Everything runs in a terminal of its own (a pty) of 120 by 40 cells, on a small program that
allocates all the time. A first start on a machine has an empty cache directory.
"""

import compileall
import fcntl
import os
import pty
import re
import select
import signal
import statistics
import struct
import subprocess
import tempfile
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.bench.frame import Bench, at_most, table
from tests.bench.processes import end
from tests.harness import PATIENCE_S, Builder, tracelloc_command

# At most, by what is started.
TARGETS = {
    "--version": {"cpu_s": 0.15},
    "--help": {"cpu_s": 0.15},
    "a wrong option": {"cpu_s": 0.15},
    "reports": {"first_sign_s": 0.3, "first_figures_s": 1.2, "cpu_s": 1.0, "rss_mib": 120},
    "reports, first start": {"first_sign_s": 0.3, "first_figures_s": 2.5},
    "-- CMD, first start": {"first_sign_s": 0.3, "first_figures_s": 2.5},
    "-- CMD": {"first_sign_s": 0.3, "first_figures_s": 1.2},
    "screen": {"first_sign_s": 0.3, "first_figures_s": 1.2},
    "screen, first start": {"first_sign_s": 0.3, "first_figures_s": 2.5},
}
# What the figures of `Started` are, for people.
FIGURES = {
    "first_sign_s": "s to the first output",
    "first_figures_s": "s to the first figures",
    "cpu_s": "s of CPU",
    "rss_mib": "MiB of memory",
}
ROUNDS = 5
# Functions of the target, which have names once there are figures.
_FIGURES = re.compile(rb"record_request|cache_lookup|render_page")


@dataclass(frozen=True)
class Started:
    """One start. Times are from the start of the process on."""

    first_sign_s: float  # When the first output came
    first_figures_s: float  # When a function of the target was named; the end, where none is
    cpu_s: float  # CPU time of the command and its children, from the beginning to the end
    rss_mib: float  # The most that was resident


def measure() -> dict[str, dict[str, float]]:
    """The medians of everything, of sources that are compiled as an installed package's are."""
    root = Path(__file__).parents[2]
    for package in ("tracelloc", "ui"):
        compileall.compile_dir(root / package, quiet=1)
    with tempfile.TemporaryDirectory(prefix="bench-start-") as name:
        scratch = Path(name)
        leaky = Builder(scratch).c("leaky", "-O2")
        program = subprocess.Popen([leaky, "3600"])
        try:
            reports = ("-p", program.pid, "--text", "--interval", "1s")
            samples: dict[str, list[Started]] = {what: [] for what in TARGETS}
            for number in range(ROUNDS):
                first, again = scratch / f"cache{number}", scratch / "cache"
                for what, arguments, cache in (
                    ("--version", ("--version",), again),
                    ("--help", ("--help",), again),
                    ("a wrong option", ("--bogus",), again),
                    ("reports, first start", reports, first),
                    ("reports", reports, first),
                    ("-- CMD, first start", ("--text", "--", leaky, "60"), first),
                    ("-- CMD", ("--text", "--", leaky, "60"), first),
                    ("screen, first start", ("-p", program.pid), scratch / f"other{number}"),
                    ("screen", ("-p", program.pid), first),
                ):
                    samples[what].append(start(arguments, cache))
        finally:
            end(program)
    return {
        what: {
            figure: statistics.median(getattr(sample, figure) for sample in several)
            for figure in TARGETS[what]
        }
        for what, several in samples.items()
    }


def tables(_: Bench) -> Iterator[str]:
    """The figures beside their targets."""
    rows = [
        at_most(f"{what}: {FIGURES[figure]}", value, TARGETS[what][figure], "{:.2f}")
        for what, figures in measure().items()
        for figure, value in figures.items()
    ]
    yield from table("Starts (medians; CPU to the end)", ["", "", "at most", ""], rows)


def start(arguments: tuple[str | Path | int, ...], cache: Path) -> Started:
    """Starts tracelloc, and ends it when it has shown figures."""
    command = tracelloc_command(*arguments)
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "TERM": "xterm-256color"}
    began_s = time.monotonic()
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(command[0], command, environment)
    try:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        seen, first_s, figures_s = b"", 0.0, 0.0
        while output := _read(terminal, began_s):
            now_s = time.monotonic() - began_s
            seen += output
            first_s = first_s or now_s
            if not figures_s and _FIGURES.search(seen):
                figures_s = now_s
                os.kill(pid, signal.SIGTERM)
    finally:
        os.close(terminal)
        _, _, used = os.wait4(pid, 0)
    end_s = time.monotonic() - began_s
    cpu_s = used.ru_utime + used.ru_stime
    return Started(first_s, figures_s or end_s, cpu_s, used.ru_maxrss / 1024)


def _read(terminal: int, began_s: float) -> bytes:
    """The next output; none once the other end is closed. Raises TimeoutError."""
    left_s = max(0.0, began_s + PATIENCE_S - time.monotonic())
    if not select.select([terminal], [], [], left_s)[0]:
        raise TimeoutError("no figures were shown")
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # EIO
        return b""
