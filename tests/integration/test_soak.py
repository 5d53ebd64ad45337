"""Load, stops, marks, exports, attaching and detaching, for long: memory flat, figures exact.

``SOAK_SECONDS``: how long; ``make soak`` says half an hour.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.harness import Builder, Target, Tracelloc
from tests.integration.test_exact import assert_equal
from tracelloc.target.procfs import Process

pytestmark = pytest.mark.bpf

SECONDS = float(os.environ.get("SOAK_SECONDS", "45"))
OPERATIONS = 20_000
MOST_GROWTH_BYTES = 24 << 20
"""Between the first third and the end: allocators keep what was once needed for an export."""


def test_soak(builder: Builder, targets: list[Target], tmp_path: Path) -> None:
    target = Target([builder.c("books"), 4, OPERATIONS, 11, 3000])
    targets.append(target)
    tracer = Tracelloc(
        "-p", target.pid, "--json", "--top", 1000, "--interval", "2s",
        "-o", tmp_path / "a.html", "-o", tmp_path / "a.pb.gz", directory=tmp_path,
    )  # fmt: skip
    watched = Process(tracer.process.pid)
    begun = time.monotonic()
    sizes: list[tuple[float, int]] = []
    books: dict[str, list[int]] = {}
    rounds = passing = 0
    while time.monotonic() - begun < SECONDS:
        other = Tracelloc("-p", target.pid, "--text", directory=tmp_path)
        books = json.loads(target.ask("run"))
        match rounds % 4:
            case 0:
                tracer.process.send_signal(signal.SIGUSR1)
                tracer.wait_for("wrote")
            case 1:
                tracer.process.send_signal(signal.SIGUSR2)
                tracer.wait_for("mark set")
            case 2:
                tracer.process.send_signal(signal.SIGSTOP)
                books = json.loads(target.ask("run"))
                tracer.process.send_signal(signal.SIGCONT)
            case 3:
                os.kill(target.pid, signal.SIGSTOP)
                other.process.send_signal(signal.SIGTERM)
                os.kill(target.pid, signal.SIGCONT)
        if rounds % 5 == 4:
            other.kill()
        else:
            other.stop()
            passing += 1
        # Its events have been applied when the ring is empty; memory is looked at in between.
        sizes.append((time.monotonic() - begun, watched.rss_bytes() or 0))
        rounds += 1
    books = json.loads(target.ask("run"))
    assert tracer.stop() == 0, tracer.messages
    report = tracer.last()
    assert_equal(report, books)
    assert report["unmatched_frees"] == 0
    assert target.process.poll() is None
    assert passing > 1
    early = max(size for since_s, size in sizes if since_s < SECONDS / 3)
    late = max(size for since_s, size in sizes if since_s > 2 * SECONDS / 3)
    print(f"{rounds} rounds, {early >> 20} MiB in the first third, {late >> 20} MiB in the last")
    assert late < early + MOST_GROWTH_BYTES
