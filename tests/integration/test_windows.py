"""``--max-overhead``: probes come off and go on again, and each window has books of its own."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness import PATIENCE_S, Builder, Target, Tracelloc
from tests.integration.test_attach import METHODS
from tracelloc.record.kernel.captureconfig import CaptureConfig
from tracelloc.record.kernel.method import Method
from tracelloc.record.kernel.overheadlimit import OverheadLimit
from tracelloc.record.process.procfs import Process
from tracelloc.record.session.begin import attach_to
from tracelloc.record.session.config import TraceConfig
from tracelloc.record.session.session import Session
from tracelloc.record.session.upkeep import Upkeep
from tracelloc.snapshots.snapshot import Snapshot

pytestmark = [pytest.mark.bpf, pytest.mark.long]


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class ByHand:
    """A session whose probes are off when a test says so."""

    def __init__(
        self,
        pid: int,
        patch: pytest.MonkeyPatch,
        method: Method | None = None,
        sample_bytes: int | None = None,
    ) -> None:
        self.must_pause = False
        patch.setattr(Upkeep, "must_pause", property(lambda _: self.must_pause))
        capture = CaptureConfig(sample_bytes=sample_bytes)
        config = TraceConfig(capture, method=method, max_overhead=OverheadLimit(0.05))
        self.session: Session = attach_to(Process(pid), config)

    def set_paused(self, paused: bool) -> None:
        self.must_pause = paused
        until(lambda: self.session.root.is_paused is paused)
        # It waits for the turn of upkeep in which this has changed: probes are live at its end.
        self.session.snapshot()

    def shown(self, number: int) -> Snapshot:
        """A snapshot, once it is of this window."""

        def is_shown() -> bool:
            window = self.session.snapshot().root.window
            return window is not None and window.number == number

        until(is_shown)
        return self.session.snapshot().root


def books_of(snapshot: Snapshot) -> list[int]:
    return [snapshot.live_count, snapshot.live_bytes]


@pytest.mark.parametrize("method", METHODS)
def test_each_window_has_its_own_books(
    builder: Builder, targets: list[Target], monkeypatch: pytest.MonkeyPatch, method: Method
) -> None:
    target = Target([builder.c("lineage")])
    targets.append(target)
    target.ask("alloc 3 1000")
    by_hand = ByHand(target.pid, monkeypatch, method)
    session = by_hand.session
    try:
        target.ask("alloc 50 100")
        target.ask("free 5")
        first = session.snapshot().root
        assert (books_of(first), first.window) == ([48, 4800], None)
        by_hand.set_paused(True)
        target.ask("free 20")
        target.ask("alloc 30 10")
        paused = by_hand.shown(1)
        assert books_of(paused) == [48, 4800]
        assert paused.window is not None
        assert not paused.window.is_traced_now
        assert (paused.window.ended_ago_ns or 0) > 0
        assert paused.elapsed_ns == paused.window.traced_ns < paused.window.total_ns
        by_hand.set_paused(False)
        target.ask("alloc 7 11")
        # 28 of the first window, 3 that nobody saw.
        target.ask("free 31")
        second = by_hand.shown(2)
        assert books_of(second) == [7, 77]
        assert second.losses.oddities.unmatched_frees == 31
        assert second.losses.events == 0
        assert int(second.totals.allocated_count.sum()) == 7
        assert second.window is not None
        assert second.window.ended_ago_ns is None
        assert second.events == 7 + 31
        by_hand.set_paused(True)
        by_hand.set_paused(False)
        session.stop()
        # The third has hardly begun: the last whole one is shown.
        assert books_of(by_hand.shown(2)) == [7, 77]
    finally:
        session.close()
    assert target.ask("alloc 1 1") == "[35, 348]"


def test_samples_of_a_window_are_no_part_of_the_next(
    builder: Builder, targets: list[Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was sampled before is not known to the probes any more."""
    target = Target([builder.c("lineage")])
    targets.append(target)
    by_hand = ByHand(target.pid, monkeypatch, sample_bytes=1)
    try:
        target.ask("alloc 50 100")
        by_hand.set_paused(True)
        by_hand.set_paused(False)
        target.ask("alloc 7 100")
        target.ask("free 51")
        snapshot = by_hand.shown(2)
        assert (books_of(snapshot), snapshot.losses.oddities.unmatched_frees) == ([6, 600], 0)
    finally:
        by_hand.session.close()


