"""Limits of what a trace costs: one that takes more time or memory ends in good order."""

import json
from pathlib import Path

import pytest

from tests.harness import Targets, Tracelloc, run_tracelloc

pytestmark = [pytest.mark.bpf, pytest.mark.long]


@pytest.mark.parametrize("mode", ["--json", "--text"])
def test_a_trace_that_costs_too_much_ends(targets: Targets, tmp_path: Path, mode: str) -> None:
    """storm does nothing but allocate, and would be many times as slow."""
    target = targets.c("storm", 1, 12, 10, flags=("-O2",))
    tracer = Tracelloc("-p", target.pid, mode, "--max-overhead", "2%", "-o", tmp_path / "a.json")
    target.say("4000")
    assert tracer.finish() == 1
    message = (
        "tracelloc: error: the probes cost more than --max-overhead 2.0 %; tracing has ended; "
        "--preload inject costs less, --sample a little less"
    )
    assert tracer.messages.count(message) == 1
    figures = json.loads((tmp_path / "a.json").read_text())["figures"]
    assert figures["lost_events"] == 0
    assert figures["completeness"]["state"] == "complete"
    assert 0 < figures["live_allocations"] <= 11
    target.hear()
    assert int(target.ask("50").split()[0]) > 0  # it runs on, without probes


def test_probes_that_cost_less_stay_and_earlier_blocks_are_counted(targets: Targets) -> None:
    target = targets.c("lineage")
    target.ask("alloc 30 1000")
    tracer = Tracelloc(
        "-p", target.pid, "--json", "--json-full", "--max-overhead", "500%", "--earlier", "on",
    )  # fmt: skip
    target.ask("alloc 50 100")
    target.ask("free 35")
    tracer.await_report(lambda report: report["frees"] >= 35)
    last = tracer.final_report()
    assert last["unmatched_frees"] == 0
    assert last["allocations"] - last["frees"] == last["live_allocations"]
    assert last["earlier"]["allocations"] > 0


def test_an_endless_number_of_stacks(tmp_path: Path, targets: Targets) -> None:
    target = targets.c("thicket")
    done = run_tracelloc(
        "-p", target.pid, "--json", "--interval", "60", "--max-memory", "160MiB",
        "-o", tmp_path / "last.json", "--stacks", "fp", status=1
    )  # fmt: skip
    said = done.stderr
    assert said.index("new call stacks are cut to their innermost frames") < said.index("ends here")
    assert said.count("error: tracelloc uses") == 1
    assert json.loads(done.stdout.splitlines()[-1])["truncated_stacks"] > 0
    assert json.loads((tmp_path / "last.json").read_text())["stacks"]
    assert target.process.poll() is None
