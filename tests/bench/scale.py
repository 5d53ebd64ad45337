"""What does tracelloc cost by the number of blocks that a process had before?

``python -m tests.bench.scale [--watched S] [BLOCKS ...]`` prints a table: a row for each number of
live blocks, of 200 bytes on average, in a program that leaks 500 blocks a second.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.bench.processes import cpu_seconds, end
from tests.harness import Builder, tracelloc_command
from tracelloc.record.process.procfs import Process

BLOCKS = (1_000, 1_000_000, 10_000_000)
WATCHED_S = 120.0
MIB = 1 << 20


@dataclass
class Row:
    """The figures for one number of blocks."""

    blocks: int
    target_mib: float = 0.0
    first_s: float = 0.0  # To the first report
    most_mib: float = 0.0  # The most that tracing took
    later_mib: float = 0.0  # At the end
    cpu_percent: float = 0.0  # Of a core, in the second half
    heap_s: float = 0.0  # CPU of ``heap -p``
    heap_mib: float = 0.0
    leaks_s: float = 0.0
    leaks_mib: float = 0.0


def _status(pid: int, name: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    return 0.0


def _trace(row: Row, pid: int, watched_s: float) -> None:
    command = tracelloc_command("-p", pid, "--text", "--interval", "1s")
    began_s = time.monotonic()
    tracer = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert tracer.stdout.readline()
        row.first_s = time.monotonic() - began_s
        os.set_blocking(tracer.stdout.fileno(), False)
        half_s: float | None = None
        while (elapsed_s := time.monotonic() - began_s) < watched_s:
            tracer.stdout.read()
            if half_s is None and elapsed_s > watched_s / 2:
                half_s, from_s = cpu_seconds(tracer.pid), elapsed_s
            time.sleep(0.2)
        row.most_mib, row.later_mib = _status(tracer.pid, "VmHWM"), _status(tracer.pid, "VmRSS")
        if half_s is not None:
            row.cpu_percent = 100 * (cpu_seconds(tracer.pid) - half_s) / (elapsed_s - from_s)
    finally:
        end(tracer)


def _once(pid: int, subcommand: str) -> tuple[float, float]:
    """(seconds of CPU, MiB) of a look at a process."""
    command = tracelloc_command(subcommand, "-p", pid)
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, _, usage = os.wait4(child.pid, 0)
    child.returncode = 0
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def measure(blocks: int, program: Path, watched_s: float) -> Row:
    row = Row(blocks)
    target = subprocess.Popen([program, str(blocks)], stdout=subprocess.PIPE)
    try:
        assert target.stdout.readline() == b"ready\n"
        row.target_mib = (Process(target.pid).rss_bytes() or 0) / MIB
        row.heap_s, row.heap_mib = _once(target.pid, "heap")
        row.leaks_s, row.leaks_mib = _once(target.pid, "leaks")
        _trace(row, target.pid, watched_s)
    finally:
        end(target)
    return row


def _cells(row: Row) -> list[str]:
    return [
        f"{row.blocks:,}", f"{row.target_mib:,.0f}", f"{row.first_s:.2f}", f"{row.later_mib:.0f}",
        f"{row.most_mib:.0f}", f"{row.cpu_percent:.1f}", f"{row.heap_s:.2f}", f"{row.heap_mib:.0f}",
        f"{row.leaks_s:.2f}", f"{row.leaks_mib:.0f}",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.bench.scale", description=__doc__.splitlines()[0])
    parser.add_argument("blocks", nargs="*", type=int, default=BLOCKS)
    parser.add_argument("--watched", type=float, default=WATCHED_S, metavar="S")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-scale-") as name:
        program = Builder(Path(name)).c("scale", "-O1")
        rows = [measure(count, program, options.watched) for count in options.blocks]
    head = [
        "blocks", "MiB", "first s", "MiB", "most", "CPU %", "heap s", "MiB", "leaks s", "MiB"
    ]  # fmt: skip
    table = [head, *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for cells in table:
        print("  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)))


if __name__ == "__main__":
    main()
