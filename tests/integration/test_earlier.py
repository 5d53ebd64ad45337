"""Blocks from before tracing: in the table from the first report on, and exact."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.harness import PRELOADED, Builder, Target, Targets, Tracelloc, run_tracelloc

pytestmark = [pytest.mark.bpf, pytest.mark.long]

THREADS, BLOCKS, LOST = 3, 5000, 1200


@pytest.fixture(scope="module")
def program(builder: Builder) -> Path:
    return builder.cpp("earlier", "-pthread")


@pytest.fixture
def target(program: Path, targets: Targets) -> Target:
    return targets.start(program, str(THREADS), str(BLOCKS), str(LOST))


def trace(target: Target, *options: str | int) -> Tracelloc:
    return Tracelloc("-p", target.pid, "--earlier", "on", "--json", *options, "--interval", "0.3s")


def books(target: Target) -> tuple[int, int]:
    """Blocks that the program holds, and their usable bytes."""
    count, size_bytes = target.ask("books").split()
    return int(count), int(size_bytes)


def blocks_in_use(target: Target) -> int:
    """Blocks in the heap now, found without tracing."""
    found = json.loads(run_tracelloc("heap", "-p", target.pid, "--json").stdout)
    assert found["coverage"] == 1.0
    return int(found["in_use_blocks"])


def until(tracer: Tracelloc, since_s: float, live: int) -> dict[str, Any]:
    """The first report later than that with so many live blocks."""
    return tracer.await_report(
        lambda report: report["elapsed_s"] > since_s and report["live_allocations"] == live
    )


def test_the_table_is_the_heap(target: Target) -> None:
    in_use, (held, held_bytes) = blocks_in_use(target), books(target)
    assert held == THREADS * BLOCKS
    tracer = trace(target)
    first = tracer.await_report(lambda report: "earlier" in report)
    assert first["live_allocations"] == first["earlier"]["allocations"] == in_use
    assert first["live_bytes"] == first["earlier"]["bytes"]
    assert target.ask("drop") == "dropped"
    left, left_bytes = books(target)
    last = until(tracer, first["elapsed_s"], in_use - held + left)
    assert tracer.stop() == 0
    assert last["unmatched_frees"] == last["lost_events"] == 0
    assert last["earlier"]["freed_allocations"] == held - left
    assert last["earlier"]["freed_bytes"] == held_bytes - left_bytes
    assert last["live_bytes"] == first["live_bytes"] - held_bytes + left_bytes


@pytest.mark.alone
@pytest.mark.parametrize("preload", ["off", "on"])
def test_while_all_threads_replace_blocks(
    program: Path, targets: Targets,
    preload: str,
) -> None:  # fmt: skip
    environment = os.environ | ({"LD_PRELOAD": str(PRELOADED)} if preload == "on" else {})
    target = targets.start(program, str(THREADS), str(BLOCKS), str(LOST), env=environment)
    assert target.ask("run") == "running"
    tracer = trace(target, "--preload", preload, "--max-stall", "60s")
    first = tracer.await_report(lambda report: "earlier" in report)
    assert target.ask("rest") == "resting"
    last = until(tracer, first["elapsed_s"], blocks_in_use(target))
    assert tracer.stop() == 0
    assert last["unmatched_frees"] == last["lost_events"] == 0
    assert last["lost"]["address_reuses"] == 0


def test_what_was_lost_before(target: Target) -> None:
    tracer = trace(target, "--top", 3)
    tracer.await_report(lambda report: "earlier" in report)
    assert target.ask("lose 20") == "lost"
    report = tracer.await_report(
        lambda report: "earlier" in report and report["earlier"]["lost_allocations"] > 0, 90
    )
    assert tracer.stop() == 0
    assert report["earlier"]["lost_allocations"] == LOST
    circles = {kind["class"]: kind for kind in report["earlier"]["top_kinds"]}["app::Circle"]
    assert circles["lost_allocations"] == circles["allocations"] == LOST
    assert circles["least_usable_bytes"] == circles["most_usable_bytes"] == 88
    names = [frame["symbol"] for frame in circles["stack"]]
    assert names == ["blocks of 88 B", "class app::Circle", "allocated before tracing"]
    assert circles["alike"]["allocated_in"] == "lose ← main"
    assert circles["alike"]["share"] == 1
    assert report["suspects"] == []
