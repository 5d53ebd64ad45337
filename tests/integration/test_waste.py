"""Usable sizes and waste equal what the target's own allocator says of its blocks."""

import json
import os
import time
from pathlib import Path

import pytest

from tests.harness import Builder, Targets, Tracelloc, traced
from tests.integration.test_allocators import preloaded

pytestmark = [pytest.mark.bpf, pytest.mark.long]


@pytest.mark.parametrize(
    ("allocator", "most", "aligned"),
    [("glibc", 400_000, 1), ("jemalloc", 400_000, 0), ("mimalloc", 131_072, 0)],
)
def test_books(targets: Targets, allocator: str, most: int, aligned: int) -> None:
    target = targets.c("usable", env=preloaded(allocator))
    tracer = Tracelloc("-p", target.pid, "--json", "--show", "sizes")
    target.ask(f"fill 1 {most} {aligned}")
    books = json.loads(target.ask(f"fill 2 {most} {aligned}"))
    report = tracer.final_report()
    sizes = report["sizes"]
    assert report["lost_events"] == 0
    assert report["live_allocations"] == books["blocks"] > 500
    assert report["live_bytes"] == books["bytes"]
    assert sizes["malloc_library"] == allocator
    assert sizes["uncertain"] is None
    assert sizes["unknown_allocations"] == 0
    assert sizes["usable_bytes"] == books["usable"]
    assert sizes["waste_bytes"] == books["usable"] - books["bytes"]
    whose = "read_allocations" if allocator == "glibc" else "computed_allocations"
    assert sizes[whose] == books["blocks"]
    assert sizes["header_bytes"] == (8 * books["blocks"] if allocator == "glibc" else 0)
    for column, whole in (("usable_bytes", books["usable"]), ("bytes", books["bytes"])):
        assert sum(bin_[column] for bin_ in sizes["bins"]) == whole


@pytest.mark.parametrize("more", [(), ("--follow",)], ids=["alone", "with-descendants"])
def test_static_program(targets: Targets, more: tuple[str, ...]) -> None:
    """Its allocator is known by its functions' names alone."""
    target = targets.c("usable", flags=("-static",))
    tracer = Tracelloc("-p", target.pid, "--json", "--interval", "200ms", "--show", "sizes", *more)
    books = json.loads(target.ask("fill 3 400000 1"))
    # What it has no time for in one report, it reads for the next.
    sizes = tracer.await_report(
        lambda report: (
            report["pid"] == target.pid and report["sizes"]["read_allocations"] == books["blocks"]
        )
    )["sizes"]
    assert (sizes["malloc_library"], sizes["unknown_allocations"]) == ("glibc", 0)
    assert sizes["usable_bytes"] == books["usable"]
    assert tracer.stop() == 0


def test_after_exec_in_a_child(builder: Builder, tmp_path: Path) -> None:
    """Sizes are those of the child's own malloc library, not of the one it was forked with."""
    library = preloaded("jemalloc")["LD_PRELOAD"]
    pipe, answers = tmp_path / "pipe", tmp_path / "answers"
    os.mkfifo(pipe)
    # By fork, not by vfork.
    script = f"(LD_PRELOAD= exec {builder.c('usable')} <{pipe} >{answers}); exit 3"
    tracer = Tracelloc(
        "--json", "--interval", "200ms", "--show", "sizes", "--follow",
        "--", "env", f"LD_PRELOAD={library}", "sh", "-c", script,
    )  # fmt: skip
    with pipe.open("w") as commands:
        commands.write("fill 1 400000 0\n")
        commands.flush()
        while "usable" not in (answers.read_text() if answers.exists() else ""):
            time.sleep(0.02)
        books = json.loads(answers.read_text().splitlines()[-1])
        # Reports of earlier moments may have as many blocks, but others, and the next one may have
        # been begun by now.
        filled_s = time.time()
        begun_s = tracer.await_report(lambda report: report["time"] > filled_s)["time"]
        report = tracer.await_report(
            lambda report: (
                report["pid"] is not None
                and report["command"].startswith("usable")
                and report["live_allocations"] >= books["blocks"]
                and report["time"] > begun_s
                # What it has no time for in one report, it reads for the next.
                and report["sizes"]["unknown_allocations"] == 0
            )
        )
    sizes = report["sizes"]
    assert sizes["malloc_library"] == "glibc"
    # Beside its books there are the buffers of its streams.
    assert 0 <= sizes["usable_bytes"] - books["usable"] < 16 << 10
    assert tracer.finish() == 3


def test_samples_estimate_it(targets: Targets) -> None:
    target = targets.c("usable")
    books, report = traced(target, "fill 4 1000 0", "--show", "sizes", "--sample", 64)
    sizes = report["sizes"]
    # Rounded once here, there for each stack.
    assert sizes["read_allocations"] == pytest.approx(report["live_allocations"], abs=5)
    assert (sizes["computed_allocations"], sizes["unknown_allocations"]) == (0, 0)
    assert sizes["waste_bytes"] == pytest.approx(books["usable"] - books["bytes"], rel=0.25)


def test_musl_is_not_known(targets: Targets) -> None:
    target = targets.c("usable", compiler="musl-gcc")
    tracer = Tracelloc("-p", target.pid, "--text", "--show", "sizes")
    books = json.loads(target.ask("fill 1 1000 0"))
    assert tracer.stop() == 0
    said = [line for line in tracer.text().splitlines() if line.startswith("==> usable sizes")]
    assert said[-1].startswith(
        f"==> usable sizes (musl): 0 B, {books['blocks']:,} of unknown usable size, sizes of "
        "musl in "
    )
