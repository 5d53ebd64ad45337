"""A reader that can't keep up: figures equal the target's own books all the same."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path

import pytest

from tests.harness import Builder, Target, Tracelloc
from tests.integration.test_exact import assert_equal

pytestmark = pytest.mark.bpf


def stop_now_and_then(tracer: Tracelloc, seconds: float, seed: int) -> None:
    """Stops the reader at random moments, for most of the time."""
    dice = random.Random(seed)
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        tracer.process.send_signal(signal.SIGSTOP)
        time.sleep(dice.uniform(0.2, 1))
        tracer.process.send_signal(signal.SIGCONT)
        time.sleep(dice.uniform(0, 0.2))


@pytest.mark.parametrize("attach", ["auto", "perf"])
@pytest.mark.parametrize(("threads", "slots"), [(4, 3000), (8, 64)])
def test_stopped_reader(
    builder: Builder, targets: list[Target], tmp_path: Path, threads: int, slots: int, attach: str
) -> None:
    target = Target([builder.c("books"), threads, 600_000 // threads, 1, slots])
    targets.append(target)
    tracer = Tracelloc(
        "-p", target.pid, "--json", "--top", 1000, "--attach", attach, "--events-size", "64k",
        directory=tmp_path,
    )  # fmt: skip
    target.say("run")
    stop_now_and_then(tracer, 2, seed=slots)
    books = json.loads(target.hear())
    assert tracer.stop() == 0
    report = tracer.last()
    assert_equal(report, books)
    assert report["unmatched_frees"] == 0
    assert report["spilled_events"] > 100_000
