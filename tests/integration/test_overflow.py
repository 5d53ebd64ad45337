"""A reader that can't keep up: figures equal the target's own books all the same."""

import json
import random
import select
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.harness import PATIENCE_S, Target, Targets, Tracelloc
from tests.integration.test_exact import assert_equal, by_site

pytestmark = [pytest.mark.bpf, pytest.mark.long]

SMALL_RING = ("--json", "--top", 1000, "--events-size", "64k", "--interval", "10s")
# How long a reader is stopped at most, in processor time that the target uses meanwhile, however
# busy the machine is: never for nothing, or a few times per overflow.
LONG_S, SHORT_S = 0.8, 0.02


def run_unread(target: Target, tracer: Tracelloc, stopped_s: float) -> dict[str, list[int]]:
    """Has the target run while its reader is stopped at random moments. Returns the books."""
    dice = random.Random(1)

    def is_done(wait_s: float = 0) -> bool:
        return bool(select.select([target.process.stdout], [], [], wait_s)[0])

    target.say("run")
    while not is_done():
        tracer.process.send_signal(signal.SIGSTOP)
        until_s = cpu_s(target.pid) + dice.uniform(0, stopped_s)
        while cpu_s(target.pid) < until_s and not is_done(0.001):
            pass
        tracer.process.send_signal(signal.SIGCONT)
        is_done(dice.uniform(0, 0.02))
    books: dict[str, list[int]] = json.loads(target.hear())
    return books


def cpu_s(pid: int) -> float:
    """Processor time that a process's threads have used; proc_pid_schedstat(5)."""
    spent_ns = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            spent_ns += int(path.read_text().split()[0])
    return spent_ns / 1e9


def blocks_by_identity(report: dict[str, Any]) -> int:
    """How many blocks there are, whatever was lost; those from before count as -1 once freed."""
    lost = report["lost"]
    return int(
        report["live_allocations"]
        + lost["address_reuses"]
        + lost["odd_restores"]
        + lost["lost_allocs"]
        + lost["lost_restores"]
        - lost["lost_frees"]
        - report["unmatched_frees"]
    )


@pytest.mark.parametrize("attach", ["auto", "perf"])
@pytest.mark.parametrize(
    ("threads", "slots", "stopped_s"), [(4, 3000, LONG_S), (8, 64, SHORT_S), (4, 8000, SHORT_S)]
)
def test_books(targets: Targets, threads: int, slots: int, stopped_s: float, attach: str) -> None:
    target = targets.c("books", threads, 160_000 // threads, 1, slots)
    tracer = Tracelloc("-p", target.pid, *SMALL_RING, "--attach", attach)
    books = run_unread(target, tracer, stopped_s)
    report = tracer.final_report()
    assert_equal(report, books)
    assert report["unmatched_frees"] == 0
    assert report["live_allocations_bounds"] is None
    # How many depends on the machine; on an idle one it is most of them.
    assert report["overflow_map_events"] > 1000


def test_a_reader_that_does_not_read_at_all(targets: Targets) -> None:
    """The map holds net changes: however many events there are, these few addresses do."""
    target = targets.c("books", 4, 60_000, 3, 1500)
    tracer = Tracelloc("-p", target.pid, *SMALL_RING, "--overflow-entries", 8192)
    tracer.process.send_signal(signal.SIGSTOP)
    books = json.loads(target.ask("run"))
    tracer.process.send_signal(signal.SIGCONT)
    report = tracer.final_report()
    assert_equal(report, books)
    assert report["overflow_map_events"] > 150_000


def test_blocks_from_before(targets: Targets) -> None:
    """Each of their frees is counted as such once, those of failed resizes are taken back."""
    target = targets.c("books", 4, 60_000, 7, 2000)
    before = json.loads(target.ask("run"))
    tracer = Tracelloc("-p", target.pid, *SMALL_RING)
    books = run_unread(target, tracer, SHORT_S)
    report = tracer.final_report()
    assert report["lost_events"] == report["lost"]["address_reuses"] == 0
    # So many operations later none of the earlier blocks is left.
    assert report["unmatched_frees"] == sum(count for count, _ in before.values())
    assert by_site(report) == {site: figures for site, figures in books.items() if figures[0]}


@pytest.mark.parametrize("entries", [1024, 4096])
def test_a_full_map_is_told_to_the_last_block(targets: Targets, entries: int) -> None:
    target = targets.c("books", 4, 60_000, entries, 20_000)
    tracer = Tracelloc("-p", target.pid, *SMALL_RING, "--overflow-entries", entries)
    tracer.process.send_signal(signal.SIGSTOP)
    books = json.loads(target.ask("run"))
    tracer.process.send_signal(signal.SIGCONT)
    report = tracer.final_report()
    truth = sum(count for count, _ in books.values())
    assert min(report["lost"]["lost_allocs"], report["lost"]["lost_frees"]) > 1000
    assert blocks_by_identity(report) == truth
    least, most = report["live_allocations_bounds"]
    assert least <= truth <= most


def test_samples(targets: Targets) -> None:
    """Each sampled block counts for the same when it comes and when it goes."""
    target = targets.c("books", 4, 60_000, 21, 20_000)
    tracer = Tracelloc("-p", target.pid, *SMALL_RING, "--sample", 64)
    books = run_unread(target, tracer, SHORT_S)
    report = tracer.final_report()
    truth_bytes = sum(size for _, size in books.values())
    assert report["live_bytes"] == pytest.approx(truth_bytes, rel=0.03)
    assert report["allocations"] - report["frees"] == report["live_allocations"]
    assert report["allocated_bytes"] - report["freed_bytes"] == report["live_bytes"]
    assert report["unmatched_frees"] == report["lost_events"] == 0
    assert report["overflow_map_events"] > 1000


def test_children_are_left_alone(targets: Targets) -> None:
    """Forks while the ring is full: children's calls are in no figure."""
    target = targets.c("forker", 200)
    tracer = Tracelloc("-p", target.pid, "--json", "--events-size", 4096)
    tracer.process.send_signal(signal.SIGSTOP)
    assert target.ask("go") == "done"
    tracer.process.send_signal(signal.SIGCONT)
    report = tracer.final_report()
    assert (report["live_bytes"], report["live_allocations"]) == (20_000, 200)
    assert report["allocations"] == 200
    assert report["lost_events"] == report["unmatched_frees"] == 0
    assert report["overflow_map_events"] > 100


def test_memory_does_not_grow(targets: Targets) -> None:
    """Two hundred overflows later the reader is as large as after fifty."""
    target = targets.c("books", 4, 3000, 5, 3000)
    tracer = Tracelloc(
        "--no-search", "-p", target.pid, "--json", "--events-size", 4096, "--interval", "100ms",
    )  # fmt: skip

    def overflow_until(count: int) -> int:
        deadline_s = time.monotonic() + 3 * PATIENCE_S
        seen = 0
        while seen < count:
            target.ask("run")
            whole = tracer.text().rpartition("\n")[0]
            seen = json.loads(whole.splitlines()[-1])["overflows"] if whole else 0
            assert time.monotonic() < deadline_s
        return rss_bytes(tracer.process.pid)

    early_bytes = overflow_until(50)
    late_bytes = overflow_until(200)
    assert late_bytes < early_bytes + (8 << 20)
    assert tracer.final_report()["lost_events"] == 0


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
