"""Rules and suppressions on a real process."""

import json
import signal
from pathlib import Path

import pytest

from tests.harness import CHAIN_BYTES, Targets, Tracelloc

pytestmark = pytest.mark.bpf


def test_a_broken_rule_ends_tracing(targets: Targets, tmp_path: Path) -> None:
    target = targets.c("chain")
    folded = tmp_path / "at-the-end.folded"
    tracer = Tracelloc(
        "-p", target.pid, "--json", "--interval", "100ms", "--fail-if", "rss > 1TiB",
        "--fail-if", "live > 7500", "-o", folded,
    )  # fmt: skip
    tracer.await_report(lambda report: report["live_bytes"] == 0)
    # 1111 + 2222 + 4096 + 333 bytes: the rule holds once all are there.
    assert target.ask("go") == "done"
    assert tracer.finish() == 3
    assert "--fail-if: rule matched: live > 7.32 KiB (7.58 KiB)" in tracer.messages[-1]
    assert tracer.last()["live_bytes"] == CHAIN_BYTES
    assert tracer.last()["memory"]["growth_bytes"] < 1 << 20
    assert len(folded.read_text().splitlines()) == 4
    assert target.end() == 0


def test_rules_that_hold_are_silent(targets: Targets, tmp_path: Path) -> None:
    target = targets.c("chain")
    rules = tmp_path / "known.supp"
    rules.write_text("leak:innermost\n")
    tracer = Tracelloc(
        "-p", target.pid, "--json", "--fail-if", "leak > 1MiB/min", "--suppressions", rules,
    )  # fmt: skip
    assert target.ask("go") == "done"
    assert tracer.stop() == 0
    assert tracer.last()["suppressed"] == {"stacks": 0, "rate_bytes_per_min": 0, "live_bytes": 0}


def test_what_has_come_since_a_mark(targets: Targets, tmp_path: Path) -> None:
    target = targets.c("chain")
    written = tmp_path / "since.json"
    tracer = Tracelloc(
        "-p", target.pid, "--json", "--interval", "100ms", "--since-mark", "-o", written
    )
    assert "since_mark" not in tracer.await_report(lambda report: report["live_bytes"] == 0)
    tracer.process.send_signal(signal.SIGUSR2)
    tracer.wait_for("mark set")
    report = tracer.await_report(lambda report: "since_mark" in report)
    assert report["since_mark"]["live_bytes"] == report["since_mark"]["growing_stacks"] == 0
    assert target.ask("go") == "done"
    report = tracer.await_report(lambda report: report["live_bytes"] == CHAIN_BYTES)
    assert report["since_mark"]["live_bytes"] == CHAIN_BYTES
    assert report["since_mark"]["live_allocations"] == 4
    assert report["since_mark"]["growing_stacks"] == 4
    assert tracer.stop() == 0
    content = json.loads(written.read_text())
    assert content["difference"] is True
    assert sorted(stack["bytes"] for stack in content["stacks"]) == [333, 1111, 2222, 4096]
