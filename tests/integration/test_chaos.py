"""Forks, execs, plugins, coroutines, signals and raw mappings at once: figures equal the books."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.harness import PRELOADED, Builder, Targets, Tracelloc

pytestmark = pytest.mark.bpf

# How a trace begins. The first ones attach to a running program.
ATTACHED: dict[str, Sequence[str]] = {
    "probes": (),
    "perf": ("--attach", "perf"),
    "follow": ("--follow",),
    "inject": ("--preload", "inject"),
    "library": ("--preload", "on"),
}
LAUNCHED: dict[str, Sequence[str]] = {
    "launched": ("--preload=off",),
    "followed": ("--follow",),
    "preloaded": ("--preload=on",),
}


def by_site(report: dict[str, Any]) -> dict[str, list[int]]:
    """[blocks, bytes] by the functions of ``chaos.c``."""
    sites = {f"by_{name}": [0, 0] for name in ("plain", "coroutine", "handler", "plugin")}
    for entry in report["top_allocators"]:
        names = [frame["symbol"] for frame in entry["stack"]]
        found = next((name for name in names if name in sites), None)
        # In opening a library, the loader allocates what it keeps.
        if found and (found != "by_plugin" or names[0] == "plugin_allocate"):
            sites[found][0] += entry["allocations"]
            sites[found][1] += entry["bytes"]
    return sites


def outcome(
    builder: Builder, targets: Targets, way: str, seed: int, folder: Path
) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """The report and the books."""
    library, program = builder.c("plugin", "-shared", "-fPIC"), builder.c("chaos", "-ldl")
    words = 3, 3000, seed, library
    options = "--json", "--top", 100_000, "--interval", 60, "--max-stall", "1m"
    if way in ATTACHED:
        variables = {**os.environ, "LD_PRELOAD": str(PRELOADED)} if way == "library" else None
        target = targets.start(program, *words, env=variables)
        tracer = Tracelloc("-p", target.pid, *options, *ATTACHED[way])
        books = json.loads(target.ask("run"))
        assert tracer.stop() == 0
        assert json.loads(target.ask("run"))
        report = tracer.last_of(target.pid)
        target.kill()
    else:
        file = folder / f"{seed}.json"
        tracer = Tracelloc(*options, *LAUNCHED[way], "--", program, *words, file)
        assert tracer.finish() == 0
        books = json.loads(file.read_text())
        pid = tracer.reports()[0]["pid"]
        report = tracer.last_of(pid)
    return report, books


@pytest.mark.parametrize("way", [*ATTACHED, *LAUNCHED])
@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(2), marks=pytest.mark.long, id="some"),
        pytest.param(
            range(2, 52), marks=[pytest.mark.nightly, pytest.mark.timeout(1800)], id="all"
        ),
    ],
)
def test_chaos(builder: Builder, targets: Targets, tmp_path: Path, way: str, seeds: range) -> None:
    for seed in seeds:
        report, books = outcome(builder, targets, way, seed, tmp_path)
        assert {cause: count for cause, count in report["lost"].items() if count} == {}, seed
        assert by_site(report) == books, seed
        assert report["unmatched_frees"] == 0, seed
