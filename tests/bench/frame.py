"""The frame of ``make bench``: interleaved rounds, what is left out and why, tables as text."""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tests.bench.processes import SkippedError
from tests.bench.tools import Tool

# Why a tool is left out; the others go on.
TROUBLE = (SkippedError, OSError, EOFError, AssertionError, subprocess.SubprocessError)
Sample = TypeVar("Sample")


@dataclass
class Bench:
    """One run."""

    seconds: float  # Per measurement
    rounds: int
    tools: Sequence[Tool]
    scratch: Path
    skipped: dict[str, str] = field(default_factory=dict)  # Why a tool or a part is missing
    began_s: float = field(default_factory=time.monotonic)

    def say(self, line: str) -> None:
        print(f"[{time.monotonic() - self.began_s:4.0f} s] {line}", file=sys.stderr, flush=True)

    def skip(self, name: str, reason: object) -> None:
        self.skipped[name] = str(reason)
        self.say(f"skipped: {name}: {reason}")

    def sample(
        self, what: str, names: Sequence[str], measure: Callable[[Tool], Sample]
    ) -> dict[str, list[Sample]]:
        """Measures every tool once before the next round begins, so that ratios hold."""
        found: dict[str, list[Sample]] = {}
        for number in range(self.rounds):
            self.say(f"{what}: round {number + 1}")
            for tool in self.tools:
                key = f"{tool.name} on {what}"
                if tool.name in names and key not in self.skipped:
                    try:
                        found.setdefault(tool.name, []).append(measure(tool))
                    except TROUBLE as reason:
                        self.skip(key, reason)
        return {name: samples for name, samples in found.items() if samples}


def ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """The median of the rounds' ratios: each compares what was measured side by side."""
    return statistics.median(a / b for a, b in zip(above, below, strict=False))


def verdict(is_met: bool) -> str:
    return "met" if is_met else "MISSED"


def at_most(what: str, value: float, target: float, form: str) -> list[str]:
    """A row of a figure with its target, both written as ``form`` says."""
    return [what, form.format(value), form.format(target), verdict(value <= target)]


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns as wide as their widest cell: the first to the left, the others to the right."""
    if not rows:
        return
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    yield title
    for row in (head, ["-" * width for width in widths], *rows):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        yield "  ".join(cells)
    yield ""
