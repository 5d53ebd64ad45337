"""How much CPU time does the screen take, and how fast does it answer?

16,384 stacks, 327,680 live blocks, events as fast as they come.
The screen stands in a real terminal (tmux) of 120 by 40 cells. ``python -m
tests.bench.tui`` prints one JSON object.
"""

from __future__ import annotations

import json
import os
import re
import select
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.bench.processes import Program, cpu_seconds
from tests.harness import Builder, tracelloc_command
from tests.terminal import PATIENCE_S, Terminal

DEPTH = 14
BLOCKS = 20
"""Per stack."""
SETTLE_S = 3.0
"""Names are read, figures settle."""
KEYS = 40
_PAUSE_S = 0.2
"""Between two keys."""
VIEWS = {
    "4": "function, callees",
    "3": "▏",
    "5": "size +bytes",
    "6": "age +bytes",
    "7": "thread +share",
    "2": "blocks",
    "R": "resident memory",
    "F": r"own \+ callees",
    "Y": "type$",
    "C": "┤",
    "1": "allocated in",
    "Enter": "Esc Back|esc Back|q Back",
    "Escape": "allocated in",
}
"""Keys, and what the line above the view's first row then has."""
TARGETS = {
    "refresh_ms": 20.0, "key_to_paint_p95_ms": 50.0, "profiler_cpu_share": 0.25,
    "view_s": 0.3, "quit_s": 2.0,
}  # fmt: skip


def measure(seconds: float = 6.0) -> dict[str, Any]:
    """All figures. Raises SkippedError."""
    with tempfile.TemporaryDirectory(prefix="bench-tui-") as name:
        program = Program([Builder(Path(name)).c("thicket", "-O2"), str(DEPTH), str(BLOCKS)])
        try:
            command = tracelloc_command("-p", program.pid, "--events-size", "64MiB")
            with Terminal(command, Path(name), width=120, height=40) as terminal:
                return _measure(program, terminal, Path(name), seconds)
        finally:
            program.close()


def _measure(program: Program, terminal: Terminal, scratch: Path, seconds: float) -> dict[str, Any]:
    terminal.wait_for("no allocations seen yet")
    shell = terminal.pid
    profiler = int(Path(f"/proc/{shell}/task/{shell}/children").read_text().split()[0])
    tracelloc = profiler
    # All blocks are there before anything is measured.
    assert program.process.stdin is not None
    whole_s = 2 * SETTLE_S + 5 * seconds + 20
    program.process.stdin.write(f"{int(whole_s * 1000)}\n".encode())
    terminal.wait_for(rf"{BLOCKS << DEPTH:,} blocks")
    time.sleep(SETTLE_S)
    shares = {}
    for key, view in (("1", "allocators"), ("4", "tree"), ("3", "flame")):
        terminal.press(key)
        time.sleep(SETTLE_S / 2)
        shares[view] = _cpu_share(tracelloc, seconds)
    terminal.press("1")
    keys = _key_times_ms(terminal, scratch)
    terminal.press("8")
    costs = _costs_ms(terminal)
    lines = terminal.screen()
    rate = next((m[1] for line in lines if (m := re.search(r"(\S+) events/s", line))), "?")
    lost = next((m[1] for line in lines if (m := re.search(r"lost ([\d,]+)", line))), "?")
    return {
        "stacks": 1 << DEPTH,
        "blocks": BLOCKS << DEPTH,
        "events_per_s": rate,
        "lost_events": lost,
        "profiler_cpu_share": shares["allocators"],
        "profiler_cpu_share_by_view": shares,
        "refresh_ms": costs["stacks"][0] + costs["stacks"][1],
        "refresh_worst_ms": costs["stacks"][2],
        "views_ms": costs,
        "key_to_paint_ms": statistics.median(keys),
        "key_to_paint_p95_ms": statistics.quantiles(keys, n=20)[-1],
    }


def _cpu_share(pid: int, seconds: float) -> float:
    before_s, began_s = cpu_seconds(pid), time.monotonic()
    time.sleep(seconds)
    return (cpu_seconds(pid) - before_s) / (time.monotonic() - began_s)


def _key_times_ms(terminal: Terminal, scratch: Path) -> list[float]:
    """From a key to the order it asks for being written to the terminal, tmux included."""
    fifo = scratch / "output"
    os.mkfifo(fifo)
    output = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
    terminal.copy_output(fifo)
    times = []
    try:
        for number in range(KEYS):
            time.sleep(_PAUSE_S)
            _read_until(output, None)
            began_s = time.monotonic()
            terminal.press("S")
            _read_until(output, "verdict ▲" if number % 2 == 0 else "verdict ▼")
            times.append(1000 * (time.monotonic() - began_s))
    finally:
        os.close(output)
    return times


def _read_until(output: int, marker: str | None) -> None:
    """Reads until the marker, or what is there by now. Raises AssertionError."""
    seen = b""
    while marker is None or marker.encode() not in seen:
        if not select.select([output], [], [], 0 if marker is None else PATIENCE_S)[0]:
            assert marker is None, f"never wrote {marker}"
            return
        seen += os.read(output, 1 << 16)


def _costs_ms(terminal: Terminal) -> dict[str, tuple[float, float, float]]:
    """Per view what the log says: worked out and drawn (medians), both at most."""
    pattern = re.compile(
        r"(\w+): ([\d.]+) ms to compute in the background, ([\d.]+) ms to draw, ([\d.]+) ms at"
    )
    lines = terminal.wait_for(r"flame: .* ms to compute")
    matches = [match for line in lines if (match := pattern.search(line))]
    return {m[1]: (float(m[2]), float(m[3]), float(m[4])) for m in matches}


if __name__ == "__main__":
    json.dump(measure(), sys.stdout)
    print()
