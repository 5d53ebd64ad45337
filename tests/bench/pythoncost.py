"""How much do requests to a traced Python service cost, beside memray and tracemalloc?

``python -m tests.bench.pythoncost latency [ROUNDS]``: a gunicorn service with two workers is asked
100 times a second. Windows take turns: untraced, objects of both workers counted every 10 s, both
workers traced. The result is the median of the windows' 50th and 99th percentiles. The service and
its client share processor 0, with real-time priority; tracelloc has processor 1.

``python -m tests.bench.pythoncost cpu [ROUNDS]``: the CPU time per request of a Flask service, the
median of rounds, and that of the profiler's own process.

Both print one JSON object. The services are those of ``tests/corpus/python``.
"""

import gc
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tests.bench.processes import cpu_seconds, end
from tests.bench.pythonservices import Services, workers
from tests.harness import Target, read_line, tracelloc_command

PORT: Final = 7392
PER_S: Final = 100
WINDOW_S: Final = 20.0
CPU_S: Final = 15.0
PRIORITY: Final = os.sched_param(1)
_TRACE: Final = "--json", "--interval", "1s"
_COUNT: Final = "--json", "--every", "10s"


def ask(number: int) -> None:
    """One request, which ends when the service closes the connection."""
    with socket.create_connection(("127.0.0.1", PORT)) as connection:
        connection.sendall(f"GET /item/{number} HTTP/1.0\r\n\r\n".encode())
        while connection.recv(1 << 16):
            pass


def requests(seconds: float) -> list[float]:
    """Asks at a steady rate. Returns the time that each request took, in ms, ascending."""
    took_ms = []
    begun_s = time.monotonic()
    for number in range(int(PER_S * seconds)):
        time.sleep(max(0.0, begun_s + number / PER_S - time.monotonic()))
        began_ns = time.perf_counter_ns()
        ask(number)
        took_ms.append((time.perf_counter_ns() - began_ns) / 1e6)
    return sorted(took_ms)


@contextmanager
def attached(kind: str, pids: list[int]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """One tracelloc for each process, from its first count or report on."""
    words = {"untraced": None, "counted": ("objects", *_COUNT), "traced": _TRACE}[kind]
    running = []
    try:
        for pid in pids if words is not None else ():
            command = tracelloc_command(*(words or ()), "-p", pid)
            running.append(
                subprocess.Popen(
                    ["taskset", "--cpu-list", "1", *command], bufsize=0,
                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                )
            )  # fmt: skip
        for one in running:
            read_line(one.stdout, "tracelloc")
        yield running
    finally:
        for one in running:
            one.terminate()
            one.communicate()


def latency(services: Services, rounds: int) -> dict[str, object]:
    """The figures of a gunicorn service."""
    kinds = "untraced", "counted", "traced"
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    target = services.start("clean.py", "gunicorn", str(PORT), "0")
    try:
        pids = workers(target.pid)
        for task in (target.pid, *pids, os.getpid()):
            os.sched_setaffinity(task, {0})
            os.sched_setscheduler(task, os.SCHED_FIFO, PRIORITY)
        gc.disable()
        for turn in range(rounds):
            for kind in kinds[turn % 3 :] + kinds[: turn % 3]:
                with attached(kind, pids):
                    took_ms = requests(WINDOW_S)
                count = len(took_ms)
                found[kind].append((took_ms[count // 2], took_ms[count * 99 // 100]))
                print(kind, found[kind][-1], os.getloadavg()[0], file=sys.stderr, flush=True)
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        for pid in workers(target.pid):
            os.kill(pid, 9)
        target.kill()
    result: dict[str, object] = {"windows": rounds, "requests": int(PER_S * WINDOW_S)}
    for kind, rows in found.items():
        p50, p99 = (round(statistics.median(column), 3) for column in zip(*rows, strict=True))
        result[kind] = {"p50_ms": p50, "p99_ms": p99}
    return result


def cpu_of(services: Services, kind: str, directory: str) -> tuple[float, float]:
    """CPU time per request in µs: the service's, and that of tracelloc's process."""
    profiler = {
        "tracemalloc": ["-X", "tracemalloc"],
        "tracemalloc, 10 frames": ["-X", "tracemalloc=10"],
        "memray": ["-m", "memray", "run", "-q", "-f", "-o", f"{directory}/out"],
        "memray --native": [
            "-m",
            "memray",
            "run",
            "--native",
            "-q",
            "-f",
            "-o",
            f"{directory}/out",
        ],
    }.get(kind, [])
    program = str(services.folder / "clean.py")
    target = Target(services.command(*profiler, program, "flask", str(PORT), "0"))
    try:
        requests(1.0)
        with attached(kind if kind == "traced" else "untraced", [target.pid]) as running:
            pids = [target.pid, *(one.pid for one in running)]
            before = [cpu_seconds(pid) for pid in pids]
            count = len(requests(CPU_S))
            after = [cpu_seconds(pid) for pid in pids]
    finally:
        end(target.process)
        target.kill()
    each = [(now - then) / count * 1e6 for now, then in zip(after, before, strict=True)]
    return each[0], sum(each[1:])


def cpu(services: Services, rounds: int) -> dict[str, object]:
    """The figures of a Flask service."""
    kinds = (
        "untraced", "traced", "tracemalloc", "tracemalloc, 10 frames", "memray", "memray --native",
    )  # fmt: skip
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(rounds):
            for kind in kinds:
                found[kind].append(cpu_of(services, kind, directory))
                print(kind, found[kind][-1], os.getloadavg()[0], file=sys.stderr, flush=True)
    result: dict[str, object] = {"rounds": rounds, "requests": int(PER_S * CPU_S)}
    for kind, rows in found.items():
        own, beside = (round(statistics.median(column)) for column in zip(*rows, strict=True))
        result[kind] = {"service_us": own, "tracelloc_us": beside}
    return result


def main() -> None:
    part, *rest = sys.argv[1:]
    measure = {"latency": latency, "cpu": cpu}[part]
    print(json.dumps(measure(Services("/usr/bin/python3"), int((rest or ["6"])[0]))))


if __name__ == "__main__":
    main()
