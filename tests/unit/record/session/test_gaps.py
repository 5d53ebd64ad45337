"""Gaps in the figures are recorded, told apart and reported first; losses are counted by cause."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.snapshots import snapshot_of
from tests.unit.reports import json_report, text_report
from tests.unit.show.presentation.test_views import FakeSymbolizer
from tracelloc.heap.stacks import Stacks
from tracelloc.heap.table import LiveTable
from tracelloc.model.losses import Completeness, Counter, Gap, LossCounts, Oddities, completeness_of
from tracelloc.record.session import probeset
from tracelloc.record.session.probeset import LOST, GapLog
from tracelloc.show.filters import Filters
from tracelloc.show.presentation.alerts import alert_of
from tracelloc.show.presentation.naming import Namer
from tracelloc.snapshots.taking import loss_counts

TWO = Gap(1_700_000_000.0, 1_700_000_003.0, 3412, LOST)
END = Gap(1_700_000_100.0, None, None, "probes can't take over: it has ended")

ENDED = "figures end at 22:15:00Z: probes can't take over: it has ended"
MISSING = "3,412 events between 22:13:20Z and 22:13:23Z missing (tracelloc could not keep up)"


class Trace:
    """A process whose events get lost as the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr(probeset.time, "time", lambda: self.now_s)
        self.counters = np.zeros(len(Counter), np.uint64)
        self.flaw = "", False
        capture: Any = SimpleNamespace(counters=lambda: self.counters)
        probes: Any = SimpleNamespace(take_trouble=self._take_flaw)
        self.book = GapLog(capture, probes)

    def _take_flaw(self) -> tuple[str, bool]:
        flaw, self.flaw = self.flaw, ("", False)
        return flaw

    def lose(self, after_s: float, events: int) -> None:
        self.now_s += after_s
        self.counters[Counter.LOST_FREES] += np.uint64(events)
        self.book.run_due()


def test_gaps_flaws_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = Trace(monkeypatch)
    trace.lose(1.0, 0)
    assert trace.book.gaps == ()
    trace.lose(1.0, 5)
    trace.lose(1.0, 7)
    assert trace.book.gaps == (Gap(1001.0, 1003.0, 12, LOST),)
    trace.lose(60.0, 0)
    trace.lose(1.0, 1)
    assert trace.book.gaps[1:] == (Gap(1063.0, 1064.0, 1, LOST),)
    # Too soon to look again, but for the last time.
    trace.lose(0.01, 1)
    assert trace.book.gaps[-1].lost_events == 1
    trace.book.run_due(is_last=True)
    assert trace.book.gaps[-1].lost_events == 2
    for _ in range(100):
        trace.lose(60.0, 1)
        trace.lose(60.0, 0)
    assert len(trace.book.gaps) == 32
    assert sum(gap.lost_events or 0 for gap in trace.book.gaps) == 14 + 100
    trace = Trace(monkeypatch)
    trace.flaw = "a library was loaded", False
    trace.lose(1.0, 0)
    assert trace.book.gaps == (Gap(1000.0, 1001.0, None, "a library was loaded"),)
    assert completeness_of(trace.book.gaps) is Completeness.AT_LEAST
    trace.flaw = "no probes", True
    trace.lose(1.0, 0)
    assert trace.book.gaps[1:] == (Gap(1001.0, None, None, "no probes"),)
    assert completeness_of(trace.book.gaps) is Completeness.UNTIL
    assert completeness_of(()) is Completeness.COMPLETE


@pytest.mark.parametrize(
    ("gaps", "word", "sentence"),
    [
        ((), None, None),
        ((TWO,), "figures=at_least", f"==> figures are incomplete: {MISSING}"),
        ((TWO, END), "figures=until_22:15:00Z", f"==> {ENDED}; figures are incomplete: {MISSING}"),
    ],
)
def test_reports_begin_with_it(gaps: tuple[Gap, ...], word: str | None, sentence: str) -> None:
    snapshot = replace(snapshot_of(LiveTable(Stacks()), 0), gaps=gaps)
    namer = Namer(FakeSymbolizer({}), Filters())
    lines = text_report(snapshot, namer, 1)
    words = lines[0].split()
    if word is None:
        assert not any(each.startswith("figures=") for each in words)
        assert not any("incomplete" in line for line in lines)
    else:
        assert words[3] == word
        assert lines[1] == sentence
        alert = alert_of(snapshot)
        assert alert.sentence == sentence.removeprefix("==> ")
        assert len(alert.short) < 30
    said = json.loads(json_report(snapshot, namer, 1))["completeness"]
    assert said["state"] == completeness_of(gaps).value
    assert [gap["lost_events"] for gap in said["gaps"]] == [gap.lost_events for gap in gaps]


def losses(*, shared: bool = False, **counts: int) -> LossCounts:
    counters = np.zeros(len(Counter), np.uint64)
    for name, count in counts.items():
        counters[Counter[name.upper()]] = count
    return loss_counts(counters, Oddities(unmatched_frees=3), 2, shared=shared)


def test_bounds() -> None:
    """Each lost event by what it would have done; unmatched frees may be of other blocks."""
    assert losses(lost_allocs=10).bounds(50) == (57, 60)
    assert losses(lost_frees=10).bounds(50) == (37, 40)
    assert losses(lost_restores=1, spill_reuses=1, spill_odd_restores=1).bounds(50) == (50, 53)
    assert losses(lost_inner_frees=2).bounds(50) == (45, 50)
    assert losses(call_table_full=5).bounds(50) == (42, 55)
    assert losses(lost_frees=100).bounds(50) == (0, 0)
    # However much found the ring full.
    fine = losses(spilled=1000, spill_unmatched=4)
    assert fine.bounds(50) is None
    assert (fine.events, fine.spilled_events, fine.overflows) == (0, 1000, 2)
    assert fine.oddities.unmatched_frees == 7
    assert not any(fine.by_cause.values())
    assert losses(lost_frees=10, shared=True).bounds(50) is None
