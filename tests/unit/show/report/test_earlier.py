"""Reports of a log: only what has changed since earlier ones, and frames once."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.unit.leaks import LEAK, watched
from tracelloc.model.verdicts import Verdict
from tracelloc.show.report.content import FULL_AGAIN_S, EarlierReports, ReportStyle
from tracelloc.show.report.sections import trace_report
from tracelloc.snapshots.snapshot import Snapshot, TraceSnapshot

STYLE = ReportStyle(2)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def report(snapshot: Snapshot, earlier: EarlierReports, *, as_json: bool = False) -> str:
    """That of the only process."""
    namers: Any = SimpleNamespace(namer_of=lambda _target: watched(400.0).namer)
    trace = TraceSnapshot((snapshot,))
    return trace_report(trace, namers, STYLE, {}, ended=False, earlier=earlier, as_json=as_json)


def text(snapshot: Snapshot, earlier: EarlierReports, *, is_last: bool = False) -> list[str]:
    earlier.begin(is_last=is_last)
    return report(snapshot, earlier).splitlines()


def later(snapshot: Snapshot) -> Snapshot:
    """A minute later, nothing having changed."""
    return replace(snapshot, time_s=snapshot.time_s + 60)


def test_lists_and_verdicts_that_change() -> None:
    earlier, first = EarlierReports(), watched(400.0).snapshot()
    assert sum(" suspect=leaking " in line for line in text(first, earlier)) == 2
    (head,) = text(later(first), earlier)
    assert head.startswith("2023-11-14T22:14:20Z pid=42 server live=")
    earlier, first = EarlierReports(), watched(400.0).snapshot()
    whole = text(first, earlier)
    assert sum(line.endswith(": record_request+0x4/0x10 in /opt/app") for line in whole) == 1
    assert sum(", in record_request ← serve" in line for line in whole) >= 1
    (head,) = text(replace(watched(420.0).snapshot(), time_s=first.time_s + 20), earlier)
    assert head.startswith("2023-11-14T22:13:40Z pid=42 server live=")
    earlier, first = EarlierReports(), watched(400.0).snapshot()
    text(first, earlier)
    totals = first.totals.copy()
    live = np.where(totals.live_bytes > 0, totals.live_bytes, totals.live_bytes.max())
    totals.allocated_bytes[int(np.argmin(live))] *= 1000
    changed = replace(later(first), totals=totals)
    title, top = [line for line in text(changed, earlier) if "suspect=" not in line][1:3]
    assert title == "==> 2 top allocators out of 14:"
    assert top.startswith("     0: ")
    assert len(text(changed, earlier)) == 1
    assert len([line for line in text(first, earlier) if "suspect=" not in line]) == 1
    earlier, first = EarlierReports(), watched(400.0).snapshot()
    growing = with_verdict(first, Verdict.GROWING)
    before = text(growing, earlier)
    assert len(text(growing, earlier)) == 1
    _head, line, *more = text(first, earlier)
    assert " suspect=leaking " in line
    assert f"stack={LEAK} " in line
    at = next(n for n, each in enumerate(before) if f"stack={LEAK} " in each)
    assert more == before[at + 1 : at + 1 + len(more)]
    assert more[0].startswith("      ")
    assert more[1].endswith("record_request+0x4/0x10 in /opt/app")
    assert len(text(first, earlier)) == 1


def with_verdict(snapshot: Snapshot, verdict: Verdict, rate: float = 1.0) -> Snapshot:
    """The snapshot with another verdict on the second suspect, and its rate times ``rate``."""
    group, single = snapshot.findings.suspects
    per_min = single.judgement.rate_bytes_per_min * rate
    judgement = replace(single.judgement, verdict=verdict, rate_bytes_per_min=per_min)
    suspects = group, replace(single, judgement=judgement)
    return replace(snapshot, findings=replace(snapshot.findings, suspects=suspects))


def test_rates_and_ranks_that_change() -> None:
    earlier, first = EarlierReports(), watched(400.0).snapshot()
    text(first, earlier)
    assert len(text(with_verdict(first, Verdict.LEAKING, 1.2), earlier)) == 1
    faster = with_verdict(first, Verdict.LEAKING, 1.3)
    assert sum(" suspect=leaking " in line for line in text(faster, earlier)) == 1
    assert len(text(faster, earlier)) == 1
    earlier, first = EarlierReports(), watched(400.0).snapshot()
    text(first, earlier)
    suspects = first.findings.suspects[::-1]
    turned = replace(first, findings=replace(first.findings, suspects=suspects))
    lines = text(turned, earlier)
    assert [f"stack={LEAK} " in line for line in lines if " suspect=" in line] == [True]
    assert any("record_request+0x4" in line for line in lines)
    for snapshot in (first, turned, first):
        assert len(text(snapshot, earlier)) == 1
    earlier, first = EarlierReports(), watched(400.0).snapshot()
    text(first, earlier)
    findings = replace(first.findings, suspects=(), suspect_of={})
    cleared = replace(later(first), findings=findings)
    lines = [line for line in text(cleared, earlier) if "suspect=" in line]
    assert len(lines) == 2
    assert any(
        line.startswith("2023-11-14T22:14:20Z pid=42 server suspect=no verdict=")
        and line.endswith(f'stack={LEAK} in="record_request ← serve"')
        for line in lines
    )
    assert not any("suspect=" in line for line in text(cleared, earlier))


def test_every_report_and_the_last_one_are_whole_and_one_every_few_hours() -> None:
    clock, first = Clock(), watched(400.0).snapshot()
    earlier = EarlierReports(now_s=clock)
    head, legend, *rest = text(first, earlier)
    assert legend.startswith("==> growth: ")
    whole = [head, *rest]
    assert len(text(first, earlier)) == 1
    clock.now_s += FULL_AGAIN_S - 1
    assert len(text(first, earlier)) == 1
    clock.now_s += 1
    assert text(first, earlier) == whole
    assert len(text(first, earlier)) == 1
    assert text(first, earlier, is_last=True) == whole
    every = EarlierReports(is_every_full=True)
    assert [text(first, every)[1], text(first, every), text(first, every)] == [legend, whole, whole]


def test_json_has_frames_once_per_stack() -> None:
    earlier, first = EarlierReports(), watched(400.0).snapshot()

    def stacks(*, is_last: bool = False) -> list[bool]:
        earlier.begin(is_last=is_last)
        said = json.loads(report(first, earlier, as_json=True))
        entries = [said[key] for key in ("suspects", "top_allocations", "top_allocators")]
        whole = [key in said for key in ("malloc_libraries", "slow_probes")]
        return [*whole, *("stack" in entry for found in entries for entry in found)]

    assert all(stacks())
    assert not any(stacks())
    earlier.begin()
    line = report(first, earlier, as_json=True)
    assert "null" not in line
    (group,) = (s["group"] for s in json.loads(line)["suspects"] if "group" in s)
    assert list(group) == ["stacks"]
    assert len(group["stacks"]) == 3
    assert all(stacks(is_last=True))
