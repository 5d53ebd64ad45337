"""Outstanding figures equal the target's own books to the last digit."""

import json
import signal

import pytest

from tests.harness import Targets, Tracelloc, traced
from tests.integration.test_attach import WAYS

pytestmark = pytest.mark.bpf

OPERATIONS = 12_000


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


@pytest.mark.parametrize("attach", WAYS)
@pytest.mark.parametrize(
    ("threads", "seed", "slots"), [(4, 1, 3000), (4, 2, 64), (1, 3, 500), (16, 4, 8000), (4, 5, 4)]
)
def test_books(targets: Targets, threads: int, seed: int, slots: int, attach: str) -> None:
    target = targets.c("books", threads, OPERATIONS * 4 // threads, seed, slots)
    books, report = traced(target, "run", "--top", 1000, "--attach", attach)
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


def test_size_limits(targets: Targets) -> None:
    """With limits, what is reported equals what a full trace says of those sizes."""
    target = targets.c("books", 4, OPERATIONS, 11, 3000)
    whole = Tracelloc("-p", target.pid, "--json", "--top", 100_000)
    limited = Tracelloc(
        "-p", target.pid, "--json", "--top", 100_000, "--min-size", 100, "--max-size", "1k",
    )  # fmt: skip
    books = json.loads(target.ask("run"))
    assert limited.stop(signal.SIGTERM) == 0
    assert whole.stop() == 0
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


@pytest.mark.parametrize(
    ("sample", "tolerance"),
    [
        ("64", 0.03),
        pytest.param("4k", 0.15, marks=pytest.mark.long),
        pytest.param("32k", 0.4, marks=pytest.mark.long),
    ],
)
def test_samples_estimate_the_books(targets: Targets, sample: str, tolerance: float) -> None:
    """Outstanding bytes and blocks within a few standard errors; frees all find their block."""
    target = targets.c("books", 4, OPERATIONS * 2, 21, 20_000)
    books, report = traced(target, "run", "--top", 100_000, "--sample", sample)
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
