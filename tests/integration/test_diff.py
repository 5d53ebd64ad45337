"""``tracelloc diff``: two exports of one process, and what can go wrong."""

import json
import signal
from pathlib import Path

import pytest

from tests.harness import Targets, Tracelloc, run_tracelloc
from tests.unit.profiles import frame, large, peaked, profile, sample, small
from tests.unit.show.export.test_export_formats import decoded
from tests.unit.show.importers.test_reading import save
from tracelloc.show.export import EXPORTERS


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    main = frame("main")
    before = profile([sample(1, [frame("grows"), main], (1024, 1, 1024, 1, 0)),
                      sample(2, [frame("goes"), main], (300, 3, 300, 3, 0)),
                      sample(3, [frame("stays"), main], (7, 1, 7, 1, 0))])  # fmt: skip
    after = profile([sample(1, [frame("grows"), main], (3072, 3, 4096, 9, 0)),
                     sample(3, [frame("stays"), main], (7, 1, 9, 2, 0))])  # fmt: skip
    return save(tmp_path / "a.pb.gz", before), save(tmp_path / "b.json", after)


def test_text(two: tuple[Path, Path]) -> None:
    result = run_tracelloc("diff", *two, status=0)
    assert result.stderr == ""
    assert result.stdout.splitlines()[:10] == [
        "==> server (42) to server (42): +1.71 KiB live (1.30 KiB to 3.01 KiB)",
        "==> 1 of 1 stack with more, +2.00 KiB in all:",
        "     0: +2.00 KiB in +2 allocations (1.00 KiB to 3.00 KiB)",
        "        grows in /opt/shop/server (src/grows.cpp:1)",
        "        main in /opt/shop/server (src/main.cpp:1)",
        "==> 1 of 1 stack with less, -300 B in all:",
        "     0: -300 B in -3 allocations (300 B to 0 B)",
        "        goes in /opt/shop/server (src/goes.cpp:1)",
        "        main in /opt/shop/server (src/main.cpp:1)",
        "==> 1 stack unchanged",
    ]
    result = run_tracelloc("diff", *two, "--metric", "allocated", "--top", "1")
    assert "+2.71 KiB allocated" in result.stdout
    assert "1 of 2 stacks with more, +3.00 KiB in all" in result.stdout


def test_peaks(tmp_path: Path) -> None:
    before, after = save(tmp_path / "a.json", small()), save(tmp_path / "b.json", peaked())
    result = run_tracelloc("diff", before, after, "--metric", "peak")
    assert "+4.54 KiB live at the peak (0 B to 4.54 KiB)" in result.stdout
    result = run_tracelloc("diff", before, after, "--metric", "temporary")
    assert "==> 1 of 1 stack with more, +6 in all:" in result.stdout
    earlier = save(tmp_path / "a.pb.gz", small())
    result = run_tracelloc("diff", earlier, after, "--metric", "peak")
    assert (result.returncode, result.stdout) == (2, "")
    assert f"{earlier} has no figures for --metric peak" in result.stderr


def test_every_format(two: tuple[Path, Path], tmp_path: Path) -> None:
    paths = [tmp_path / f"d{suffix}" for suffix in EXPORTERS]
    options = [word for path in paths for word in ("-o", str(path))]
    result = run_tracelloc("diff", *two, *options)
    said = [line for line in result.stderr.splitlines() if ": writing " not in line]
    assert (result.returncode, result.stdout, said) == (0, "", [])
    assert all(path.stat().st_size for path in paths)
    message = decoded((tmp_path / "d.pb.gz").read_bytes())
    assert sum(s.value[1] for s in message.sample) == 1748
    assert "server;main;grows 1024 3072" in (tmp_path / "d.folded").read_text().splitlines()
    content = json.loads((tmp_path / "d.json").read_text())
    assert content["difference"]
    assert [s["bytes"] for s in content["stacks"]] == [2048, 0, -300]
    assert [s["before"]["bytes"] for s in content["stacks"]] == [1024, 7, 300]
    profiles = json.loads((tmp_path / "d.speedscope.json").read_text())["profiles"]
    assert [p["endValue"] for p in profiles[:2]] == [2048, 300]
    header, first, *_ = (tmp_path / "d.csv").read_text().splitlines()
    assert dict(zip(header.split(","), first.split(","), strict=True))["bytes_before"] == "1024"
    assert "hsl(10,85%,64%)" in (tmp_path / "d.svg").read_text(), "what grew most is red"


