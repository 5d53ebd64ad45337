"""How does the preloaded library's cost depend on how far apart the processors are?

A virtual machine's processors are moved on the host while it runs: a cache line goes from one to
the other in 30 ns now, and in 250 ns a minute later. Before and after each of many short windows,
``tests/targets/pingpong.c`` measures that time. Windows before and after which it was short, long,
or neither are summed up apart.

``python -m tests.bench.distance [THREADS] [WINDOWS]`` prints a line for each kind.
"""

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.bench.processes import PATIENCE_S, cpu_seconds, end
from tests.harness import Builder, read_line, tracelloc_command

WINDOW_MS: Final = 150
NEAR_NS, FAR_NS = 90, 150  # A line that comes sooner was near, one that comes later was far away


def measure(threads: int, windows: int, scratch: Path) -> dict[str, list[tuple[float, float]]]:
    """Nanoseconds per pair and thread, and of tracelloc's CPU per event, by kind of window."""
    builder = Builder(scratch)
    storm, pingpong = builder.c("storm", "-O2"), builder.c("pingpong", "-O2", "-pthread")
    found: dict[str, list[tuple[float, float]]] = {"near": [], "far": [], "between": []}
    command = tracelloc_command(
        "--text", "--report", scratch / "report", "--", storm, threads, 12, 0
    )
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
    )

    def run() -> tuple[float, float]:
        before_s = cpu_seconds(process.pid)
        process.stdin.write(f"{WINDOW_MS}\n".encode())
        pairs, took_ns = map(int, read_line(process.stdout, "storm").split())
        used_s = cpu_seconds(process.pid) - before_s
        return took_ns * threads / pairs, used_s * 1e9 / (2 * pairs)

    def distance_ns() -> float:
        said = subprocess.run([pingpong], capture_output=True, check=True, timeout=PATIENCE_S)
        return float(said.stdout)

    try:
        read_line(process.stdout, "storm")
        for _ in range(10):  # until the library reports, and every page of the rings is there
            run()
        after_ns = distance_ns()
        for _ in range(windows):
            figures = run()
            both = after_ns, distance_ns()
            after_ns = both[1]
            kind = "near" if max(both) < NEAR_NS else "far" if min(both) > FAR_NS else "between"
            found[kind].append(figures)
    finally:
        process.stdin.close()
        end(process)
        process.stdout.close()
    return found


def main() -> None:
    words = sys.argv[1:]
    threads, windows = int(words[0]) if words else 1, int(words[1]) if words[1:] else 100
    with tempfile.TemporaryDirectory() as name:
        found = measure(threads, windows, Path(name))
    for kind, figures in found.items():
        if figures:
            pair_ns, reader_ns = (
                statistics.median(column) for column in zip(*figures, strict=True)
            )
            print(
                f"{kind}: {pair_ns:.0f} ns per malloc and free, {reader_ns:.1f} ns of tracelloc's "
                f"CPU time per event ({len(figures)} windows)"
            )


if __name__ == "__main__":
    main()
