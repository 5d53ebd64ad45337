"""Accounts of resident memory, against the kernel's figures and programs of known parts."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.harness import LIBRARIES, Target, Targets, Tracelloc, run_tracelloc
from tests.integration.test_heapwalk import await_pauses
from tracelloc.model.heapusage import HeapUsage, MemoryPart
from tracelloc.record.heapwalk.measuring import measure_memory
from tracelloc.record.process.procfs import Process

MIB = 1 << 20
BLOCKS, BLOCK, CHUNK, EVERY = 20_000, 1000, 1008, 32
ATTEMPTS = 10
MIMALLOC = next((path.name for path in LIBRARIES.glob("libmimalloc.so.*.*")), "libmimalloc.so")


def rss_of(pid: int) -> int:
    """From smaps_rollup, which is exact, unlike statm."""
    found = re.search(r"^Rss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    return int(found[1]) << 10


def usage_of(pid: int) -> HeapUsage:
    """The account, which equals the kernel's sum before and after it was made.

    A program that has just said that it is ready may touch another page before it waits.
    """
    for _ in range(ATTEMPTS):
        before, found, after = rss_of(pid), measure_memory(Process(pid)), rss_of(pid)
        if before == after:
            break
    assert found.account.rss_bytes == before == after
    return found


@pytest.fixture
def parts(targets: Targets, tmp_path: Path) -> Target:
    data = tmp_path / "mapped"
    data.write_bytes(bytes(6 * MIB))
    target = targets.c("memoryparts", str(data), flags=("-pthread",))
    await_pauses(target.pid, 4)  # until then, its threads may still fault code in
    return target


def near(size_bytes: int, wanted: int, more: int = 128 << 10) -> bool:
    """At least as much as wanted, and not much more."""
    return wanted <= size_bytes <= wanted + more


def test_known_parts(parts: Target) -> None:
    usage = usage_of(parts.pid)
    found, items = usage.account.parts, usage.account.items
    assert found[MemoryPart.IN_USE] >= BLOCKS * CHUNK
    assert near(found[MemoryPart.IN_USE], BLOCKS * CHUNK)
    assert near(found[MemoryPart.STACKS], 4 * MIB, 256 << 10)
    assert near(found[MemoryPart.DATA], 8 * MIB, 512 << 10)
    assert near(dict(items[MemoryPart.DATA])[Path(parts.process.args[0]).name], 8 * MIB, 256 << 10)  # type: ignore[index]
    assert dict(items[MemoryPart.SHARED])["memfd:parts"] == found[MemoryPart.SHARED] == 2 * MIB
    assert near(found[MemoryPart.OTHER], 7 * MIB)
    assert dict(items[MemoryPart.FILES])["mapped"] == 6 * MIB
    assert usage.account.page_table_bytes > 0


def test_freed_memory_that_is_kept(parts: Target) -> None:
    before = usage_of(parts.pid)
    parts.ask("free")
    usage = usage_of(parts.pid)
    freed = BLOCKS - -(-BLOCKS // EVERY)
    assert before.account.kept_bytes < 256 << 10
    kept = usage.account.kept_bytes - before.account.kept_bytes
    assert abs(kept - freed * CHUNK) <= 4096
    # Each of the blocks that are left is alone in its page, or in two.
    pinned = usage.pinned
    assert abs(pinned.blocks.count - BLOCKS // EVERY) <= 8
    assert pinned.largest[0][0] == BLOCK
    trimmable = usage.trimmable_bytes
    assert trimmable is not None
    rss_bytes = rss_of(parts.pid)
    parts.ask("trim")
    assert rss_bytes - rss_of(parts.pid) == trimmable
    after = usage_of(parts.pid)
    assert after.trimmable_bytes == 0
    # What a trim can't return lies in pages that blocks pin, and at their edges.
    assert after.account.kept_bytes < pinned.kept_bytes + before.account.kept_bytes + 256 * 4096


def test_many_small_gaps(parts: Target) -> None:
    """The kernel reports thousands of runs of resident pages: none is counted twice."""
    parts.ask("free")
    parts.ask("trim")
    usage_of(parts.pid)


def test_the_report_says_what_is_kept(parts: Target) -> None:
    parts.ask("free")
    done = run_tracelloc("heap", "-p", parts.pid, status=0)
    assert re.search(r"of RSS is freed memory that glibc keeps: 18\.6 MiB between", done.stdout)
    assert "heap blocks in use" in done.stdout


def reports_of(target: Target, *options: str) -> list[dict[str, Any]]:
    done = run_tracelloc(
        "-p", target.pid, "--json", "--json-full", "--count", "1", *options, status=0
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.bpf
def test_a_trace_has_the_account(parts: Target) -> None:
    rss_bytes = rss_of(parts.pid)
    (report,) = reports_of(parts)
    account = report["memory"]["account"]
    assert sum(account["parts"].values()) == account["rss_bytes"]
    # The kernel maps a page for the probes.
    assert 0 <= account["rss_bytes"] - rss_bytes <= 256 << 10
    assert near(account["parts"]["in_use"], BLOCKS * CHUNK)


@pytest.mark.bpf
def test_who_pins_pages(parts: Target) -> None:
    """The blocks from before tracing that are left, one in 32, are the stack that keeps most."""
    parts.ask("free")
    (report,) = reports_of(parts, "--earlier", "on")
    pins = report["pinned_by"]
    assert abs(pins[0]["allocations"] - BLOCKS // EVERY) <= 8
    assert pins[0]["kept_bytes"] <= report["memory"]["account"]["pinned_bytes"]
    assert pins[0]["kept_bytes"] >= 0.9 * report["memory"]["account"]["pinned_bytes"]
    assert pins[0]["stack"][0]["symbol"] == "blocks of 1,000 B"


@pytest.mark.bpf
def test_text_has_it_once(parts: Target) -> None:
    title = "==> resident memory:"
    tracer = Tracelloc("-p", parts.pid, "--text", "--interval", "0.3")
    tracer.await_text(title)
    assert tracer.stop() == 0
    # As soon as it is known, and in the last report, which is complete.
    assert tracer.text().count(title) == 2


@contextmanager
def running(*command: str, **environment: str) -> Iterator[int]:
    """A program that is idle; it has said so."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.PIPE,
        env=os.environ | environment,
    ) as process:  # fmt: skip
        assert process.stdout.readline()
        call = Path(f"/proc/{process.pid}/syscall")
        assert any(call.read_text().startswith("0 ") or time.sleep(0.02) for _ in range(1000))
        yield process.pid
        process.kill()