@pytest.mark.bpf
def test_growth_of_a_process(targets: Targets, tmp_path: Path) -> None:
    target = targets.c("chain")
    tracer = Tracelloc("-p", target.pid, "-o", tmp_path / "a.pb.gz")
    tracer.process.send_signal(signal.SIGUSR1)
    tracer.wait_for("wrote")
    first = (tmp_path / "a.pb.gz").rename(tmp_path / "first.pb.gz")
    assert target.ask("go") == "done"
    assert tracer.stop() == 0
    result = run_tracelloc("diff", first, tmp_path / "a.pb.gz")
    assert "+7.58 KiB live (0 B to 7.58 KiB)" in result.stdout
    assert "4 of 4 stacks with more" in result.stdout
    assert "innermost in " in result.stdout


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["none.pb.gz", "none.json"], 1, "none.pb.gz cannot be read: No such file"),
        (["/bin/sh", "/bin/sh"], 1, "/bin/sh cannot be read"),
        (["none.pb.gz"], 2, "required: AFTER"),
        (["a", "b", "-o", "c.xyz"], 2, "unknown suffix"),
    ],
)
def test_errors(arguments: list[str], status: int, words: str) -> None:
    result = run_tracelloc("diff", *arguments)
    assert (result.returncode, result.stdout) == (status, "")
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_names_cannot_steer_the_terminal(tmp_path: Path) -> None:
    a, b = tmp_path / "a.folded", tmp_path / "b.folded"
    a.write_bytes(b"app;main\x1b[31m 5\n")
    b.write_bytes(b"app;main\x1b[31m 9\nx\x9b1m\xff;y 7\n")
    result = run_tracelloc("diff", a, b)
    assert "\x1b" not in result.stdout
    assert "main\\x1b[31m" in result.stdout


def total(directory: Path, name: str, size_bytes: int) -> Path:
    """A profile of one run: the heap holds so much, some of it in a stack that stays."""
    main = frame("main")
    return save(directory / name, profile([
        sample(1, [frame("grows"), main], (size_bytes - 100, 1, size_bytes, 1, 0)),
        sample(3, [frame("stays<a|b>"), main], (100, 1, 100, 1, 0)),
    ]))  # fmt: skip


def test_rules_and_noise(tmp_path: Path) -> None:
    """A metric has grown if every later run is above every earlier one, and the medians are so."""
    before = [total(tmp_path, f"a{n}.json", 1000 + 20 * n) for n in range(3)]
    after = [total(tmp_path, f"b{n}.json", 1100 + 10 * n) for n in range(3)]
    runs = [before[1], after[1], "--before", before[0], "--before", before[2]]
    runs += ["--after", after[0], "--after", after[2]]
    result = run_tracelloc(
        "diff", *runs, "--fail-if", "bytes > +5%", "--fail-if", "blocks > 0", status=3
    )
    assert result.stderr == (
        "tracelloc: --fail-if: bytes > +5%: +90 B, +8.8 % (1020 B to 1.08 KiB)\n"
    )
    assert result.stdout.splitlines()[:2] == [
        "before: 1000 B to 1.02 KiB in 3 runs",
        "after: 1.07 KiB to 1.09 KiB in 3 runs",
    ]
    assert run_tracelloc("diff", *runs, "--fail-if", "bytes > +9%").returncode == 0
    # One of the later runs is as low as the earlier ones.
    runs += ["--after", total(tmp_path, "b3.json", 1040)]
    result = run_tracelloc("diff", *runs, "--fail-if", "bytes > 1B", "--markdown", status=0)
    assert "✅ `bytes > 1B`: +80 B, +7.8 % (1020 B to 1.07 KiB), within noise" in result.stdout
    result = run_tracelloc("diff", *runs, "--fail-if", "rss > 1%")
    assert (result.returncode, result.stdout) == (2, "")
    assert "'rss > 1%' is not a valid rule: write METRIC > +5%" in result.stderr


def test_markdown(tmp_path: Path) -> None:
    before, after = total(tmp_path, "a.json", 1000), total(tmp_path, "b.json", 3000)
    result = run_tracelloc(
        "diff", before, after, "--markdown", "--fail-if", "bytes > 10%", status=3
    )
    assert result.stdout.splitlines() == [
        "### Memory of server: live bytes +1.95 KiB, +200.0 % (1000 B to 2.93 KiB)",
        "",
        "❌ `bytes > 10%`: +1.95 KiB, +200.0 % (1000 B to 2.93 KiB)  ",
        "",
        "| | before | after | change |",
        "|---|---:|---:|---:|",
        "| live bytes | 1000 B | 2.93 KiB | +200.0% |",
        "| live blocks | 2 | 2 | +0.0% |",
        "| allocated bytes | 1.07 KiB | 3.03 KiB | +181.8% |",
        "",
        "<details><summary>1 call stack with more</summary>",
        "",
        "| change | before | allocated in |",
        "|---:|---:|---|",
        "| +1.95 KiB | 900 B | grows (grows.cpp:1) ← main (main.cpp:1) |",
        "",
        "</details>",
    ]
    big = save(tmp_path / "c.json", large(500)), save(tmp_path / "d.json", large(500, seed=2))
    rules = [word for n in range(20) for word in ("--fail-if", f"bytes > {n}%")]
    lines = run_tracelloc("diff", *big, "--markdown", *rules).stdout.splitlines()
    assert 30 < len(lines) <= 60
    assert all(line.count("|") - line.count("\\|") in (0, 4, 5) for line in lines)
