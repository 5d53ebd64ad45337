"""How long do whole stacks without frame pointers take to get going on real programs?

For each program: rows that were ready before it ran, and the time for that; stacks that
had to be left to user space (misses), those of them that were lost, and the time until
there were hardly any more; memory. ``llc`` is run twice: the second run remembers where
stacks came by in the first.
Runs in a process of its own: ``python -m tests.bench.unwinding`` prints one JSON object.
"""

import json
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from tracelloc.model.codefiles import Mapping
from tracelloc.model.losses import Counter
from tracelloc.record.kernel.captureconfig import CaptureConfig
from tracelloc.record.process.procfs import Process
from tracelloc.record.session.config import TraceConfig
from tracelloc.record.session.sessionstart import attach_to
from tracelloc.record.unwinding.rowsahead import RowsAhead, RowsOf

SECONDS: Final = 4.0
_TICK_S: Final = 0.05
_STEADY_SHARE: Final = 0.99  # Of all misses: when these have been seen, it is called steady

_PYTHON: Final = """
import json, re, sys
kept = []
while True:
    kept = [json.loads('{"a": [1, 2, {"b": "c"}]}') for _ in range(2000)]
    re.sub("a(b|c)*", "d", "abcbc" * 100)
"""


def _llc(directory: Path) -> list[str]:
    body = "".join(f"  %a{n + 1} = xor i64 %a{n}, {n * 7919 + 1}\n" for n in range(60))
    functions = "".join(
        f"define i64 @f{n}(i64 %a0) {{\n{body}  ret i64 %a60\n}}\n" for n in range(8000)
    )
    source = directory / "many.ll"
    source.write_text(functions)
    return ["llc", "-O2", "-o", "/dev/null", str(source)]


def _run(command: list[str]) -> dict[str, Any]:
    prewarm_s: list[float] = []
    make = RowsAhead.make

    def timed(self: RowsAhead, mapping: Mapping, rows_of: RowsOf) -> None:
        began_s = time.perf_counter()
        make(self, mapping, rows_of)
        prewarm_s.append(time.perf_counter() - began_s)

    RowsAhead.make = timed  # type: ignore[method-assign]
    process = subprocess.Popen(
        ["env", "PYTHONMALLOC=malloc", *command],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        time.sleep(0.3)
        os.kill(process.pid, signal.SIGSTOP)
        session = attach_to(Process(process.pid), TraceConfig())
        began_s = time.perf_counter()
        os.kill(process.pid, signal.SIGCONT)
        seen = []
        while time.perf_counter() - began_s < SECONDS and process.poll() is None:
            time.sleep(_TICK_S)
            snapshot = session.snapshot().root
            seen.append((time.perf_counter() - began_s, snapshot.losses.counters[Counter.MISSES]))
        session.close()
    finally:
        process.kill()
        process.wait()
        RowsAhead.make = make  # type: ignore[method-assign]
    misses = seen[-1][1]
    return {
        "prewarm_s": sum(prewarm_s),
        "stacks": len(snapshot.stacks) - 1,
        "allocations": int(snapshot.totals.allocated_count.sum()),
        "misses": misses,
        "lost_misses": snapshot.losses.counters[Counter.LOST_MISSES],
        "partial_allocations": snapshot.partial_allocations,
        "steady_after_s": next(at for at, count in seen if count >= _STEADY_SHARE * misses),
    }


def measure() -> dict[str, Any]:
    runs = {}
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["XDG_CACHE_HOME"] = scratch
        runs["python3"] = _run(["/usr/bin/python3", "-c", _PYTHON])
        if shutil.which("llc"):
            command = _llc(Path(scratch))
            runs["llc"] = _run(command)
            runs["llc, again"] = _run(command)
    config = CaptureConfig()
    return {
        "runs": runs,
        "rows_bytes": 64 * config.row_sets,
        "misses_ring_bytes": config.misses_size_bytes,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


if __name__ == "__main__":
    print(json.dumps(measure()))
