"""How much longer do a server's requests take while its heap is walked or searched?

The server and its one client share processor 0, with real-time priority: one waits while the other
runs, so neither waits for a processor. tracelloc has processor 1. Short windows alternate in one
run: nothing, ``tracelloc heap`` again and again, ``tracelloc leaks`` again and again. The result is
the median of the windows' 50th and 99th percentiles.

``python -m tests.bench.heaplatency SERVER [ROUNDS]`` prints one JSON object. The server is
redis-server or nginx, as Debian has them.
"""

import gc
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.processes import PATIENCE_S, SkippedError, end, rss_bytes
from tests.harness import read_line
from tracelloc.record.heapwalk.measuring import measure_heap
from tracelloc.record.process.procfs import Process
from tracelloc.record.reachability import lostblocks
from tracelloc.record.reachability.lostblocks import LostBlockSearch

PORT = 7391
KEYS, VALUE_BYTES = 200_000, 500
# Requests of a window: about 0.3 s, with rests so that the kernel does not throttle them.
REQUESTS = 5000
REST_S = 0.1
PRIORITY = os.sched_param(1)

REDIS = ["redis-server", "--save", "", "--bind", "127.0.0.1", "--port", str(PORT)]
NGINX = """\
daemon off; master_process off; pid {0}/pid; error_log /dev/null; events {{}}
http {{ access_log off; keepalive_requests 1000000000; client_body_temp_path {0};
proxy_temp_path {0}; fastcgi_temp_path {0}; uwsgi_temp_path {0}; scgi_temp_path {0};
server {{ listen 127.0.0.1:{1}; root {0}; }} }}
"""


def redis_request(number: int) -> bytes:
    """One of ten sets a key, the others get one."""
    key = f"key:{number * 7919 % KEYS}"
    return (
        f"SET {key} {'x' * VALUE_BYTES}\r\n".encode()
        if number % 10 == 0
        else f"GET {key}\r\n".encode()
    )


def nginx_request(_: int) -> bytes:
    return b"GET /page HTTP/1.1\r\nHost: here\r\n\r\n"


@contextmanager
def server(name: str) -> Iterator[tuple[int, socket.socket, Callable[[int], bytes]]]:
    """Starts a server. Yields (process id, connection, what makes requests)."""
    if not shutil.which(name):
        raise SkippedError(f"{name} is not installed")
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "page").write_bytes(b"x" * 4096)
        settings = Path(directory) / "nginx.conf"
        settings.write_text(NGINX.format(directory, PORT))
        is_redis = name.startswith("redis")
        command = REDIS if is_redis else ["nginx", "-c", str(settings), "-e", "/dev/null"]
        running = subprocess.Popen(
            command, cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            connection = connected(running)
            if is_redis:
                for first in range(0, KEYS, 1000):
                    keys = range(first, first + 1000)
                    connection.sendall(
                        b"".join(f"SET key:{n} {'x' * VALUE_BYTES}\r\n".encode() for n in keys)
                    )
                    answer = b""
                    while answer.count(b"\n") < len(keys):
                        answer += connection.recv(1 << 16)
            yield running.pid, connection, redis_request if is_redis else nginx_request
            connection.close()
        finally:
            end(running)


def connected(running: subprocess.Popen[bytes]) -> socket.socket:
    """A connection to a server that may just be starting."""
    give_up_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up_s and running.poll() is None:
        try:
            found = socket.create_connection(("127.0.0.1", PORT), PATIENCE_S)
        except OSError:
            time.sleep(0.05)
        else:
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return found
    raise SkippedError("the server did not start")


def window(connection: socket.socket, request: Callable[[int], bytes]) -> tuple[float, float]:
    """The 50th and the 99th percentile of a window's requests, in microseconds."""
    took_ns = []
    for number in range(REQUESTS):
        words = request(number)
        began_ns = time.perf_counter_ns()
        connection.sendall(words)
        connection.recv(1 << 16)
        took_ns.append(time.perf_counter_ns() - began_ns)
        if number % (REQUESTS // 4) == 0:
            time.sleep(REST_S / 4)
    took_ns.sort()
    return took_ns[REQUESTS // 2] / 1000, took_ns[REQUESTS * 99 // 100] / 1000


def look(pid: int) -> None:
    """Walks or searches again and again: each line of input names what to do next."""
    os.sched_setaffinity(0, {1})
    os.setpriority(os.PRIO_PROCESS, 0, -19)
    lostblocks._APART_S = 0.0
    search = LostBlockSearch(Process(pid), lambda _: False)
    os.set_blocking(0, False)
    kind, done, line = "idle", 0, b""
    print("ready", flush=True)
    while True:
        try:
            line = os.read(0, 100)
        except BlockingIOError:
            line = b""
        else:
            if not line:
                return
            print(done, flush=True)
            kind, done = line.decode().strip(), 0
        if kind == "heap":
            measure_heap(Process(pid))
        elif kind == "leaks":
            search.find()
        else:
            time.sleep(0.001)
        done += 1


def measure_here(name: str, rounds: int) -> dict[str, object]:
    kinds = "idle", "heap", "leaks"
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    passes = dict.fromkeys(kinds, 0)
    with server(name) as (pid, connection, request):
        command = [sys.executable, "-m", "tests.bench.heaplatency", "--look", str(pid)]
        looking = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        try:
            read_line(looking.stdout, "tracelloc")
            for task in (pid, os.getpid()):
                os.sched_setaffinity(task, {0})
                os.sched_setscheduler(task, os.SCHED_FIFO, PRIORITY)
            gc.disable()
            before = "idle"
            for turn in range(rounds):
                for kind in kinds[turn % 3 :] + kinds[: turn % 3]:
                    looking.stdin.write(f"{kind}\n".encode())
                    passes[before] += int(read_line(looking.stdout, "tracelloc"))
                    before = kind
                    found[kind].append(window(connection, request))
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        finally:
            end(looking)
        rss = rss_bytes(pid)
    result: dict[str, object] = {"server": name, "rss_bytes": rss, "windows": rounds}
    for kind in kinds:
        middle = [round(statistics.median(column), 1) for column in zip(*found[kind], strict=True)]
        result[kind] = {"p50_us": middle[0], "p99_us": middle[1], "passes": passes[kind]}
    return result


def main() -> None:
    if sys.argv[1] == "--look":
        look(int(sys.argv[2]))
    else:
        print(json.dumps(measure_here(sys.argv[1], int((sys.argv[2:] or ["40"])[0]))))


if __name__ == "__main__":
    main()