@pytest.mark.parametrize("way", ["exec", "texec"])
def test_another_program_begins_while_the_probes_are_off(
    builder: Builder, targets: list[Target], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    target = Target([builder.c("lineage")])
    targets.append(target)
    by_hand = ByHand(target.pid, monkeypatch)
    try:
        target.ask("alloc 50 100")
        by_hand.set_paused(True)
        assert target.ask(way) == "ready"
        until(lambda: by_hand.session.root.target.exec_count == 1)
        target.ask("alloc 5 10")
        by_hand.set_paused(False)
        target.ask("alloc 9 100")
        target.ask("free 6")
        snapshot = by_hand.shown(2)
        assert (books_of(snapshot), snapshot.losses.oddities.unmatched_frees) == ([8, 800], 5)
    finally:
        by_hand.session.close()
    assert json.loads(target.ask("alloc 1 1")) == [9, 801]


@pytest.mark.alone
def test_a_target_that_allocates_hard_is_slowed_down_by_less(
    builder: Builder, targets: list[Target]
) -> None:
    """In CPU time, up to where a window begins. Without a limit it takes many times as long.

    The work done between windows is the measure: other programs slow both down alike.
    """
    target = Target([builder.c("storm", "-O2"), 1, 12, 0])
    targets.append(target)
    process = Process(target.pid)
    limit = OverheadLimit(0.5, period_s=0.5)
    session = attach_to(process, TraceConfig(max_overhead=limit))
    all_ns = all_pairs = free_ns = free_pairs = 0
    share = 0.0
    try:
        deadline = time.monotonic() + 4 * PATIENCE_S
        before_ns, paused_before = process.cpu_ns() or 0, 0
        # A longer stretch ends where the probes are about to go on again: all is paid by then.
        while session.root.windows.number < 4:
            assert time.monotonic() < deadline
            pairs = int(target.ask("50").split()[0])
            now_ns = process.cpu_ns() or 0
            used_ns, before_ns = now_ns - before_ns, now_ns
            all_ns, all_pairs = all_ns + used_ns, all_pairs + pairs
            # The first stretch has the detaching in it, and the last the reattaching.
            paused_before = paused_before + 1 if session.root.is_paused else 0
            if paused_before > 2:
                free_ns, free_pairs = free_ns + used_ns, free_pairs + pairs
                share = all_ns / all_pairs / (free_ns / free_pairs) - 1
        window = session.snapshot().root.window
    finally:
        session.close()
    assert 0.02 < share < 1.1 * limit.share
    assert window is not None
    assert 0 < window.traced_share < 0.9


def test_what_is_said(builder: Builder, targets: list[Target], tmp_path: Path) -> None:
    target = Target([builder.c("storm", "-O2"), 1, 12, 10])
    targets.append(target)
    tracer = Tracelloc(
        "-p", target.pid, "--json", "--max-overhead", "2%", "-o", tmp_path / "a.json",
        "-o", tmp_path / "a.html", "--interval", "100ms", directory=tmp_path,
    )  # fmt: skip
    target.say("2000")
    tracer.wait_for("--max-overhead 2.0 %: the probes are detached in between")
    report = tracer.await_report(lambda report: report["window"] is not None)
    target.hear()
    assert tracer.stop() == 0
    window = report["window"]
    assert (window["number"], window["ended"], window["max_overhead"]) == (1, True, 0.02)
    assert window["from"] < window["to"] <= report["time"]
    assert window["to"] - window["from"] == pytest.approx(report["elapsed_s"], abs=0.002)
    assert report["live_allocations"] <= 10
    file = json.loads((tmp_path / "a.json").read_text())
    assert file["notes"][0].startswith("window 1 of ")
    assert file["figures"]["window"]["number"] == 1
    assert "all figures are of that time" in (tmp_path / "a.html").read_text()


def test_text_says_it(builder: Builder, targets: list[Target], tmp_path: Path) -> None:
    target = Target([builder.c("storm", "-O2"), 1, 12, 0])
    targets.append(target)
    tracer = Tracelloc("-p", target.pid, "--text", "--max-overhead", "2", directory=tmp_path)
    target.say("1500")
    tracer.wait_for("the probes are detached in between")
    assert tracer.stop() == 0
    last = tracer.text().rpartition("pid=")[2]
    assert " window=1 length=" in last
    assert "==> window 1 of " in last
    assert "to keep the overhead below 2.0 % (--max-overhead)" in last
