"""What is written can be read back, and what is damaged is refused in one line."""

import gzip
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.commands import outcome
from tests.harness import DATA, run_tracelloc
from tests.unit import profiles
from tests.unit.profiles import PprofProfile, large, peaked, profile, sample, small
from tracelloc.errors import TracellocError
from tracelloc.show.export import EXPORTERS
from tracelloc.show.export.listings import fold
from tracelloc.show.importers import read_profile
from tracelloc.show.presentation.combined import difference
from tracelloc.show.presentation.profile import Metric, Profile


def save(path: Path, found: Profile) -> Path:
    suffix = next(s for s in EXPORTERS if path.name.endswith(s))
    path.write_bytes(b"".join(EXPORTERS[suffix].write(found, Metric.BYTES)))
    return path


def folded(found: Profile) -> dict[str, int]:
    return {
        line.rpartition(" ")[0]: int(line.rpartition(" ")[2])
        for line in b"".join(EXPORTERS[".fg"].write(found, Metric.BYTES)).decode().splitlines()
    }


@pytest.mark.parametrize(
    "made", [small(), peaked(), large(300), profile([])], ids=["small", "peaked", "large", "none"]
)
def test_json_comes_back_as_it_was(made: Profile, tmp_path: Path) -> None:
    back = read_profile(save(tmp_path / "a.json", made))
    for name in ("target", "elapsed_ns", "sample_bytes", "time_s"):
        assert getattr(back, name) == getattr(made, name)
    for name in ("files", "notes", "series"):
        assert list(getattr(back, name)) == list(getattr(made, name))
    assert [s.stat for s in back.samples] == [s.stat for s in made.samples]
    for a, b in zip(back.samples, made.samples, strict=True):
        assert list(a.stack.frames) == list(b.stack.frames)
        assert list(a.stack.parts()) == list(b.stack.parts())


@pytest.mark.parametrize("name", ["a.json", "a.pb.gz"])
def test_memory_of_gpus_is_not_compared_with_the_process(name: str, tmp_path: Path) -> None:
    made = replace(small(), facts={"space": "gpu"})
    back = read_profile(save(tmp_path / name, made))
    assert back.space == "gpu"
    change = difference(back, back)
    assert (change.space, change.is_difference) == ("gpu", True)
    assert read_profile(save(tmp_path / "b.json", change)).space == "gpu"
    host = read_profile(save(tmp_path / name, small()))
    assert host.space == "host"
    with pytest.raises(TracellocError, match="can't be compared with the process's own"):
        difference(host, back)


def test_json_of_earlier_versions(tmp_path: Path) -> None:
    path = save(tmp_path / "a.json", peaked())
    content = json.loads(path.read_text())
    for stack in content["stacks"]:
        for name in list(stack):
            if name.startswith(("peak_", "temporary_", "remote_")):
                del stack[name]
    path.write_text(json.dumps(content))
    back = read_profile(path)
    assert [s.stat for s in back.samples] == [s.stat for s in small().samples]
    assert back.metrics == set(Metric) - {Metric.PEAK, Metric.TEMPORARY}


@pytest.mark.parametrize("metric", [Metric.PEAK, Metric.TEMPORARY])
def test_pprof_of_one_metric(metric: Metric, tmp_path: Path) -> None:
    path = tmp_path / "a.pb.gz"
    path.write_bytes(b"".join(EXPORTERS[".pb.gz"].write(peaked(), metric)))
    back = read_profile(path)
    assert {each: back.total(each) for each in back.metrics} == {
        each: peaked().total(each)
        for each in (Metric.BYTES, Metric.BLOCKS, Metric.ALLOCATED, metric)
    }


@pytest.mark.parametrize("name", ["a.pb.gz", "a.json", "a.folded"])
def test_stacks_and_figures_come_back(name: str, tmp_path: Path) -> None:
    made = large(300)
    back = read_profile(save(tmp_path / name, made))
    assert back.total(Metric.BYTES) == made.total(Metric.BYTES)
    assert folded(back) == folded(made)
    if name == "a.pb.gz":
        for metric in (Metric.BLOCKS, Metric.ALLOCATED):
            assert back.total(metric) == made.total(metric)
        assert [f.build_id for f in back.files] == [f.build_id for f in made.files]
        assert (back.target, back.elapsed_ns, back.notes) == (
            made.target, made.elapsed_ns, made.notes,
        )  # fmt: skip


