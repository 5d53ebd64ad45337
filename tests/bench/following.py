"""What does ``--follow`` cost programs that start many others?

Programs that do nothing but make others are measured, each beside itself untraced.
tracelloc is attached as a user would, with text reports to a file. In between they are measured
with three empty probes in all processes, the least that any tracer of malloc and free costs.
"""

import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.bench.allocator import find_allocator
from tests.bench.empty import empty_probes
from tests.bench.frame import TROUBLE, Bench, ratio, table
from tests.bench.processes import PATIENCE_S, SkippedError, cpu_seconds, end, program
from tests.harness import Builder, await_line, tracelloc_command

FORK: Final = "fork"
EXEC: Final = "fork and exec"
ROWS: Final = {FORK: (), EXEC: ("/bin/true",)}  # Arguments of ``tests/targets/forks.c``
# Children begin with a copy of what is known of them.
LIVE_BLOCKS: Final = "1000"
_IDLE_S: Final = 0.3


def _cpu_when_idle(pid: int) -> float:
    """CPU time of all its threads, once it has nothing left to do."""
    now_s = cpu_seconds(pid)
    for _ in range(round(PATIENCE_S / _IDLE_S)):
        time.sleep(_IDLE_S)
        before_s, now_s = now_s, cpu_seconds(pid)
        if now_s - before_s < _IDLE_S / 20:
            break
    return now_s


@contextmanager
def _followed(pid: int, scratch: Path) -> Iterator[int]:
    """The PID of a tracelloc that follows the process."""
    command = tracelloc_command("-p", pid, "--follow", "--text")
    with (scratch / "follow.out").open("wb") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE, bufsize=0
        )
    try:
        await_line(process.stderr, "tracing")
        yield process.pid
        process.terminate()
        process.communicate(timeout=PATIENCE_S)
    finally:
        end(process)


@dataclass
class Figures:
    """Of one row, by round."""

    untraced: list[float] = field(default_factory=list)  # Forks per second
    empty: list[float] = field(default_factory=list)  # Likewise, with empty probes in all processes
    followed: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)  # tracelloc's own, per fork
    stop_ns: list[float] = field(default_factory=list)  # By which a call of fork takes longer

    def row(self, name: str) -> list[str]:
        """Medians of the rounds."""
        median = statistics.median
        rates = [f"{median(each):,.1f}" for each in (self.untraced, self.empty, self.followed)]
        slower = ratio(self.untraced, self.followed)
        stop_ms, cpu_ms = median(self.stop_ns) / 1e6, 1000 * median(self.cpu_s)
        return [name, *rates, f"{slower:.2f}", f"{cpu_ms:,.2f}", f"{stop_ms:,.2f}"]


def tables(bench: Bench) -> Iterator[str]:
    forks, rows = Builder(bench.scratch).c("forks", "-O2"), []
    for name in ROWS:
        figures = Figures()
        for number in range(bench.rounds):
            bench.say(f"follow: {name}: round {number + 1}")
            try:
                measure(name, forks, bench.seconds, bench.scratch, figures)
            except TROUBLE as reason:
                bench.skip(f"follow: {name}", reason)
                break
        if figures.stop_ns:
            rows.append(figures.row(name))
    title = "Programs that make others, with --follow (medians; profiler's CPU and stop per fork)"
    head = ["", "forks/s", "empty probes", "followed"]
    yield from table(title, [*head, "times slower", "ms of CPU", "ms stopped in fork"], rows)


def measure(row: str, forks: Path, seconds: float, scratch: Path, figures: Figures) -> None:
    """One round of a row. Raises SkippedError."""
    with program([forks, LIVE_BLOCKS, *ROWS[row]]) as running:

        def rate() -> tuple[float, int, int]:
            """(forks per second, forks, the median time of a call of fork in ns)."""
            made, took_ns, in_fork_ns = running.ask(seconds)
            if not made:
                raise SkippedError("nothing was done")
            return made / took_ns * 1e9, made, in_fork_ns

        running.ask(seconds / 10)
        alone, _, alone_ns = rate()
        with empty_probes(find_allocator(running.pid), everywhere=True):
            empty, _, _ = rate()
        with _followed(running.pid, scratch) as profiler:
            running.ask(seconds / 10)
            before_s = _cpu_when_idle(profiler)
            followed, made, followed_ns = rate()
            cpu_s = _cpu_when_idle(profiler) - before_s
    figures.untraced.append(alone)
    figures.empty.append(empty)
    figures.followed.append(followed)
    figures.cpu_s.append(cpu_s / made)
    figures.stop_ns.append(followed_ns - alone_ns)
