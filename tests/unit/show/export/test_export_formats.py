"""What each format says of made-up profiles, read by others' decoders where there are any."""

import csv
import gzip
import io
import json
import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from tests.harness import DATA
from tests.unit.otlpmessages import decoded_file
from tests.unit.profiles import (
    APP,
    HOSTILE,
    LIBRARY,
    PprofProfile,
    frame,
    hostile,
    peaked,
    profile,
    sample,
    small,
)  # fmt: skip
from tracelloc.command.parser import subcommand_parser
from tracelloc.command.subcommands import find_subcommand
from tracelloc.errors import UsageError
from tracelloc.show.export import EXPORTERS, FORMATS
from tracelloc.show.export.pprof import varint
from tracelloc.show.presentation.profile import FIGURES, Metric, Profile

SUMS = {
    Metric.BYTES: 716, Metric.BLOCKS: 4, Metric.ALLOCATED: 6316, Metric.GROWTH: 55,
    Metric.PEAK: 4650, Metric.TEMPORARY: 6,
}  # fmt: skip


def written(suffix: str, found: Profile, metric: Metric = Metric.BYTES) -> bytes:
    return b"".join(EXPORTERS[suffix].write(found, metric))


def rows_of(found: Profile) -> list[dict[str, str]]:
    """Rows of CSV."""
    return list(csv.DictReader(io.StringIO(written(".csv", found).decode(), newline="")))


def decoded(content: bytes) -> Any:
    message = PprofProfile()
    message.ParseFromString(gzip.decompress(content))
    return message


def saved(path: Path, found: Profile, metric: Metric = Metric.BYTES) -> Path:
    """A file of pprof's."""
    path.write_bytes(written(".pb.gz", found, metric))
    return path


TOP = "-top", "-unit=B", "-nodefraction=0"