def test_differences_and_earlier_versions(tmp_path: Path) -> None:
    main = profiles.frame("main")
    before = profile([
        sample(1, [profiles.frame("stays"), main], (100, 1, 100, 1, 0)),
        sample(2, [profiles.frame("grows"), main], (50, 1, 50, 1, 0)),
        sample(3, [profiles.frame("goes"), main], (30, 3, 30, 3, 0)),
    ])  # fmt: skip
    after = profile([
        sample(1, [profiles.frame("grows", line=9), main], (80, 2, 99, 3, 0)),
        sample(7, [profiles.frame("grows", line=8), main], (5, 1, 1, 1, 0)),
        sample(5, [profiles.frame("stays"), main], (100, 1, 100, 1, 0)),
        sample(6, [profiles.frame("comes"), main], (9, 1, 9, 1, 0)),
    ])  # fmt: skip
    found = difference(before, after)
    assert found.is_difference
    deltas = {s.stack.frames[0].symbol: s.weight(Metric.BYTES) for s in found.samples}
    assert deltas == {"grows": 35, "comes": 9, "stays": 0, "goes": -30}
    assert {s.stack.frames[0].symbol: s.after(Metric.BYTES) for s in found.samples} == {
        "grows": 85, "comes": 9, "stays": 100, "goes": 0,
    }  # fmt: skip
    assert found.total(Metric.BYTES) == after.total(Metric.BYTES) - before.total(Metric.BYTES)
    assert found.total(Metric.BLOCKS) == 0
    made = difference(large(100), large(120, seed=2))
    for name in ("d.json", "d.folded"):
        back = read_profile(save(tmp_path / name, made))
        assert back.is_difference
        assert back.total(Metric.BYTES) == made.total(Metric.BYTES)
    assert {fold(s.stack, s.stat.index) for s in made.samples} == {
        line.rsplit(" ", 2)[0] for line in (tmp_path / "d.folded").read_text().splitlines()
    }


@pytest.mark.parametrize("one", ["a.pb.gz", "a.json", "a.folded"])
@pytest.mark.parametrize("two", ["b.pb.gz", "b.json", "b.folded"])
def test_difference_of_a_profile_to_itself_is_nothing(one: str, two: str, tmp_path: Path) -> None:
    made = large(100)
    a, b = (read_profile(save(tmp_path / name, made)) for name in (one, two))
    assert {s.weight(Metric.BYTES) for s in difference(a, b).samples} == {0}


@pytest.mark.parametrize(
    ("name", "made"),
    [("a.pb.gz", small()), ("b.pb.gz", peaked()), ("c.json", large(300)), ("d.folded", small())],
    ids=["pprof", "pprof with peak", "json", "folded"],
)
def test_reports_of_profiles_are_files(name: str, made: Profile, tmp_path: Path) -> None:
    path = save(tmp_path / name, made)
    run = run_tracelloc("report", path, "-o", tmp_path / "other.json")
    assert run.returncode == 0, run.stderr
    back, other = read_profile(path), read_profile(tmp_path / "other.json")
    assert folded(other) == folded(back)
    run = run_tracelloc("report", path, "--format", "folded")
    assert len(run.stdout.splitlines()) == len(folded(back))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a.folded"], "is a profile, not a recording; -o FILE writes it in another format"),
        (["a.folded", "--since", "+0s", "-o", "a.svg"], "is a single profile, not a recording"),
        (["a.folded", "--metric", "peak", "-o", "a.svg"], "has no figures for --metric peak"),
        (["a.rec", "--show", "sizes"], "recordings hold no block sizes"),
        (["a.rec", "--show", "threads"], "recordings hold no per-thread data"),
        (["none.rec"], "none.rec cannot be read: No such file or directory"),
    ],
)
def test_what_can_not_be_reported(words: list[str], said: str, tmp_path: Path) -> None:
    save(tmp_path / "a.folded", small())
    golden = DATA / "recordings/v1.rec"
    (tmp_path / "a.rec").write_bytes(golden.read_bytes())
    paths = [tmp_path / word if "." in word else word for word in words]
    run = run_tracelloc("report", *paths)
    assert run.returncode
    assert said in run.stderr


GO = """package main
import ("os"; "runtime"; "runtime/pprof")
var kept [][]byte
func leak() { for i := 0; i < 100; i++ { kept = append(kept, make([]byte, 1<<16)) } }
func main() { runtime.MemProfileRate = 1; leak(); runtime.GC()
  f, _ := os.Create(os.Args[1]); pprof.WriteHeapProfile(f); f.Close() }
"""


