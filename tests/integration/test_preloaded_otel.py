"""What a program says that has our library preloaded, to whoever listens."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.harness import PATIENCE_S, PRELOADED, Builder, Target, Tracelloc, read_line
from tracelloc.files.elf import ElfFile
from tracelloc.files.elf.usdt import usdt_probes
from tracelloc.record.process.procfs import Process, parse_maps
from tracelloc.record.sources.preloaded.sharedarea import LIBRARY

pytestmark = [pytest.mark.bpf, pytest.mark.long]

MEAN = 512 << 10
SIGMAS = 5


def preloaded(builder: Builder, targets: list[Target], threads: int = 3) -> Target:
    target = Target([builder.c("hoard"), threads], env=os.environ | {"LD_PRELOAD": str(PRELOADED)})
    targets.append(target)
    return target


def figures(target: Target, order: str) -> tuple[int, int]:
    size_bytes, count = target.ask(order).split()
    return int(size_bytes), int(count)


def assert_close(estimate: int, truth: int) -> None:
    """The error of a sum of samples that stand for their inverse probability is below this."""
    assert abs(estimate - truth) <= SIGMAS * math.sqrt(MEAN * truth), (estimate, truth)


def trace(target: Target, tmp_path: Path) -> Tracelloc:
    options = ["--source", "otel", "--json", "--interval", "1h", "--top", 100]
    return Tracelloc("-p", target.pid, *options, directory=tmp_path)


def test_estimates(builder: Builder, targets: list[Target], tmp_path: Path) -> None:
    target = preloaded(builder, targets)
    tracer = trace(target, tmp_path)
    grown, _ = figures(target, "grow")
    resized, _ = figures(target, "resize")
    live, _ = figures(target, "shrink")
    assert tracer.stop() == 0
    report = tracer.last()
    assert {cause: n for cause, n in report["lost"].items() if n} == {}
    assert report["unmatched_frees"] == report["partial_allocations"] == 0
    assert_close(report["allocated_bytes"], grown + resized)
    assert_close(report["live_bytes"], live)
    for entry in report["top_allocators"]:
        names = [frame["symbol"] for frame in entry["stack"]]
        assert names[:2] == ["enlarge", "obey"], "without the library's own functions"
    # Most of what is not sampled costs no trap: 512 KiB are 8,192 pairs.
    assert float(target.ask("pairs")) < 2000


def test_whole_lives(builder: Builder, targets: list[Target], tmp_path: Path) -> None:
    """Also of blocks that were allocated while somebody else listened, who has gone since."""
    target = preloaded(builder, targets)
    tracer = trace(target, tmp_path)
    figures(target, "grow")
    assert tracer.stop() == 0
    # The next call of any thread forgets them.
    target.ask("pairs")
    tracer = trace(target, tmp_path)
    assert figures(target, "clear") == (0, 0)
    grown, _ = figures(target, "grow")
    figures(target, "clear")
    assert tracer.stop() == 0
    report = tracer.last()
    assert report["live_bytes"] == report["live_allocations"] == report["unmatched_frees"] == 0
    assert_close(report["allocated_bytes"], grown)


def test_forked_children(builder: Builder, targets: list[Target], tmp_path: Path) -> None:
    target = preloaded(builder, targets, 1)
    tracer = trace(target, tmp_path)
    live, _ = figures(target, "grow")
    for _ in range(3):
        assert target.ask("fork") == "0"
    assert tracer.stop() == 0
    assert_close(tracer.last()["live_bytes"], live)
    assert tracer.last()["unmatched_frees"] == 0
    assert target.ask("fork") == "0"


def test_tracelloc_comes_first(builder: Builder, targets: list[Target], tmp_path: Path) -> None:
    """tracelloc gets all events; another listener gets the frees of what it was told before."""
    target = preloaded(builder, targets, 1)
    tracer = trace(target, tmp_path)
    figures(target, "grow")
    exact = Tracelloc("-p", target.pid, "--preload=on", "--json", "--interval", "1h",
                      directory=tmp_path)  # fmt: skip
    assert "events come by the preloaded library" in "".join(exact.messages)
    figures(target, "clear")
    size_bytes, count = figures(target, "grow")
    assert exact.stop() == 0
    report = exact.last()
    assert (report["live_bytes"], report["live_allocations"]) == (size_bytes, count)
    assert tracer.stop() == 0
    assert tracer.last()["live_bytes"] == tracer.last()["unmatched_frees"] == 0


def test_others_can_listen(builder: Builder, targets: list[Target]) -> None:
    target = preloaded(builder, targets, 1)
    # What it prints comes once it has attached everything; it ends by itself with the target.
    script = (
        'BEGIN { printf("listening\\n"); }'
        f"usdt:{PRELOADED}:otel_memory:alloc {{ @said = count(); @bytes = sum(arg2); }}"
        f"usdt:{PRELOADED}:otel_memory:free {{ @freed = count(); }}"
    )
    with subprocess.Popen(
        ["bpftrace", "-p", str(target.pid), "-e", script],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0,
    ) as listener:  # fmt: skip
        try:
            while read_line(listener.stdout, "bpftrace") != "listening":
                pass
            grown, _ = figures(target, "grow")
            figures(target, "clear")
            assert target.end() == 0
            said = listener.communicate(timeout=PATIENCE_S)[0].decode()
        finally:
            listener.kill()
    found = {name: int(text) for name, text in re.findall(r"@(\w+): (\d+)", said)}
    assert found["said"] == found["freed"] > 0, said
    assert_close(found["bytes"], grown)


def test_idle_again(builder: Builder, targets: list[Target], tmp_path: Path) -> None:
    """Whoever listened was killed: nothing is said, and nothing is kept for anybody."""
    target = preloaded(builder, targets, 1)
    tracer = trace(target, tmp_path)
    figures(target, "grow")
    tracer.kill()
    assert json.loads(target.ask("pairs")) > 0
    elf = ElfFile.from_bytes(LIBRARY.read_bytes())
    (first, *_) = usdt_probes(elf, "otel_memory")
    maps = parse_maps(Process(target.pid).maps_text()).values()
    start = min(m.start for m in maps if m.path == str(LIBRARY))
    assert Process(target.pid).read_memory(start + first.semaphore, 8) == bytes(8)
