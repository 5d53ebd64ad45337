"""The hard cases of capture: crowds of threads, libraries that come and go, calls that are
left without returning, rings that are too small."""

import ctypes
import json
import re
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from tests.harness import Target, Targets, Tracelloc, traced, wait_until
from tests.sessions import tracing
from tracelloc.model.snapshotrequest import SnapshotRequest
from tracelloc.record.kernel.bpfmaps import set_entry
from tracelloc.record.kernel.captureconfig import CaptureConfig
from tracelloc.snapshots.snapshot import Snapshot

pytestmark = pytest.mark.bpf

# What has less room than it needs; compiled once for several tests.
SMALL = {"max_threads": 64, "max_stacks": 16, "stacks_size_bytes": 4096}


def test_no_two_threads_are_mixed_up(targets: Targets) -> None:
    """With many more threads than processors each stack spells its block's size."""
    _, report = traced(targets.c("crowd", 48, 600), "go", "--top", 5000)
    assert report["truncated_stacks"] == report["broken_stacks"] == 0
    assert {cause: count for cause, count in report["lost"].items() if count} == {}
    assert report["allocations"] == 48 * 600
    sizes = set()
    for site in report["top_allocators"]:
        names = [frame["symbol"] for frame in site["stack"]]
        assert names[0:13:2] == ["descend"] * 7
        assert names[13] == "wander"
        # The innermost digit is the last one that was divided off: the highest.
        chain = 0
        for name in names[1:13:2]:
            chain = chain * 3 + int(name.removeprefix("digit_"))
        assert site["bytes"] == site["allocations"] * (1000 + chain)
        sizes.add(1000 + chain)
    assert sizes == set(range(1000, 1729, 4))


def test_library_loaded_later(targets: Targets, tmp_path: Path) -> None:
    """Its frames have names while it is there, and keep them when it is gone."""
    plugin = targets.builder.c("plugin", "-shared", "-fPIC")
    library = Path(shutil.copy(plugin, tmp_path / "libplugin.so"))
    target = targets.c("libraries", "once", library)
    tracer = Tracelloc("-p", target.pid, "--json", "--top", 50, "--interval", "100ms")
    assert target.ask("go") == "done"
    reported(tracer, 4321)
    library.unlink()
    assert target.ask("close") == "closed"
    assert tracer.stop() == 0
    stack = reported(tracer, 4321)
    assert [frame["symbol"] for frame in stack][:3] == ["plugin_allocate", "use", "once"]
    assert stack[0]["module"] == str(library)


def reported(tracer: Tracelloc, size: int) -> list[dict]:
    """The stack of the block of this size, once the newest report has it."""

    def stacks() -> list[list[dict]]:
        blocks = [one for report in tracer.reports()[-1:] for one in report["top_allocations"]]
        return [one["stack"] for one in blocks if one["size_bytes"] == size]

    return wait_until(stacks)[0]


def test_nested_abandoned_and_chained_calls(targets: Targets) -> None:
    """A malloc around malloc counts once; a longjmp out of it silences nothing."""
    target = targets.c("jumper", flags=("-rdynamic", "-foptimize-sibling-calls"))
    tracer = Tracelloc("-p", target.pid, "--json", "--top", 50, "--interval", "100ms")
    assert target.ask("go") == "first"
    reported(tracer, 1001)
    assert target.ask("on") == "done"
    report = tracer.final_report()
    assert sorted(block["size_bytes"] for block in report["top_allocations"]) == [1001, 1004]
    # 1001, 1002, 1003, 1004 and 5: none twice, none missing.
    assert report["allocations"] == 5
    assert report["frees"] == 3
    assert report["lost_events"] == 0
    # Libc's free within the program's own one is of a block that is gone already.
    assert report["unmatched_frees"] == 0
    assert {k: v for k, v in report["lost"].items() if v} == {"abandoned_calls": 1}


def trace(target: Target, **config: int) -> Snapshot:
    """All that one "go" does, traced to the end by a session in this process."""
    with tracing(target, CaptureConfig(**config)) as session:
        assert target.ask("go") == "done"
        session.stop()
        return session.snapshot().root


def test_times_of_birth(targets: Targets) -> None:
    """They are of the timer's last tick: at most one tick too early, never too late."""
    target = targets.c("jumper", flags=("-rdynamic", "-foptimize-sibling-calls"))
    longest_tick_ns = 10_000_000
    with tracing(target) as session:
        before_ns = time.monotonic_ns()
        assert target.ask("go") == "first"
        after_ns = time.monotonic_ns()
        asked_ns = time.monotonic_ns()
        (block,) = session.snapshot(SnapshotRequest(50)).root.top_blocks.largest
        answered_ns = time.monotonic_ns()
    assert asked_ns - block.age_ns <= after_ns
    assert answered_ns - block.age_ns >= before_ns - longest_tick_ns


