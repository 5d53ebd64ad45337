"""How much CPU time does the screen take, and how fast does it answer?

16,384 stacks, 327,680 live blocks, events as fast as they come.
The screen stands in a real terminal (tmux) of 120 by 40 cells. ``python -m
tests.bench.tui`` prints one JSON object.
"""

import json
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from tests.bench.processes import Program, cpu_seconds
from tests.harness import Builder, tracelloc_command
from tests.terminal import Terminal

DEPTH = 14
BLOCKS = 20  # Per stack
SETTLE_S = 3.0  # Names are read, figures settle
KEYS = 40
_PAUSE_S = 0.2  # Between two keys
# For how long each view is looked at, in turns: a key comes at each moment between two pictures,
# which are half a second apart.
_LOOKS_S = (1.0, 1.125, 1.25, 1.375)
# Keys, and what the line above the view's first row then has; Enter opens a stack's details.
VIEWS = {
    "4": "function, callees",
    "3": "▏",
    "5": "size +bytes",
    "6": "age +bytes",
    "7": "thread +share",
    "R": "resident memory",
    "F": r"own \+ callees",
    "Y": "type$",
    "C": "live +share +peak",
    "2": "size.* address",
    "Enter": r"allocated [\d,]+ +freed",
    "1": "allocated in",
}


def measure(seconds: float = 6.0) -> dict[str, Any]:
    """All figures. Raises SkippedError."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-tui-") as name,
        closing(
            Program([Builder(Path(name)).c("thicket", "-O2"), str(DEPTH), str(BLOCKS)])
        ) as program,
    ):
        command = tracelloc_command("-p", program.pid, "--events-size", "64MiB")
        with Terminal(command, Path(name), width=120, height=40) as terminal:
            return _measure(program, terminal, seconds)


def _measure(program: Program, terminal: Terminal, seconds: float) -> dict[str, Any]:
    terminal.wait_for("no allocations seen yet")
    shell = terminal.pid
    tracelloc = int(Path(f"/proc/{shell}/task/{shell}/children").read_text().split()[0])
    # All blocks are there before anything is measured.
    whole_s = 2 * SETTLE_S + 5 * seconds + 60 + 2 * len(VIEWS) * sum(_LOOKS_S)
    program.process.stdin.write(f"{int(whole_s * 1000)}\n".encode())
    terminal.wait_for(f"{BLOCKS << DEPTH:,}")
    time.sleep(SETTLE_S)
    shares = {}
    for key, view in (("1", "allocators"), ("4", "tree"), ("3", "flame")):
        terminal.press(key)
        time.sleep(SETTLE_S / 2)
        shares[view] = _cpu_share(tracelloc, seconds)
    terminal.press("1")
    keys = _key_times_ms(terminal)
    views_s: dict[str, list[float]] = {key: [] for key in VIEWS}
    for look_s in _LOOKS_S:
        for key, mark in VIEWS.items():
            views_s[key].append(_view_s(terminal, key, mark, look_s))
            if key == "Enter":
                terminal.press("Escape")
    lines = terminal.screen()
    rate = next((m[1] for line in lines if (m := re.search(r"(\S+) events/s", line))), "?")
    lost = next((m[1] for line in lines if (m := re.search(r"lost ([\d,]+)", line))), "?")
    return {
        "stacks": 1 << DEPTH,
        "blocks": BLOCKS << DEPTH,
        "events_per_s": rate,
        "lost_events": lost,
        "profiler_cpu_share": shares,
        "view_s": {key: statistics.median(times) for key, times in views_s.items()},
        "view_worst_s": {key: max(times) for key, times in views_s.items()},
        "key_to_paint_ms": statistics.median(keys),
        "key_to_paint_p95_ms": statistics.quantiles(keys, n=20)[-1],
    }


def _cpu_share(pid: int, seconds: float) -> float:
    before_s, began_s = cpu_seconds(pid), time.monotonic()
    time.sleep(seconds)
    return (cpu_seconds(pid) - before_s) / (time.monotonic() - began_s)


def _key_times_ms(terminal: Terminal) -> list[float]:
    """From a key to the order it asks for being on the screen, tmux included."""
    arrows = ("verdict ▲", "verdict ▼") * (KEYS // 2)
    return [1000 * _key_s(terminal, "S", partial(_has, arrow), arrow) for arrow in arrows]


def _view_s(terminal: Terminal, key: str, mark: str, look_s: float) -> float:
    """Time from a key until the view has its first row, after a look at the one before."""

    def is_there(lines: list[str]) -> bool:
        rows = [n for n, line in enumerate(lines) if re.search(mark, line)]
        has_row = bool(rows) and lines[rows[0] + 1 : rows[0] + 2] != [""]
        return has_row and not _has("computing", lines)

    return _key_s(terminal, key, is_there, f"{mark!r} after {key}", look_s)


def _has(words: str, lines: list[str]) -> bool:
    return any(words in line for line in lines)


def _key_s(
    terminal: Terminal, key: str, is_there: Callable[[list[str]], bool], what: str,
    pause_s: float = _PAUSE_S,
) -> float:  # fmt: skip
    """Time from a key, some time after the one before, until the screen is as expected."""
    time.sleep(pause_s)
    began_s = time.monotonic()
    terminal.press(key)
    terminal.wait_until(is_there, what)
    return time.monotonic() - began_s


if __name__ == "__main__":
    json.dump(measure(), sys.stdout)
    print()