@pytest.mark.long
def test_profiles_of_go_are_read(tmp_path: Path, go_cache: Path) -> None:
    (tmp_path / "leak.go").write_text(GO)
    out = tmp_path / "go.pb.gz"
    subprocess.run(
        ["go", "run", "leak.go", out], cwd=tmp_path, check=True, timeout=240,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "GOCACHE": str(go_cache),
             "GO111MODULE": "off"},
    )  # fmt: skip
    found = read_profile(out)
    leaks = [s for s in found.samples if any(f.symbol == "main.leak" for f in s.stack.frames)]
    assert sum(s.stat.live_bytes for s in leaks) >= 100 << 16
    assert leaks[0].stack.frames[-1].symbol == "runtime.main"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a;b twelve\n", "line 1 is not a folded stack"),
        (b"a;b 1\n  x y z\n", "line 2"),
        (b"{}", "not a snapshot of tracelloc's"),
        (b'{"format": "tracelloc-snapshot", "version": 2}', "version 2"),
        (b'{"format": "tracelloc-snapshot", "version": 1}', "missing or wrong"),
        (b"{" * 100_000, "damaged JSON"),
        (b"\x1f\x8bnonsense", "compression is damaged"),
        (gzip.compress(b"\x0a\x04abc", mtime=0), "ends too early"),
        (gzip.compress(b"\x08" + b"\xff" * 20, mtime=0), "not a pprof profile"),
        (gzip.compress(bytes(1 << 20), mtime=0)[:500], "ends too early"),
        (b"heap_v2/524288\n  t*: 1: 2 [0: 0]\n", "go tool pprof -proto converts"),
        (b"heap profile: 1: 2 [1: 2] @ heap/1\n", "go tool pprof -proto converts"),
        (b"\x7fELF\x02\x01\x01\0", "cannot be read"),
    ],
)
def test_damage_is_named(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(TracellocError, match="cannot be read") as caught:
        read_profile(path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(TracellocError, match="No such file"):
        read_profile(tmp_path / "none")
    with pytest.raises(TracellocError, match="directory"):
        read_profile(tmp_path)


def test_long_locations_named_often_are_refused(tmp_path: Path) -> None:
    message = PprofProfile(string_table=["", "inuse_space", "bytes"])
    message.sample_type.add(type=1, unit=2)
    location = message.location.add(id=1, address=1)
    for _ in range(10_000):
        location.line.add(line=1)
    for _ in range(10):
        message.sample.add(location_id=[1] * 10_000, value=[1])
    path = tmp_path / "a.pb.gz"
    path.write_bytes(gzip.compress(message.SerializeToString()))
    assert path.stat().st_size < 10_000
    with pytest.raises(TracellocError, match="implausibly long"):
        read_profile(path)


def test_figures_that_cannot_be_true(tmp_path: Path) -> None:
    """Sums are exact or refused, never wrapped round."""
    path = tmp_path / "a.folded"
    path.write_bytes(b"a;b 999999999999999999\n")
    (sample,) = read_profile(path).samples
    assert sample.stat.live_bytes == 10**18 - 1
    path.write_bytes(2 * path.read_bytes())
    with pytest.raises(TracellocError, match="its bytes are implausibly large"):
        read_profile(path)
    huge = small()
    huge = replace(huge, samples=[replace(s, stat=replace(s.stat, peak_bytes=10**30))
                                    for s in huge.samples])  # fmt: skip
    path.write_bytes(b"".join(EXPORTERS[".json"].write(huge, Metric.BYTES)))
    with pytest.raises(TracellocError, match="its peak_bytes are implausibly large"):
        read_profile(path)


def test_memory_has_a_limit_where_files_are_read(tmp_path: Path) -> None:
    """One that takes more than there is ends the command, not the machine."""
    (tmp_path / "a.folded").write_text("main 5\n")
    code = (
        "import resource, sys\n"
        "from tracelloc.command.cli import main\n"
        "main(['diff', sys.argv[1], sys.argv[1]])\n"
        "print(resource.getrlimit(resource.RLIMIT_DATA)[0])"
    )
    done = outcome(sys.executable, "-c", code, tmp_path / "a.folded")
    assert 0 < int(done.stdout.split()[-1]) < 1 << 62
