"""A real program with a leak among what only looks like one, judged while it runs."""

from typing import Any

import pytest

from tests.harness import Targets, Tracelloc, frames_of, wait_until
from tests.sessions import tracing
from tracelloc.model.verdicts import Suspect, Verdict
from tracelloc.record.session.session import Session
from tracelloc.record.symbolization.symbolizer import Symbolizer

pytestmark = pytest.mark.bpf

VERDICT_S = 300.0  # Some 65 s after its onset a leak is called so; the machine may be busy


def leaking(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What a report calls leaking, by the function that allocates it."""
    suspects = report["suspects"]
    return {s["stack"][0]["symbol"]: s for s in suspects if s["verdict"] == "leaking"}


def verdicts(report: dict[str, Any]) -> dict[str, str]:
    """The verdicts on the top allocators, by the function that allocates."""
    return {a["stack"][0]["symbol"]: a["verdict"] for a in report["top_allocators"]}


def best_suspect(session: Session, survivors: int) -> Suspect:
    """The first suspect, as soon as one is made of so many blocks."""

    def best() -> Suspect | None:
        findings = session.snapshot().root.findings
        suspects = findings.suspects[:1] if findings is not None else ()
        return next((one for one in suspects if one.judgement.survivors >= survivors), None)

    return wait_until(best, 0.5)


@pytest.mark.alone
def test_a_leak_is_the_first_suspect(targets: Targets) -> None:
    """20 blocks of 160 bytes a second (ten times the program's own speed)."""
    target = targets.c("specimens", "steady", "3000", "10")
    with tracing(target) as session:
        target.say("go")
        suspect = best_suspect(session, 150)
        names = frames_of(
            Symbolizer(session.root.space), session.root.heap.stacks.frames(suspect.stack) or ()
        )
        assert names[0].symbol == "leak_request"
        judgement = suspect.judgement
        assert judgement.verdict in (Verdict.GROWING, Verdict.LEAKING)
        assert judgement.unreachable >= 2
        assert judgement.rate_bytes_per_min == pytest.approx(20 * 160 * 60, rel=0.3)
        assert session.root.started_ns <= judgement.since_ns
        cohorts, totals = session.root.heap.table.cohorts, session.root.heap.table.totals
        with session._lock:
            census = cohorts.census(session.root.started_ns, len(totals))
            assert census.alive_bytes.sum() == totals.live_bytes.sum()
            assert census.born.sum() == totals.allocated_count.sum()


def test_a_leak_is_called_leaking(long_watch: Tracelloc) -> None:
    """Two blocks of 1,000 bytes a second are forgotten; the cache beside is never a leak."""
    report = long_watch.await_report(lambda report: bool(leaking(report)), VERDICT_S)
    called = leaking(report)
    assert list(called) == ["leak_page"]
    judgement = called["leak_page"]
    assert judgement["rate_bytes_per_min"] == pytest.approx(2 * 1000 * 60, rel=0.05)
    # The first report that calls it so comes soon; how soon after the first block, depends on load.
    assert 50 < judgement["since_s"] <= report["elapsed_s"]
    assert judgement["confidence"] > 0.6
    assert not judgement["never_freed"]
    assert judgement["unreachable_blocks"] >= 4
    long_watch.await_report(lambda report: verdicts(report).get("cache_page") == "cache", VERDICT_S)
    assert all(set(leaking(each)) <= {"leak_page"} for each in long_watch.reports())