PYTHON = (
    "import sys\nfew = [bytes(n % 3000) for n in range(20000)]\nmany = {n: str(n) for n in "
    "range(50000)}\ndel few[::2]\nprint('idle', flush=True)\nsys.stdin.read()\n"
)
PERL = '$| = 1; $a{$_} = "x" x ($_ % 500) for 1..50000; print "idle\\n"; <STDIN>'


@pytest.mark.parametrize(
    ("command", "environment"),
    [
        ([sys.executable, "-c", PYTHON], {}),
        ([sys.executable, "-c", PYTHON], {"PYTHONMALLOC": "malloc"}),
        (["/usr/bin/perl", "-e", PERL], {}),
        (["/usr/bin/perl", "-e", PERL], {"LD_PRELOAD": "libjemalloc.so.2"}),
        (["/usr/bin/perl", "-e", PERL], {"LD_PRELOAD": MIMALLOC}),
    ],
    ids=["python", "python-malloc", "perl", "jemalloc", "mimalloc"],
)
def test_parts_add_up(command: list[str], environment: dict[str, str]) -> None:
    with running(*command, **environment) as pid:
        usage = usage_of(pid)
        parts = usage.account.parts
        if environment.get("LD_PRELOAD") == MIMALLOC:
            assert "can't be walked" in usage.notes[0]
            assert MemoryPart.IN_USE not in parts
            assert parts[MemoryPart.OTHER] > 10 * MIB
        else:
            assert usage.coverage == 1.0
            assert parts[MemoryPart.IN_USE] > 5 * MIB
        is_pymalloc = "python" in command[0] and not environment
        assert (parts.get(MemoryPart.RUNTIME, 0) > 3 * MIB) == is_pymalloc
