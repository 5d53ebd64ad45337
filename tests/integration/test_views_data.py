"""What views are given of a real process: copies, the time line, marks, thread names."""

import time

import pytest

from tests.harness import PATIENCE_S, Targets
from tests.sessions import tracing
from tracelloc.model.snapshotrequest import SnapshotRequest
from tracelloc.show.analysis.differences import Limits, change, held_by_stack, mark, stack_figures

pytestmark = pytest.mark.bpf

EVERYTHING = SnapshotRequest(blocks=True)
TICK_NS = 10_000_000 + (1 << 20)  # Births are of the timer's last tick: up to this much too early


def test_copies_agree_with_totals(targets: Targets) -> None:
    target = targets.c("crowd", 6, 200)
    with tracing(target) as session:
        before = mark(session.snapshot().root, "start")
        time.sleep(TICK_NS / 1e9)
        assert target.ask("go") == "done"
        snapshot = session.snapshot(EVERYTHING).root
        assert session.snapshot().root.blocks is None
        assert session.root.outside.thread_names.all()[target.pid].startswith("crowd")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            series = session.snapshot().root.series
            if series.live_bytes[-1:].tolist() == [snapshot.live_bytes]:
                break
            assert time.monotonic() < deadline
    assert session.root.outside.thread_names.all()[target.pid].startswith("crowd")
    blocks = snapshot.blocks
    assert len(blocks) == snapshot.live_count > 200
    held = held_by_stack(blocks, len(snapshot.totals), None)
    assert held.size_bytes.tolist() == snapshot.totals.live_bytes.tolist()
    assert held.count.tolist() == snapshot.totals.live_count.tolist()
    since = stack_figures(snapshot, before, Limits(born_after_ns=before.now_ns))
    moved = change(before, snapshot)
    assert moved.grown("allocated_count").sum() >= 1200
    assert since.live_bytes.tolist() == moved.grown("live_bytes").tolist()
    assert 0 <= since.mean_age_ns.max() <= snapshot.elapsed_ns + TICK_NS
    assert (series.time_ns[:-1] <= series.time_ns[1:]).all()
    assert series.rss_bytes[0] > 0
