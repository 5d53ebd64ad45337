"""How much slower do real programs run under tracelloc and its peers?

Two real programs under each live tool.
Both use libc's malloc, the only one that all tools can trace: redis-server, which Debian builds
with jemalloc, is started with libc in front, and tracelloc's library before it, where it is used.
"""

import csv
import shutil
import socket
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp

from tests.bench.allocator import find_allocator
from tests.bench.frame import Bench, ratio, table, verdict
from tests.bench.processes import PATIENCE_S, Program, SkippedError, end, program
from tests.bench.storm import SETTLE_S
from tests.bench.tools import LIVE_NAMES, TOOLS, Tool
from tests.harness import PRELOADED

HOST = "127.0.0.1"
REQUESTS = 60_000
SCRIPT = Path(__file__).with_name("words.pl")
NAMES = ("redis", "perl")
UNITS = {"redis": "SET requests/s", "perl": "rounds/s"}
# Times slower under a tool, at most.
TARGETS = {("redis", "tracelloc"): 1.6, ("redis", "library"): 1.05, ("perl", "library"): 2.0}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _await_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 10.0
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError), socket.create_connection((HOST, port), timeout=1.0):
            return
        time.sleep(0.02)
    raise SkippedError("redis-server did not start")


@contextmanager
def _redis(scratch: Path, tool: Tool) -> Iterator[tuple[int, int]]:
    """A fresh server that keeps nothing on disk: its PID and port."""
    own = Path(mkdtemp(dir=scratch))
    port = _free_port()
    preloaded = f"{PRELOADED}:libc.so.6" if tool.starts_with else "libc.so.6"
    process = subprocess.Popen(
        ["env", f"LD_PRELOAD={preloaded}", "redis-server", "--bind", HOST, "--port", str(port),
         "--save", "", "--appendonly", "no", "--daemonize", "no", "--dir", str(own)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        _await_port(port, process)
        yield process.pid, port
    finally:
        end(process)
        shutil.rmtree(own, ignore_errors=True)


def _requests_per_s(port: int, requests: int) -> float:
    """redis-benchmark's own figure for SET of 100 bytes under random keys."""
    try:
        out = subprocess.run(
            ["redis-benchmark", "-h", HOST, "-p", str(port), "-t", "set", "-d", "100",
             "-r", "100000", "-n", str(requests), "-q", "--csv"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True,
            timeout=PATIENCE_S,
        ).stdout  # fmt: skip
    except (subprocess.SubprocessError, OSError) as error:
        raise SkippedError(f"redis-benchmark: {error}") from error
    for row in csv.reader(out.splitlines()):
        if row and row[0] == "SET":
            return float(row[1])
    raise SkippedError(f"redis-benchmark said {out!r}")


def _rounds_per_s(running: Program, seconds: float) -> float:
    rounds, took_s = running.work(seconds)
    return rounds / took_s


def measure(workload: str, tool: Tool, seconds: float, scratch: Path) -> float:
    """What the program gets done per second under this tool. Raises SkippedError."""
    if workload == "redis":
        with _redis(scratch, tool) as (pid, port):
            _requests_per_s(port, REQUESTS // 10)
            with tool.attach(find_allocator(pid), scratch):
                # Tools measure and learn when they have just begun; that is not what lasts.
                time.sleep(SETTLE_S)
                _requests_per_s(port, REQUESTS // 2)
                return _requests_per_s(port, REQUESTS)
    with program([*tool.starts_with, "perl", SCRIPT]) as running:
        _rounds_per_s(running, seconds / 10)
        with tool.attach(find_allocator(running.pid), scratch):
            _rounds_per_s(running, SETTLE_S)
            return _rounds_per_s(running, seconds)


def tables(workload: str, bench: Bench) -> Iterator[str]:
    """Units of work per second, and how many times slower that is. Raises SkippedError."""
    commands = ("redis-server", "redis-benchmark") if workload == "redis" else ("perl",)
    missing = [command for command in commands if shutil.which(command) is None]
    if missing:
        raise SkippedError(f"{', '.join(missing)} not installed")

    def one(tool: Tool) -> float:
        return measure(workload, tool, bench.seconds, bench.scratch)

    rates, rows = bench.sample(workload, LIVE_NAMES, one), []
    for tool in TOOLS:
        if several := rates.get(tool.name):
            times, target = ratio(rates["untraced"], several), TARGETS.get((workload, tool.name))
            rate = f"{statistics.median(several):,.0f} {UNITS[workload]}"
            goal = ["", ""] if target is None else [f"{target:g}", verdict(times <= target)]
            rows.append([tool.label, rate, f"{times:.2f}", *goal])
    yield from table(workload, ["", "rate", "times slower", "at most", ""], rows)
