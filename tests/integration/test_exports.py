"""Files of real processes: every format says what the report says."""

import csv
import json
import stat
from pathlib import Path

import pytest

from tests.harness import Builder, Targets, Tracelloc, folded_sum, traced
from tests.unit.otlpmessages import attributes_of, decoded_file, sums
from tests.unit.otlpmessages import profiles as profiles_in
from tests.unit.show.export.test_export_formats import decoded, go_pprof

pytestmark = pytest.mark.bpf


@pytest.mark.long
def test_all_formats_equal_the_report(targets: Targets, tmp_path: Path) -> None:
    target = targets.c("books", 4, 5000, 5, 1000)
    names = ["a.pb.gz", "a.json", "a.csv", "a.speedscope.json", "a.trace.json", "a.folded",
             "a.otlp"]  # fmt: skip
    options = [word for name in names for word in ("-o", str(tmp_path / name))]
    _, report = traced(target, "run", *options)
    live, blocks = report["live_bytes"], report["live_allocations"]
    allocated, allocations = report["allocated_bytes"], report["allocations"]
    assert live > 0
    assert allocations > blocks
    whole = [blocks, live, allocations, allocated]

    message = decoded((tmp_path / "a.pb.gz").read_bytes())
    assert [sum(s.value[n] for s in message.sample) for n in range(4)] == whole

    for name, total in zip(("inuse_space", "alloc_space"), (live, allocated), strict=True):
        top = go_pprof(
            tmp_path, "-top", "-unit=B", "-nodefraction=0", "-nodecount=0",
            f"-sample_index={name}", tmp_path / "a.pb.gz",
        )  # fmt: skip
        assert f"accounting for {total}B, 100% of {total}B total" in top

    content = json.loads((tmp_path / "a.json").read_text())
    keys = ("allocations", "bytes", "allocated", "allocated_bytes")
    assert [sum(s[key] for s in content["stacks"]) for key in keys] == whole
    assert content["figures"]["live_bytes"] == live
    assert content["history"]["bytes"][-1] == live

    with (tmp_path / "a.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [sum(int(row[key]) for row in rows) for key in keys] == whole

    profiles = json.loads((tmp_path / "a.speedscope.json").read_text())["profiles"]
    assert [p["endValue"] for p in profiles[:3]] == [live, blocks, allocated]
    events = json.loads((tmp_path / "a.trace.json").read_text())["traceEvents"]
    assert events[-1]["args"]["bytes"] == live
    assert folded_sum(tmp_path / "a.folded") == live

    otlp = decoded_file((tmp_path / "a.otlp").read_bytes())
    kinds = ("inuse_objects", "inuse_space", "alloc_objects", "alloc_space")
    assert [sums(otlp)[kind] for kind in kinds] == whole
    _, first = next(profiles_in(otlp))
    losses = {f"tracelloc.lost.{cause}": count for cause, count in report["lost"].items()}
    assert losses.items() <= attributes_of(otlp, first).items()


@pytest.mark.long
def test_pprof_has_build_ids_and_lines(builder: Builder, targets: Targets, tmp_path: Path) -> None:
    program = builder.c("chain")
    target = targets.start(program)
    tracer = Tracelloc("-p", target.pid, "--pprof", tmp_path / "file-%p")
    assert target.ask("go") == "done"
    assert tracer.stop() == 0
    found = tmp_path / f"file-{target.pid}"
    assert any(f"wrote {found}" in line for line in tracer.messages)
    message = decoded(found.read_bytes())
    text = list(message.string_table)
    mappings = {text[m.filename]: m for m in message.mapping}
    assert len(text[mappings[str(program)].build_id]) == 40
    functions = {f.id: f for f in message.function}
    for location in message.location:
        names = {text[functions[line.function_id].name] for line in location.line}
        if names & {"middle", "innermost", "outermost"}:
            mapping = mappings[str(program)]
            assert location.mapping_id == mapping.id
            assert mapping.memory_start < location.address <= mapping.memory_limit
            assert all(line.line > 0 for line in location.line)
    go_pprof(tmp_path, "-list", "middle", found)


def test_metrics_and_owners(
    targets: Targets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUDO_UID", "1234")
    monkeypatch.setenv("SUDO_GID", "4321")
    target = targets.c("chain")
    path = tmp_path / "a.folded"
    tracer = Tracelloc("-p", target.pid, "-o", path, "--metric", "blocks")
    assert target.ask("go") == "done"
    assert tracer.stop() == 0
    assert folded_sum(path) == 4
    status = path.stat()
    assert (status.st_uid, status.st_gid) == (1234, 4321)
    assert stat.S_IMODE(status.st_mode) == 0o600
