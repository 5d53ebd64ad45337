"""A target that makes tracelloc remember more and more: said, bounded, ended in good order."""

import json
from pathlib import Path

import pytest

from tests.harness import Targets, run_tracelloc

pytestmark = [pytest.mark.bpf, pytest.mark.long]


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