def go_pprof(tmp_path: Path, *arguments: str | Path) -> str:
    result = subprocess.run(
        ["go", "tool", "pprof", *map(str, arguments)], cwd=tmp_path, capture_output=True,
        text=True, timeout=120, check=False, env={**os.environ, "PPROF_TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 16383, 16384, 1 << 63, -1, -300])
def test_varints(number: int) -> None:
    value = shift = 0
    for byte in varint(number):
        value |= (byte & 0x7F) << shift
        shift += 7
    assert value == number & (1 << 64) - 1


@pytest.mark.parametrize("metric", Metric)
def test_folded_by_metric(metric: Metric) -> None:
    lines = written(".folded", peaked(), metric).decode().splitlines()
    figures = {line.rpartition(" ")[0]: int(line.rpartition(" ")[2]) for line in lines}
    expected = {
        "server;main;handle;push;grow": (400, 2, 1000, 60, 350, 0),
        "server;main;[runtime]": (300, 1, 300, -5, 300, 0),
        "[unknown];[no call stack]": (16, 1, 16, 0, 0, 0),
        "server;main;temporary": (0, 0, 5000, 0, 4000, 6),
    }
    at = list(Metric).index(metric)
    assert figures == {stack: row[at] for stack, row in expected.items() if row[at] > 0}


def test_pprof_says_it_all() -> None:
    message = decoded(written(".pb.gz", small()))
    text = list(message.string_table)
    assert text[0] == ""
    types = [(text[t.type], text[t.unit]) for t in message.sample_type]
    assert types == [
        ("inuse_objects", "count"), ("inuse_space", "bytes"),
        ("alloc_objects", "count"), ("alloc_space", "bytes"),
    ]  # fmt: skip
    assert text[message.default_sample_type] == "inuse_space"
    period = message.period_type
    assert (text[period.type], text[period.unit], message.period) == ("space", "bytes", 1)
    assert message.time_nanos == 1_700_000_000_500_000_000
    assert message.duration_nanos == 90_000_000_000
    assert [text[c] for c in message.comment] == [
        "tracelloc: server, process 42", "lost 0 events, 12 unmatched frees",
    ]  # fmt: skip
    assert [list(s.value) for s in message.sample] == [
        [2, 400, 5, 1000], [1, 300, 1, 300], [1, 16, 1, 16], [0, 0, 7, 5000],
    ]  # fmt: skip
    labels = [(text[s.label[0].key], s.label[0].num) for s in message.sample]
    assert labels == [("bytes", 200), ("bytes", 300), ("bytes", 16), ("bytes", 714)]
    app, library = message.mapping
    assert (text[app.filename], text[app.build_id]) == (APP, "ab" * 20)
    assert (library.memory_start, library.file_offset) == (0x7F0000000000, 0x1000)
    flags = app.has_functions, app.has_filenames, app.has_line_numbers, app.has_inline_frames
    assert flags == (True, True, True, True)
    message = decoded(written(".pb.gz", replace(small(), facts={"space": "gpu"})))
    text = list(message.string_table)
    assert [text[kind.type] for kind in message.sample_type] == [
        "gpu_inuse_objects", "gpu_inuse_space", "gpu_alloc_objects", "gpu_alloc_space",
    ]  # fmt: skip
    assert text[message.default_sample_type] == "gpu_inuse_space"
    found = profile([sample(1, [frame("f"), frame("f"), frame("main")], (8, 1, 8, 1, 0))])
    message = decoded(written(".pb.gz", found))
    assert len(message.sample[0].location_id) == 3
    assert len(message.location) == 2
    assert {len(location.line) for location in message.location} == {1}


def test_pprof_stacks() -> None:
    message = decoded(written(".pb.gz", small()))
    text = list(message.string_table)
    functions = {f.id: f for f in message.function}
    locations = {each.id: each for each in message.location}
    lines = {
        n: [(text[functions[line.function_id].name], line.line) for line in each.line]
        for n, each in locations.items()
    }
    assert [[lines[n] for n in each.location_id] for each in message.sample] == [
        [[("grow", 7), ("push", 7), ("handle", 7)], [("main", 1)]],
        [[("[runtime]", 3)], [("main", 1)]],
        [[("[no call stack]", 0)], [("[unknown]", 0)]],
        [[("temporary", 1)], [("main", 1)]],
    ]
    for function in message.function:
        # Equal names would make pprof cut template arguments out.
        assert text[function.name] != text[function.system_name]
    paths = {text[m.filename]: m.id for m in message.mapping}
    assert locations[message.sample[1].location_id[0]].mapping_id == paths[LIBRARY]
    assert locations[message.sample[0].location_id[0]].mapping_id == paths[APP]


@pytest.mark.parametrize(
    ("metric", "name"),
    [(Metric.BLOCKS, "inuse_objects"), (Metric.ALLOCATED, "alloc_space"),
     (Metric.GROWTH, "inuse_space"), (Metric.PEAK, "peak_space"),
     (Metric.TEMPORARY, "temporary_objects")],
)  # fmt: skip
def test_pprof_default_sample_type(metric: Metric, name: str) -> None:
    message = decoded(written(".pb.gz", small(), metric))
    text = message.string_table
    assert text[message.default_sample_type] == name
    assert name in [text[each.type] for each in message.sample_type]


@pytest.mark.long
def test_go_reads_pprof(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pb.gz", small())
    for name, total in (("inuse_space", 716), ("inuse_objects", 4), ("alloc_space", 6316)):
        top = go_pprof(tmp_path, *TOP, f"-sample_index={name}", path)
        rows = [line.split(maxsplit=5) for line in top.splitlines()]
        flat = {row[5]: row[0] for row in rows if len(row) == 6 and row[1].endswith("%")}
        figures = {name: int(text.removesuffix("B")) for name, text in flat.items()}
        assert sum(figures.values()) == total, top
        if name == "inuse_space":
            assert figures["grow (inline)"] == 400
            assert figures["[runtime]"] == 300
    traces = go_pprof(tmp_path, "-traces", path)
    order = [traces.index(word) for word in ("grow", "push", "handle", "main")]
    assert order == sorted(order)
    go_pprof(tmp_path, "-svg", "-output=out.svg", path)
    assert b"<svg" in (tmp_path / "out.svg").read_bytes()
    focused = go_pprof(tmp_path, "-top", "-tagfocus=bytes=250b:", path)
    assert "[runtime]" in focused
    assert "grow" not in focused


def test_speedscope_json_and_counters() -> None:
    content = json.loads(written(".speedscope.json", small(), Metric.BLOCKS))
    assert content["activeProfileIndex"] == 1
    frames = content["shared"]["frames"]
    totals = []
    for each in content["profiles"]:
        assert each["type"] == "sampled"
        assert len(each["samples"]) == len(each["weights"])
        assert each["endValue"] == sum(each["weights"])
        assert min(each["weights"]) > 0
        totals.append(each["endValue"])
    assert totals == [716, 4, 6316, 60]
    first = [frames[n] for n in content["profiles"][0]["samples"][0]]
    assert [f["name"] for f in first] == ["server", "main", "handle", "push", "grow"]
    assert first[-1] == {"name": "grow", "file": "src/grow.cpp", "line": 7}
    content = json.loads(written(".speedscope.json", peaked(), Metric.TEMPORARY))
    assert [each["endValue"] for each in content["profiles"]] == [716, 4, 6316, 60, 4650, 6]
    assert content["profiles"][content["activeProfileIndex"]]["name"] == "temporary allocations"
    content = json.loads(written(".json", small()))
    assert (content["format"], content["version"]) == ("tracelloc-snapshot", 1)
    assert content["pid"] == 42
    assert content["figures"] == {"live_bytes": 1}
    assert content["history"] == {"elapsed_s": [0.0, 1.0, 90.0], "bytes": [0, 500, 716]}
    first, second, unknown, _ = content["stacks"]
    names = [content["frames"][n]["symbol"] for n in first["frames"]]
    assert names == ["grow", "push", "handle", "noise", "main"]
    assert first["hidden"] == [3]
    assert second["labels"] == {"0": "runtime", "1": "runtime"}
    assert unknown["frames"] == []
    assert [s["bytes"] for s in content["stacks"]] == [400, 300, 16, 0]
    assert len(content["frames"]) == 8, "each frame is there once"
    content = json.loads(written(".trace.json", small()))
    events = [event for event in content["traceEvents"] if event["ph"] == "C"]
    assert [(e["ts"], e["args"]["bytes"]) for e in events] == [(0, 0), (1e6, 500), (9e7, 716)]
    assert {e["pid"] for e in content["traceEvents"]} == {42}
    assert {metric: peaked().total(metric) for metric in Metric} == SUMS


def test_csv_and_figures() -> None:
    """JSON and CSV have the same ones by the same names."""
    stacks = json.loads(written(".json", peaked()))["stacks"]
    for stack, row in zip(stacks, rows_of(peaked()), strict=True):
        assert [str(stack[f.name]) for f in FIGURES] == [row[f.name] for f in FIGURES]
    names = ["peak_bytes", "peak_allocations", "temporary_bytes", "temporary_allocations",
             "remote_freed_bytes", "remote_frees"]  # fmt: skip
    assert [[stack[name] for name in names] for stack in stacks] == [
        [350, 2, 0, 0, 600, 3], [300, 1, 0, 0, 0, 0], [0] * 6, [4000, 4, 3000, 6, 0, 0],
    ]  # fmt: skip
    rows = rows_of(small())
    assert [row["bytes"] for row in rows] == ["400", "300", "16", "0"]
    assert rows[0]["function"] == "grow"
    assert rows[0]["module"] == APP
    assert rows[0]["stack"] == "server;main;handle;push;grow"
    assert rows[0]["growth_bytes_per_min"] == "60"
    names = [row["function"] for row in rows_of(hostile())]
    assert len(names) == len(HOSTILE)
    assert not any(name.startswith(("=", "+", "-", "@")) for name in names)
    assert any(name.startswith("'=cmd") for name in names)


@pytest.mark.parametrize("suffix", EXPORTERS)
def test_nothing_and_hostile_names(suffix: str) -> None:
    for found in (profile([]), hostile()):
        content = written(suffix, found)
        if suffix.endswith(".gz"):
            content = "".join(decoded(content).string_table).encode()
        if suffix == ".otlp":
            content = "".join(decoded_file(content).dictionary.string_table).encode()
        if suffix == ".parquet":
            rows = parquet.read_table(io.BytesIO(content)).to_pylist()
            content = "".join(str(value) for row in rows for value in row.values()).encode()
        assert b"\x1b" not in content
        if suffix.endswith(".json"):
            json.loads(content)


RECORDING = DATA / "demo" / "leaky.rec"


def report(*arguments: str) -> None:
    """Runs the subcommand without its limit of memory, which would be that of all tests."""
    subcommand = find_subcommand("report")
    subcommand.module.run(subcommand_parser(subcommand).parse_args([str(RECORDING), *arguments]))


@pytest.mark.parametrize("suffix", EXPORTERS)
def test_report_writes_each_format_to_standard_output(
    suffix: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    path, name = tmp_path / f"a{suffix}", EXPORTERS[suffix].name
    assert FORMATS[name] is EXPORTERS[suffix]
    report("-o", str(path))
    capfdbinary.readouterr()
    report("--format", name)
    sys.stdout.flush()
    assert capfdbinary.readouterr().out == path.read_bytes() != b""


@pytest.mark.parametrize("name", FORMATS)
def test_binary_formats_are_not_for_terminals(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "isatty", lambda _: True)
    refusal = pytest.raises(UsageError, match=f"{name} output is binary")
    with refusal if name in ("pprof", "otlp", "parquet") else nullcontext():
        report("--format", name)
