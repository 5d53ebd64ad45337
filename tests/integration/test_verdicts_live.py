"""A real program with a leak among what only looks like one, judged while it runs."""

from typing import Any

import pytest

from tests.harness import Tracelloc

pytestmark = pytest.mark.bpf

VERDICT_S = 300.0  # Some 65 s after its onset a leak is called so; the machine may be busy


def leaking(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What a report calls leaking, by the function that allocates it."""
    suspects = report["suspects"]
    return {s["stack"][0]["symbol"]: s for s in suspects if s["verdict"] == "leaking"}


def verdicts(report: dict[str, Any]) -> dict[str, str]:
    """The verdicts on the top allocators, by the function that allocates."""
    return {a["stack"][0]["symbol"]: a["verdict"] for a in report["top_allocators"]}


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
