"""How soon and how truly is a running program's growth judged, and is a clean one suspected?

Each mode of ``tests/targets/growers.cpp`` is attached to by the command, some at a time. The
program says how many bytes it has lost, or will keep for ever. ``python -m
tests.bench.liveverdicts [--seconds S] [--at-once N] [MODE ...]`` prints a table: seconds to the
first row of a suspect and to the verdict "leaking"; the rate at the end beside the true one of the
last half.
"""

import argparse
import json
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.harness import Builder, Target, tracelloc_command

LEAKS: Final = (
    "evict", "mixed", "stops", "tree", "bursts", "errors", "threads", "cycle", "large", "rare",
)  # fmt: skip
GROWS: Final = "list", "keys", "string", "jobs"
CLEAN: Final = "pool", "sessions", "ring", "batch", "cache", "idle"
_EVERY_S: Final = 5


@dataclass
class Course:
    """The suspects of one program over time. Times are in seconds since the attach."""

    mode: str
    true_rate: float  # Bytes per minute
    first_s: float | None = None
    called_s: float | None = None
    rate: float = 0.0  # Of all leaks, or else all suspects, in the last report that has any

    def add(self, report: dict[str, Any]) -> None:
        """Adds the next report."""
        suspects, time_s = report["suspects"], report["elapsed_s"]
        if not suspects:
            return
        self.first_s = self.first_s or time_s
        leaks = [suspect for suspect in suspects if suspect["verdict"] == "leaking"]
        if leaks:
            self.called_s, suspects = self.called_s or time_s, leaks
        self.rate = sum(suspect["rate_bytes_per_min"] for suspect in suspects)

    def cells(self) -> Iterator[str]:
        """The row of the table."""
        yield self.mode
        for time_s in (self.first_s, self.called_s):
            yield "–" if time_s is None else f"{time_s:.0f}"
        yield f"{self.rate / 1024:,.0f}"
        yield f"{self.true_rate / 1024:,.0f}"


def watch(program: Path, mode: str, seconds: float) -> Course:
    """Attaches to a program in one mode."""
    with Target([program, mode]) as target:
        target.hear()
        traced = subprocess.run(
            tracelloc_command("-p", target.pid, "--json", "--interval", f"{_EVERY_S}s",
                              "--duration", f"{seconds}s"),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            check=True, timeout=seconds + 120,
        )  # fmt: skip
        target.process.kill()
        said = [tuple(map(float, line.split())) for line in target.process.stdout]
    middle, last = said[len(said) // 2], said[-2]
    course = Course(mode, (last[1] - middle[1]) / (last[0] - middle[0]) * 60)
    for line in traced.stdout.splitlines():
        course.add(json.loads(line))
    return course


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="tests.bench.liveverdicts")
    parser.add_argument("--seconds", type=float, default=180.0, help="of each program (180)")
    parser.add_argument("--at-once", type=int, default=6, help="programs at a time (6)")
    parser.add_argument("modes", nargs="*", default=[*LEAKS, *GROWS, *CLEAN], metavar="MODE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        program = Builder(Path(directory)).cpp("growers")
        with ThreadPoolExecutor(options.at_once) as pool:
            print("| program | first row, s | called, s | KiB/min | true |")
            print("|---|---|---|---|---|")
            for course in pool.map(lambda mode: watch(program, mode, options.seconds),
                                   options.modes):  # fmt: skip
                print(f"| {' | '.join(course.cells())} |", flush=True)


if __name__ == "__main__":
    main()
