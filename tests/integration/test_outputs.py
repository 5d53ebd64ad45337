"""Text, JSON lines and folded stacks against what is promised about them."""

import re
import stat
from pathlib import Path

import pytest

from tests.harness import TARGETS, Builder, Targets, Tracelloc

pytestmark = pytest.mark.bpf

REPORT_KEYS = {
    "time", "pid", "command", "elapsed_s", "live_bytes", "live_allocations", "live_stacks",
    "allocated_bytes", "allocations", "freed_bytes", "frees", "unmatched_frees", "lost_events",
    "lost", "truncated_stacks", "rss_bytes", "top_allocations", "top_allocators",
}  # fmt: skip
FRAME_KEYS = {
    "address", "symbol", "offset", "size", "module", "file", "line", "inlined", "hidden",
    "label", "reason",
}  # fmt: skip

SIZE = r"(?:\d+ B|\d+\.\d\d \w+|\d\d\.\d \w+|\d{3,4} \w+)"
DURATION = r"(?:\d+(?:\.\d+)? m?s|\d+ [mhd](?: \d\d [smh])?)"
FRAME = re.compile(
    r"        0x[0-9a-f]{16}: (?:\?\?\?|(?P<name>.+)\+0x[0-9a-f]+(?:/0x[0-9a-f]+)?)"
    r" in (?P<module>/\S+)(?: \((?P<file>/.+|\S+):(?P<line>\d+)\))?"
)
GRAMMAR = {
    "head": re.compile(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ pid=(\d+) (\S+) live=\S+ blocks=\d+ growth=\S+/min "
        r"rss=\S+ (growth_traced=\d+% )?events=\d+/s leaking=\? growing=\? lost_events=0"
    ),
    "legend": re.compile(r"==> growth: of all live bytes, .+; rate: .+"),
    "allocations": re.compile(
        rf"==> (\d+) top allocations out of ([\d,]+) for a total of ({SIZE})"
    ),
    "block": re.compile(rf"    0x([0-9a-f]{{16}}): ({SIZE}) \(({DURATION}) old\)(, in .+)?"),
    "frame": FRAME,
    "filtered": re.compile(r"         \((\d+) frames? hidden\)"),
    "allocators": re.compile(r"==> (\d+) top allocators out of ([\d,]+):"),
    "stack": re.compile(
        rf"  (?: {{3}}| {{2}}\d| \d\d|\d{{3}})\d: ({SIZE}) in ([\d,]+) allocations?"
        r", (?:deciding|growing, not yet a suspect(?:, kept by .+)?)(?:, in .+)?"
    ),
    "nobody": re.compile(r"==> no allocations (seen yet: is the target idle\?|were seen)"),
    "memory": re.compile(
        rf"==> RSS {SIZE}(?: \({DURATION} ago\))?, [+-]?{SIZE} since tracing began.*"
    ),
    "account": re.compile(rf"==> resident memory(?: \({DURATION} ago\))?:"),
    "part": re.compile(rf" {{5,13}}(?:bytes|{SIZE}) .+"),
    "forecast": re.compile(
        rf"==> at {SIZE}/min of .+, the .+'s limit of {SIZE} is reached in {DURATION}"
    ),
    "overhead": re.compile(
        r"==> [\d,]+ events/s(, tracing takes about \d+(\.\d)? % of one core; [^,]+)?"
    ),
    "losses": re.compile(
        r"==> lost ([\d,]+) events?, ([\d,]+) unmatched frees?, ([\d,]+) truncated stacks?"
    ),
    "end": re.compile(r""),
}


def parse_text(text: str) -> list[list[tuple[str, re.Match[str]]]]:
    """Reports as lists of (kind of line, match); fails on a line that is none of them."""
    reports: list[list[tuple[str, re.Match[str]]]] = [[]]
    for line in text.splitlines():
        kind, match = next(
            ((kind, m) for kind, rule in GRAMMAR.items() if (m := rule.fullmatch(line))),
            (None, None),
        )
        assert match is not None, f"unknown line {line!r}"
        if kind == "end":
            reports.append([])
        else:
            reports[-1].append((kind, match))
    return [report for report in reports if report]


def chain_traced(builder: Builder, targets: Targets, *options: str | Path | int) -> Tracelloc:
    """tracelloc after it saw the four allocations of chain.c, and was ended by ^C."""
    target = targets.start(builder.c("chain"))
    tracer = Tracelloc("-p", target.pid, *options)
    assert target.ask("go") == "done"
    assert tracer.stop() == 0
    return tracer


