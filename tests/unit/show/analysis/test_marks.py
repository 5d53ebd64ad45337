"""What has come since a mark, in reports and files."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.leaks import CACHE, LEAK, SESSIONS, watched
from tests.unit.reports import json_report, text_report
from tracelloc.model.blocks import Mappings
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import format_size


@pytest.fixture(scope="module")
def mark() -> Snapshot:
    return watched(100.0).snapshot()


@pytest.fixture(scope="module")
def now() -> Snapshot:
    return watched(200.0).snapshot()


def since(now: Snapshot, mark: Snapshot | None, top: int) -> dict[str, Any] | None:
    report = json.loads(json_report(now, watched(200.0).namer, top, mark))
    return report.get("since_mark")


def test_what_has_come(mark: Snapshot, now: Snapshot) -> None:
    found = since(now, mark, 3)
    assert found["elapsed_s"] == 100
    assert found["live_bytes"] == now.live_bytes - mark.live_bytes
    assert found["live_allocations"] == now.live_count - mark.live_count
    assert found["live_bytes"] == found["allocated_bytes"] - found["freed_bytes"]
    more = {n: int(now.totals.live_bytes[n] - mark.totals.live_bytes[n]) for n in [LEAK, *SESSIONS]}
    # The cache was full.
    assert int(now.totals.live_bytes[CACHE]) == int(mark.totals.live_bytes[CACHE])
    assert found["growing_stacks"] == len(more)
    largest = sorted(more, key=lambda n: (-more[n], n))[:3]
    top = found["top_allocators"]
    assert [(c["stack_id"], c["bytes"]) for c in top] == [(n, more[n]) for n in largest]
    counts = now.totals.live_count - mark.totals.live_count
    assert [c["allocations"] for c in top] == counts[largest].tolist()


def test_reports(mark: Snapshot, now: Snapshot) -> None:
    found = since(now, mark, 2)
    lines = list(text_report(now, watched(200.0).namer, 2, mark=mark))
    title = (
        f"==> since the mark 1 m 40 s ago: +{format_size(found['live_bytes'])} in "
        f"+{found['live_allocations']} allocations, 2 top growers out of 13:"
    )
    at = lines.index(title)
    first = found["top_allocators"][0]
    amount = f"+{format_size(first['bytes'])} in +{first['allocations']} allocations"
    assert lines[at + 1] == f"     0: {amount}, in record_request ← serve"
    assert first["stack_id"] == LEAK
    assert first["stack"][0]["symbol"] == "record_request"


def test_sections_have_their_order(mark: Snapshot, now: Snapshot) -> None:
    """Text and JSON have another one: what is asked for comes last in JSON."""
    found = watched(200.0)
    old = replace(now, old_blocks=now.top_blocks, mappings=Mappings((), 0))
    fields = list(json.loads(json_report(old, found.namer, 1, mark, {"temporary", "peak"})))
    assert fields[fields.index("suspects") :] == [
        "suspects", "type_suspects", "top_allocations", "top_allocators", "since_mark",
        "mappings", "old_bytes", "old_allocations", "top_old_allocations", "peak", "temporary",
    ]  # fmt: skip
    titles = [line for line in text_report(old, found.namer, 1, 0, mark, {"peak", "temporary"})
              if line.startswith("==> ")]  # fmt: skip
    words = ["top allocations out of", "older than", "top allocators out of",
             "since the mark", "peak", "temporary", "top mappings", "events/s", "lost"]  # fmt: skip
    at = [next(n for n, title in enumerate(titles) if word in title) for word in words]
    assert at == sorted(at)


def test_another_program_has_no_mark(mark: Snapshot, now: Snapshot) -> None:
    assert since(replace(now, target=replace(now.target, exec_count=1)), mark, 2) is None
    assert since(now, None, 2) is None