def test_thread_churn(targets: Targets) -> None:
    """Threads that ended leave nothing behind in the probes' tables."""
    target = targets.c("churn", 300)
    with tracing(target) as session:
        for _ in range(3):
            assert target.ask("go") == "done"
            # Those that were joined may not be quite gone.
            while len(session.root.process.thread_ids()) > 1:
                time.sleep(0.01)
            session.root.drop_ended_threads()
            assert session.root.drop_ended_threads() == 0
            owners = session._probes._threads >> np.uint64(32)
            assert np.count_nonzero(owners == target.pid) <= 1  # the first thread's
        session.stop()
        snapshot = session.snapshot().root
        assert snapshot.losses.events == 0
        kept = [s for s in snapshot.top_stacks() if s.live_bytes == 24 * s.live_count]
        assert sum(s.live_count for s in kept) == 900


def test_a_thread_that_begins_while_ended_ones_are_dropped(targets: Targets) -> None:
    """It keeps its record: it may be in its first call."""
    target = targets.c("churn", 1)
    with tracing(target) as session:
        forget = session._probes.forget_threads
        assert target.ask("go") == "done"
        listed: list[int] = []

        def begins_another(thread_id: int) -> bool:
            listed.append(thread_id)
            assert target.ask("go") == "done"
            return True

        begun: list[int] = []
        # The session drops records of ended threads, too, now and then.
        with session._lock:
            assert forget(target.pid, begins_another) == len(listed)
            forget(target.pid, lambda thread_id: not begun.append(thread_id))
        assert len(set(begun) - set(listed)) == len(listed)


def test_nothing_is_left_of_the_thread_that_had_the_slot_before(targets: Targets) -> None:
    """A record that an ended thread has left in the middle of a call is as good as none."""
    target = targets.c("churn", 60)
    with tracing(target, CaptureConfig(max_threads=512)) as session:
        left = ctypes.c_uint64.from_buffer(bytearray(b"\xff" * 4096))
        for slot in range(512):
            set_entry(session._probes._bpf.map_fd("calls"), ctypes.c_uint32(slot), left)
        assert target.ask("go") == "done"
        session.stop()
        snapshot = session.snapshot().root
        assert not any(snapshot.losses.by_cause.values())
        assert [s.live_count for s in snapshot.top_stacks() if s.live_bytes == 60 * 24] == [60]


def test_too_many_threads_are_counted(targets: Targets) -> None:
    losses = trace(targets.c("churn", 300), max_threads=32).losses
    assert losses.by_cause["call_table_full"] >= 200
    assert losses.events >= 200


def test_overflow_is_counted_and_said(targets: Targets) -> None:
    """Without a spill map, a ring far too small loses events.

    Each is counted, and the report says what it means.
    """
    target = targets.c("books", 4, 20_000, 1, 3000)
    tracer = Tracelloc(
        "-p", target.pid, "--text", "--events-size", 4096, "--overflow-entries", 0,
        "--interval", "10s",
    )  # fmt: skip
    json.loads(target.ask("run"))
    assert tracer.stop() == 0
    last = tracer.text().splitlines()[-2]
    assert last.startswith("==> lost ")
    assert int(last.split()[2].replace(",", "")) > 1000
    assert re.search(r"at least [\d,]+ and at most [\d,]+ live allocations, bytes unknown$", last)


def test_stacks_that_find_no_room(targets: Targets) -> None:
    """Without a map beside the ring their records are lost and counted; blocks are not."""
    snapshot = trace(targets.c("crowd", 4, 4000), stacks_size_bytes=4096, spill_entries=0)
    assert snapshot.losses.by_cause["lost_stacks"] > 0
    assert snapshot.losses.events == 0
    # Every chain has its own figures, be its frames known or not.
    assert 0 < snapshot.unknown_stacks < 729
    assert snapshot.live_stacks == 183
    sizes = {site.live_bytes / site.live_count for site in snapshot.top_stacks()}
    assert sizes == set(range(1000, 1729, 4))


def test_stacks_that_find_room_elsewhere(targets: Targets) -> None:
    """With it none is lost, and none is left in it. A full table of known ones costs only time."""
    snapshot = trace(targets.c("crowd", 4, 4000), **SMALL)
    assert snapshot.losses.by_cause["lost_stacks"] == 0
    assert snapshot.losses.by_cause["stack_table_full"] > 0
    assert snapshot.losses.events == snapshot.unknown_stacks == 0
    assert snapshot.live_stacks == 183
    assert all(snapshot.frames(site.index) for site in snapshot.top_stacks())
