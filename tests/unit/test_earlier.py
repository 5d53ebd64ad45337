"""Reports of a log: only what has changed since earlier ones, and frames once."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import cast

from tests.unit.leaks import LEAK, watched
from tracelloc.show.presentation.naming import Namer, Namers
from tracelloc.show.report.content import ReportStyle
from tracelloc.show.report.earlier import FULL_AGAIN_S, EarlierReports
from tracelloc.show.report.trace import trace_report
from tracelloc.snapshots.snapshot import Snapshot, TraceSnapshot

STYLE = ReportStyle(2)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class One:
    """The names of the only process."""

    def __init__(self, namer: Namer) -> None:
        self.namer = namer

    def namer_of(self, _target: object) -> Namer:
        return self.namer


def text(snapshot: Snapshot, earlier: EarlierReports, *, is_last: bool = False) -> list[str]:
    earlier.begin(is_last=is_last)
    namers = cast("Namers", One(watched(400.0).namer))
    report = trace_report(
        TraceSnapshot((snapshot,)), namers, STYLE, {}, ended=False, earlier=earlier
    )
    return report.splitlines()


def later(snapshot: Snapshot) -> Snapshot:
    """A minute later, nothing having changed."""
    return replace(snapshot, time_s=snapshot.time_s + 60)


def test_what_has_not_changed_is_not_said_again() -> None:
    earlier, first = EarlierReports(), watched(400.0).snapshot()
    whole = text(first, earlier)
    assert sum(" suspect=leaking " in line for line in whole) == 2
    (head,) = text(later(first), earlier)
    assert head.startswith("2023-11-14T22:14:20Z pid=42 server live=")


def test_what_has_changed_refers_to_frames_by_the_time_of_their_report() -> None:
    earlier, first = EarlierReports(), watched(400.0).snapshot()
    text(first, earlier)
    second = replace(watched(420.0).snapshot(), time_s=first.time_s + 20)
    lines = text(second, earlier)
    titles = [line for line in lines if line.startswith("==> ")]
    assert "==> 2 top allocators out of 14:" in titles
    assert not any("events/s" in title or "lost" in title for title in titles)
    at = lines.index("==> 2 top allocators out of 14:")
    assert lines[at + 2].endswith(" (frames at 2023-11-14T22:13:20Z)")
    suspects = [n for n, line in enumerate(lines) if " suspect=leaking " in line]
    assert len(suspects) == 2
    assert all("frames at" not in lines[n + 1] for n in suspects), "a line each is enough"


def test_every_report_and_the_last_one_are_whole_and_one_every_few_hours() -> None:
    clock, first = Clock(), watched(400.0).snapshot()
    earlier = EarlierReports(now_s=clock)
    whole = text(first, earlier)
    assert len(text(first, earlier)) == 1
    clock.now_s += FULL_AGAIN_S - 1
    assert len(text(first, earlier)) == 1
    clock.now_s += 1
    assert text(first, earlier) == whole
    assert len(text(first, earlier)) == 1
    assert text(first, earlier, is_last=True) == whole
    every = EarlierReports(is_every_full=True)
    assert text(first, every) == text(first, every) == whole


def test_a_suspect_that_is_none_any_more_is_said_once() -> None:
    earlier, first = EarlierReports(), watched(400.0).snapshot()
    text(first, earlier)
    assert first.findings is not None
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


def test_json_has_frames_once_per_stack() -> None:
    earlier, first = EarlierReports(), watched(400.0).snapshot()
    namers = cast("Namers", One(watched(400.0).namer))

    def stacks(*, is_last: bool = False) -> list[bool]:
        earlier.begin(is_last=is_last)
        trace = TraceSnapshot((first,))
        report = json.loads(
            trace_report(trace, namers, STYLE, {}, ended=False, earlier=earlier, as_json=True)
        )
        entries = [report[key] for key in ("suspects", "top_allocations", "top_allocators")]
        whole = [key in report for key in ("malloc_libraries", "slow_probes")]
        return [*whole, *("stack" in entry for found in entries for entry in found)]

    assert all(stacks())
    assert not any(stacks())
    earlier.begin()
    line = trace_report(
        TraceSnapshot((first,)), namers, STYLE, {}, ended=False, earlier=earlier, as_json=True
    )
    assert "null" not in line
    (group,) = (s["group"] for s in json.loads(line)["suspects"] if "group" in s)
    assert list(group) == ["stacks"]
    assert len(group["stacks"]) == 3
    assert all(stacks(is_last=True))
