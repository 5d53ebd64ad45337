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

HEAD = (
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ pid=PID chain\S+ live=7\.58KiB blocks=4 growth=\S+/min "
    r"rss=\S+ (growth_traced=\d+% )?events=\d+/s leaking=\? growing=\? lost_events=0"
)
FRAME = re.compile(r" {8}0x[0-9a-f]{16}: (.+)\+0x[0-9a-f]+/0x[0-9a-f]+ in (/\S+) \((/.+):(\d+)\)")
NAMES = [*["recurse"] * 5, "main", "innermost", "middle", "main",
         "innermost", "middle", "outermost", "main"]  # fmt: skip
# The others of its lines; calloc under recursion comes first.
TEXT = """\
==> 3 top allocations out of 4 for a total of 7.58 KiB
    BLOCK: 4.00 KiB (AGE old)
         (N hidden)
    BLOCK: 2.17 KiB (AGE old)
         (N hidden)
    BLOCK: 1.08 KiB (AGE old)
         (N hidden)
==> 3 top allocators out of 4:
     0: 4.00 KiB in 1 allocation, deciding
     1: 2.17 KiB in 1 allocation, deciding
     2: 1.08 KiB in 1 allocation, deciding
==> RSS"""


def chain_traced(builder: Builder, targets: Targets, *options: str | Path | int) -> Tracelloc:
    """tracelloc after it saw the four allocations of chain.c, and was ended by ^C."""
    target = targets.start(builder.c("chain"))
    tracer = Tracelloc("-p", target.pid, *options)
    assert target.ask("go") == "done"
    assert tracer.stop() == 0
    return tracer


def test_text(builder: Builder, targets: Targets) -> None:
    text = chain_traced(builder, targets, "--text", "--top", 3).text()
    head, legend, *lines = text.rstrip().split("\n\n")[-1].splitlines()
    assert re.fullmatch(HEAD.replace("PID", str(targets[0].pid)), head)
    assert re.fullmatch("==> growth: of all live bytes, .+; rate: .+", legend)
    frames = [FRAME.fullmatch(line).groups() for line in lines if line[:10] == "        0x"]
    assert [name for name, *_ in frames] == NAMES
    source = TARGETS / "chain.c"
    assert {each[1:3] for each in frames} == {(str(builder.c("chain")), str(source))}
    code = ["", *source.read_text().splitlines()]
    assert "calloc(" in code[int(frames[0][3])]
    assert "middle(1, 2222)" in code[int(frames[8][3])]
    others = "\n".join(line for line in lines if line[:10] != "        0x")
    for pattern, name in (
        ("0x[0-9a-f]{16}", "BLOCK"), (r"\(.* old\)", "(AGE old)"),
        (r"\d frames? hidden", "N hidden"), ("(?<=deciding), in .*", ""),
    ):  # fmt: skip
        others = re.sub(pattern, name, others)
    assert others.startswith(TEXT)
    *_, overhead, losses = lines
    assert re.fullmatch(
        r"==> [\d,]+ events/s(, tracing takes about .* % of one core; .+)?", overhead
    )
    assert losses == "==> lost 0 events, 0 unmatched frees, 0 truncated stacks"


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
