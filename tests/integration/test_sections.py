"""Temporary allocations, the peak, and who frees whose blocks: against a known program."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.harness import Builder, Target, Targets, Tracelloc

pytestmark = pytest.mark.bpf


def traced(builder: Builder, targets: Targets, *options: str | Path) -> tuple[Tracelloc, Target]:
    """tracelloc after it saw all that relay.c does."""
    target = targets.start(builder.c("relay", "-pthread"))
    tracer = Tracelloc("-p", target.pid, *options)
    assert target.ask("go") == "done"
    tracer.stop()
    return tracer, target


def function_of(entry: dict[str, Any]) -> str:
    return next(f["symbol"] for f in entry["stack"] if "/relay" in f["module"])


COLUMNS = ("peak_bytes", "peak_allocations", "temporary_bytes", "temporary_allocations",
           "remote_freed_bytes", "remote_frees")  # fmt: skip
STACKS = {
    "give": [0, 0, 0, 0, 300_000, 300],
    "scratch": [0, 0, 5000 * 64, 5000, 0, 0],
    "nest": [0, 0, 200 * (32 + 48), 400, 0, 0],
    "rise": [5_000_000, 50, 0, 0, 0, 0],
    "keep": [70_000, 10, 0, 0, 0, 0],
}


def test_json(builder: Builder, targets: Targets, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    folded = tmp_path / "out.folded"
    options = "--json", "--show", "all", "--top", "9", "--metric", "peak", "-o", path, "-o", folded
    tracer, target = traced(builder, targets, *options)
    report = tracer.last()
    assert report["lost_events"] == 0

    peak = report["peak"]
    assert (peak["bytes"], peak["allocations"]) == (50 * 100_000 + 10 * 7000, 60)
    assert [
        (function_of(e), e["bytes"], e["allocations"], e["live_bytes"])
        for e in peak["top_allocators"]
    ] == [("rise", 5_000_000, 50, 0), ("keep", 70_000, 10, 70_000)]

    temporary = report["temporary"]
    assert (temporary["allocations"], temporary["bytes"]) == (5400, 5000 * 64 + 200 * (32 + 48))
    assert (temporary["most_between"], temporary["most_s"]) == (1, None)
    assert temporary["unknown_allocations"] == 0
    assert [
        (function_of(e), e["temporary_allocations"], e["allocations"])
        for e in temporary["top_allocators"]
    ] == [("scratch", 5000, 5000), ("nest", 200, 200), ("nest", 200, 200)]

    threads = {thread["tid"]: thread for thread in report["threads"]["threads"]}
    main = threads.pop(target.pid)
    reader_tid, reader = threads.popitem()
    assert not threads
    assert main["name"].startswith("relay")
    assert reader["name"] == "reader"
    assert (main["allocations"], main["frees"]) == (300 + 400 + 50 + 10, 400 + 50)
    assert (reader["allocations"], reader["frees"]) == (5000, 5300)
    assert (main["frees_by_others"], main["freed_by_others_bytes"]) == (300, 300_000)
    assert (reader["frees_for_others"], reader["freed_for_others_bytes"]) == (300, 300_000)
    assert (main["frees_for_others"], reader["frees_by_others"]) == (0, 0)
    assert report["threads"]["flows"] == [
        {"from_tid": target.pid, "to_tid": reader_tid, "bytes": 300_000, "allocations": 300}
    ]
    assert report["threads"]["remote_share"] == round(300 / (5300 + 450), 6)
    (given,) = report["threads"]["top_allocators"]
    assert (function_of(given), given["remote_frees"], given["allocations"]) == ("give", 300, 300)
    check_file(json.loads(path.read_text()), target)
    assert_holds(folded, "rise 5000000")


def assert_holds(path: Path, line: str) -> None:
    """A file about what stacks once did has those that hold nothing any more."""
    assert any(each.endswith(f";{line}") for each in path.read_text().splitlines())


def check_file(content: dict[str, Any], target: Target) -> None:
    """The figures of every stack and of the whole target."""
    figures = content["figures"]
    assert (figures["peak"]["bytes"], figures["peak"]["allocations"]) == (5_070_000, 60)
    assert figures["temporary"]["allocations"] == 5400
    assert {thread["tid"] for thread in figures["threads"]["threads"]} >= {target.pid}
    assert figures["threads"]["flows"][0]["bytes"] == 300_000
    found: dict[str, list[int]] = {}
    for stack in content["stacks"]:
        names = [content["frames"][at]["symbol"] for at in stack["frames"]]
        name = next(name for name in names if name in STACKS)
        row = found.setdefault(name, [0] * len(COLUMNS))
        for at, column in enumerate(COLUMNS):
            row[at] += stack[column]
    assert found == STACKS


@pytest.mark.parametrize(("soon", "count"), [("0", 5000 + 200), ("1h", 5000 + 400 + 50)])
def test_what_is_temporary(builder: Builder, targets: Targets, soon: str, count: int) -> None:
    options = ("--json", "--show", "temporary", "--temporary", soon)
    tracer, _ = traced(builder, targets, *options)
    temporary = tracer.last()["temporary"]
    assert temporary["allocations"] == count
    assert temporary["most_s"] == (3600 if soon == "1h" else None)


def test_text(builder: Builder, targets: Targets, tmp_path: Path) -> None:
    folded = tmp_path / "out.folded"
    options = "--text", "--show", "all", "--top", "1", "--metric", "temporary", "-o", folded
    tracer, target = traced(builder, targets, *options)
    assert_holds(folded, "nest 400")
    report = tracer.text().split("\n\n")[-2].splitlines()
    lines = [line for line in report if not line.startswith("        ")]
    peak = next(line for line in lines if "==> peak " in line)
    assert peak.endswith(
        "ago: 4.84 MiB in 60 allocations, now 68.4 KiB, 1 top allocators out of 2 then:"
    )
    assert lines[lines.index(peak) + 1] == "     0: 4.77 MiB in 50 allocations (98.6 %), now 0 B"
    temporary = next(line for line in lines if "temporary allocations (" in line)
    assert temporary == (
        "==> 328 KiB in 5,400 temporary allocations (freed by the same thread after at "
        "most 1 other allocation), 93.9 % of all frees; 1 top stacks out of 3:"
    )
    assert lines[lines.index(temporary) + 1] == (
        "     0: 312 KiB in 5,000 temporary allocations, 100.0 % of its allocations"
    )
    flows = next(line for line in lines if "top flows" in line)
    assert flows == (
        "==> 293 KiB in 300 allocations freed by other threads (5.2 % of all frees), "
        "1 top flows out of 1:"
    )
    way = lines[lines.index(flows) + 1]
    assert way.startswith(f"     0: 293 KiB in 300 allocations from thread {target.pid} (relay")
    assert way.endswith(" (reader)")