def test_text(builder: Builder, targets: Targets) -> None:
    report = parse_text(chain_traced(builder, targets, "--text", "--top", 3).text())[-1]
    assert report[0][1][1] == str(targets[0].pid)
    assert [kind for kind, _ in report if kind not in ("account", "part")] == [
        "head",
        "legend",
        "allocations",
        *["block", *["frame"] * 6, "filtered"],  # calloc under recursion
        *["block", *["frame"] * 3, "filtered"],
        *["block", *["frame"] * 4, "filtered"],
        "allocators",
        *["stack"] * 3,  # the frames are above
        "memory",
        "overhead",
        "losses",
    ]
    assert report[2][1].groups() == ("3", "4", "7.58 KiB")  # 1111 + 2222 + 4096 + 333
    assert report[3][1][2] == "4.00 KiB"
    names = [match["name"] for kind, match in report if kind == "frame"]
    assert names[:6] == ["recurse"] * 5 + ["main"]
    assert names[6:9] == ["innermost", "middle", "main"]
    lines = [(match["file"], int(match["line"])) for kind, match in report if kind == "frame"]
    source = str(TARGETS / "chain.c")
    assert {file for file, _ in lines} == {source}
    text = ["", *Path(source).read_text().splitlines()]
    assert "calloc(" in text[lines[0][1]]
    assert "middle(1, 2222)" in text[lines[8][1]]
    stacks = [match.groups() for kind, match in report if kind == "stack"]
    assert stacks == [("4.00 KiB", "1"), ("2.17 KiB", "1"), ("1.08 KiB", "1")]
    assert report[-1][1].groups() == ("0", "0", "0")


def test_json_and_folded(builder: Builder, targets: Targets, tmp_path: Path) -> None:
    flames, second = tmp_path / "app.fg", tmp_path / "again.folded"
    report = chain_traced(
        builder, targets, "--json", "--top", 3, "--age", "0", "--flamegraph", flames, "-o", second
    ).last()
    assert report.keys() >= REPORT_KEYS
    assert report["pid"] == targets[0].pid
    assert report["command"] == builder.c("chain").name[:15]
    assert report["live_bytes"] == report["allocated_bytes"] == 1111 + 2222 + 4096 + 333
    assert report["live_allocations"] == report["allocations"] == report["live_stacks"] == 4
    assert report["freed_bytes"] == report["frees"] == report["unmatched_frees"] == 0
    assert report["lost_events"] == 0
    assert set(report["lost"].values()) == {0}
    assert report["rss_bytes"] > 100_000
    assert [b["size_bytes"] for b in report["top_allocations"]] == [4096, 2222, 1111]
    assert [a["bytes"] for a in report["top_allocators"]] == [4096, 2222, 1111]
    assert {a["allocations"] for a in report["top_allocators"]} == {1}
    for block, site in zip(report["top_allocations"], report["top_allocators"], strict=True):
        assert block["stack_id"] == site["stack_id"]
        assert block["stack"] == site["stack"]
        assert 0 <= block["age_s"] <= report["elapsed_s"]
        for frame in block["stack"]:
            assert frame.keys() == FRAME_KEYS
    assert report["old_allocations"] == 4
    assert len(report["top_old_allocations"]) == 3
    stacks = folded(flames)
    assert folded(second) == stacks
    assert stat.S_IMODE(flames.stat().st_mode) == 0o600
    assert sum(stacks.values()) == report["live_bytes"]
    assert {tuple(stack.split(";")[1:]): size for stack, size in stacks.items()} == {
        ("main", "outermost", "middle", "innermost"): 1111,
        ("main", "middle", "innermost"): 2222,
        ("main", *["recurse"] * 5): 4096,
        ("in_thread", "outermost", "middle", "innermost"): 333,
    }
    assert {stack.split(";")[0] for stack in stacks} == {builder.c("chain").name}


def folded(path: Path) -> dict[str, int]:
    lines: dict[str, int] = {}
    for line in path.read_text().splitlines():
        stack, _, size = line.rpartition(" ")
        assert stack not in lines
        lines[stack] = int(size)
    return lines


def test_headless_shows_progress_only(builder: Builder, targets: Targets, tmp_path: Path) -> None:
    flames = tmp_path / "app.fg"
    tracer = chain_traced(builder, targets, "--flamegraph", flames)
    assert tracer.text() == ""
    assert f"tracelloc: wrote {flames}" in tracer.messages
    assert any("7.58 KiB in 4 allocations from 4 stacks" in line for line in tracer.messages)
