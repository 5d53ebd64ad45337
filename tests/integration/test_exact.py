"""Outstanding figures equal the target's own books to the last digit."""

import json
import os

import pytest

from tests.harness import PRELOADED, Target, Targets, Tracelloc, traced
from tests.integration.test_attach import WAYS

pytestmark = pytest.mark.bpf

OPERATIONS = 12_000

BY_LIBRARY = [pytest.param(way, marks=pytest.mark.long) for way in ("preloaded", "injected")]
_OPTIONS = {"preloaded": ("--preload", "on"), "injected": ("--preload", "inject")}


def begun(way: str, targets: Targets, name: str, *arguments: int) -> Target:
    """A target that can be traced by the way."""
    variables = {"LD_PRELOAD": str(PRELOADED)} if way == "preloaded" else {}
    return targets.c(name, *arguments, env=os.environ | variables)


def traced_by(way: str, target: Target, *options: str | int) -> Tracelloc:
    by = _OPTIONS.get(way) or ("--attach", way)
    tracer = Tracelloc("-p", target.pid, "--json", "--top", 100_000, *by, *options)
    words = f"events come by the {way} library, not by probes"
    assert way not in _OPTIONS or any(words in message for message in tracer.messages)
    return tracer


def by_site(report: dict) -> dict[str, list[int]]:
    """[blocks, bytes] by the allocating function of ``books.c``."""
    sites: dict[str, list[int]] = {}
    for entry in report["top_allocators"]:
        names = [f["symbol"] for f in entry["stack"] if (f["symbol"] or "").startswith("by_")]
        assert len(names) == 1, entry["stack"]
        site = sites.setdefault(names[0], [0, 0])
        site[0] += entry["allocations"]
        site[1] += entry["bytes"]
    return sites


def assert_equal(report: dict, books: dict[str, list[int]]) -> None:
    assert report["lost_events"] == 0
    assert {cause: n for cause, n in report["lost"].items() if n} == {}
    assert report["live_allocations"] == sum(count for count, _ in books.values())
    assert report["live_bytes"] == sum(size for _, size in books.values())
    assert report["live_stacks"] == len(report["top_allocators"])
    assert by_site(report) == {site: figures for site, figures in books.items() if figures[0]}
    assert report["allocations"] - report["frees"] == report["live_allocations"]
    assert report["allocated_bytes"] - report["freed_bytes"] == report["live_bytes"]


@pytest.mark.parametrize("way", [*WAYS, *BY_LIBRARY])
@pytest.mark.parametrize(
    ("threads", "seed", "slots"),
    [
        (1, 3, 500), (16, 4, 8000), (4, 5, 4),
        pytest.param(300, 6, 3000, marks=pytest.mark.long),  # more than the library has rings
    ],
)  # fmt: skip
def test_books(targets: Targets, threads: int, seed: int, slots: int, way: str) -> None:
    target = begun(way, targets, "books", threads, OPERATIONS * 4 // threads, seed, slots)
    tracer = traced_by(way, target)
    books = json.loads(target.ask("run"))
    report = tracer.final_report()
    assert_equal(report, books)
    assert report["unmatched_frees"] == 0
    # By far most operations allocate or free something.
    assert report["allocations"] > OPERATIONS // 2


def test_blocks_from_before_are_counted_apart(targets: Targets) -> None:
    """What was outstanding at the attach and is freed later shows up as just that."""
    target = targets.c("books", 4, OPERATIONS, 7, 2000)
    before = json.loads(target.ask("run"))
    books, report = traced(target, "run", "--top", 1000)
    old_blocks = sum(count for count, _ in before.values())
    all_blocks = sum(count for count, _ in books.values())
    assert report["lost_events"] == 0
    assert report["unmatched_frees"] > 0
    # All blocks at the end = those traced + those from before that were not freed.
    assert report["live_allocations"] == all_blocks - (old_blocks - report["unmatched_frees"])


@pytest.mark.parametrize("way", ["auto", *BY_LIBRARY])
def test_size_limits(targets: Targets, way: str) -> None:
    """With limits, what is reported equals what a full trace says of those sizes."""
    target = begun(way, targets, "books", 4, OPERATIONS, 11, 3000)
    # Injecting changes the mappings: what is traced as a whole is not at the same time.
    limited = traced_by(way, target, "--min-size", 100, "--max-size", "1k")
    whole = Tracelloc("-p", target.pid, "--json", "--top", 100_000, "--preload", "off")
    books = json.loads(target.ask("run"))
    assert limited.stop() == whole.stop() == 0
    assert_equal(whole.last(), books)
    blocks = {
        block["address"]: block["size_bytes"]
        for block in whole.last()["top_allocations"]
        if 100 <= block["size_bytes"] <= 1024
    }
    seen = {b["address"]: b["size_bytes"] for b in limited.last()["top_allocations"]}
    assert seen == blocks
    assert len(seen) > 100
    assert limited.last()["live_bytes"] == sum(blocks.values())


@pytest.mark.parametrize("way", ["auto", *BY_LIBRARY])
@pytest.mark.parametrize(
    ("sample", "tolerance"),
    [
        ("64", 0.03),
        pytest.param("4k", 0.15, marks=pytest.mark.long),
        pytest.param("32k", 0.4, marks=pytest.mark.long),
    ],
)
def test_samples_estimate_the_books(
    targets: Targets, sample: str, tolerance: float, way: str
) -> None:
    """Outstanding bytes and blocks within a few standard errors; frees all find their block."""
    target = begun(way, targets, "books", 4, OPERATIONS * 2, 21, 20_000)
    tracer = traced_by(way, target, "--sample", sample)
    books = json.loads(target.ask("run"))
    report = tracer.final_report()
    # What it may share with us is none of its growth.
    assert report["memory"]["shared_bytes"] == 0
    truth_bytes = sum(size for _, size in books.values())
    truth_blocks = sum(count for count, _ in books.values())
    assert report["sample_bytes"] in (64, 4096, 32768)
    assert report["live_bytes"] == pytest.approx(truth_bytes, rel=tolerance)
    # Small blocks are rarely sampled, so their number is known less well than their bytes.
    assert report["live_allocations"] == pytest.approx(truth_blocks, rel=4 * tolerance)
    assert report["unmatched_frees"] == report["lost_events"] == 0
    assert {cause: n for cause, n in report["lost"].items() if n} == {}
    assert len(report["top_allocations"]) < truth_blocks
    assert report["allocations"] - report["frees"] == report["live_allocations"]


@pytest.mark.parametrize("way", ["auto", "perf", *BY_LIBRARY])
def test_children_are_left_alone(targets: Targets, way: str) -> None:
    """Forked ones allocate as they like, and are in no figure."""
    target = begun(way, targets, "forker", 200)
    tracer = traced_by(way, target)
    assert target.ask("go") == "done"
    report = tracer.final_report()
    assert (report["live_bytes"], report["live_allocations"]) == (20_000, 200)
    assert report["allocations"] == 200
    assert report["lost_events"] == report["unmatched_frees"] == 0


@pytest.mark.parametrize("way", BY_LIBRARY)
def test_forks_in_signal_handlers(targets: Targets, way: str) -> None:
    """Children go on in the middle of what their parents were reporting."""
    target = begun(way, targets, "forkstorm", 500)
    tracer = traced_by(way, target)
    kept, bad = map(int, target.ask("go").split())
    assert bad == 0
    report = tracer.final_report()
    assert (report["live_allocations"], report["live_bytes"]) == (kept, 40 * kept)
    assert report["lost_events"] == report["unmatched_frees"] == 0
