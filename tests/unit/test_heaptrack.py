"""heaptrack's files are read with exact figures, and refused in one line if damaged."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard

from tests.harness import run_tracelloc
from tracelloc.errors import TracellocError
from tracelloc.show.filters import Filters
from tracelloc.show.importers import read_profile
from tracelloc.show.importers.recordings import open_recording
from tracelloc.show.presentation.naming import Namers, frame_name
from tracelloc.show.presentation.profile import Metric, Profile

LOG = """v 10400 3
X ./shop --port 80
+ 1

I 1000 5e298d
# a comment
s 9 /opt/shop
s 4 main
s 6 shop.c
i 1000 1 2 3 10
t 1 0
s 4 keep
s 5 inner
i 2000 1 5 3 4 4 3 2a
t 2 1
a 3e8 2
+ 0
+ 0
+ 0
- 0
i 3000 1
t 3 1
a 10 3
+ 1
a 64 1
+ 2
- 2
c 3e8
R 12
"""
STACKS = {
    ("inner", "keep", "main"): (2000, 2, 3000, 3),
    ("shop+0x3000", "main"): (16, 1, 16, 1),
    ("main",): (0, 0, 100, 1),
}


def read(path: Path, content: bytes) -> Profile:
    path.write_bytes(content)
    return read_profile(path)


@pytest.mark.parametrize("packed", [False, True])
def test_figures_are_exact(tmp_path: Path, packed: bool) -> None:
    content = LOG.encode()
    if packed:
        content = zstandard.ZstdCompressor().compress(content)
    found = read(tmp_path / "heaptrack.shop.1.zst", content)
    assert found.target.command == "shop"
    assert found.elapsed_ns == 10**9
    names = {
        tuple("shop+0x3000" if f.symbol is None else frame_name(f) for f in sample.stack.frames): (
            sample.stat.live_bytes, sample.stat.live_count,
            sample.stat.allocated_bytes, sample.stat.allocated_count,
        )
        for sample in found.samples
    }  # fmt: skip
    assert names == STACKS
    first = found.samples[0].stack.frames
    assert [(f.file, f.line, f.inlined, f.module) for f in first] == [
        ("shop.c", 4, True, "/opt/shop"),
        ("shop.c", 42, False, "/opt/shop"),
        ("shop.c", 16, False, "/opt/shop"),
    ]
    assert found.metrics == {Metric.BYTES, Metric.BLOCKS, Metric.ALLOCATED}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("+ 1\n", "+ 9\n", "an allocation is not defined"),
        ("t 2 1\n", "t 9 1\n", "line 15 is damaged"),
        ("a 3e8 2\n", "a 3e8 7\n", "line 16 is damaged"),
        ("i 3000 1\n", "i 3000 1 99\n", "line 21 is damaged"),
        ("a 10 3\n", "a zz 3\n", "line 23 is damaged"),
        ("v 10400 3", "v 10200 1", "convert it by a newer heaptrack"),
    ],
)
def test_damage_is_one_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in LOG
    with pytest.raises(TracellocError, match=said):
        read(tmp_path / "damaged", LOG.replace(old, new).encode())


def test_whatever_is_damaged_is_refused_or_read(tmp_path: Path) -> None:
    chosen = random.Random(3)
    packed = zstandard.ZstdCompressor().compress(LOG.encode())
    for round_ in range(400):
        content = bytearray(packed if round_ % 4 == 0 else LOG.encode())
        for _ in range(3):
            content[chosen.randrange(4, len(content))] = chosen.randrange(256)
        said = ""
        try:
            read(tmp_path / "damaged", bytes(content))
        except TracellocError as error:
            said = str(error)
        assert "\n" not in said


def test_a_file_is_played_as_a_recording(tmp_path: Path) -> None:
    """A second and a half: two moments, each with exact figures per call stack."""
    path = tmp_path / "heaptrack.shop.4242.zst"
    path.write_bytes((LOG + "+ 0\n+ 2\nc 5dc\nR 20\n").encode())
    recording = open_recording(path)
    assert recording.about["command"] == "./shop --port 80"
    assert recording.about["version"] == "1.4.0"
    assert not list(tmp_path.glob("*.rec"))
    namers = Namers(recording, Filters(), short_names=False)
    totals, rss = [], []
    for index in range(len(recording.moments)):
        one = recording.trace_at(index).root
        rss.append(one.rss_bytes)
        namer = namers.namer_of(one.target)
        totals.append({
            tuple(frame_name(f) for f in namer.stack(one, stat.index).frames): (
                stat.live_bytes, stat.live_count, stat.allocated_bytes, stat.allocated_count
            )
            for stat in one.top_stacks(freed=True)
        })  # fmt: skip
    assert (one.target.pid, one.target.command) == (4242, "shop")
    assert recording.moments[-1].time_s == pytest.approx(path.stat().st_mtime)
    assert rss == [0x12 * 4096, 0x20 * 4096]
    unnamed = next(names for names in STACKS if len(names) == 2)
    named = {names: figures for names, figures in STACKS.items() if names != unnamed}
    assert totals[0].items() >= named.items()
    assert STACKS[unnamed] in totals[0].values()
    named["inner", "keep", "main"] = 3000, 3, 4000, 4
    named["main",] = 100, 1, 200, 2
    assert totals[-1].items() >= named.items()
    recording.close()
    run = run_tracelloc("report", path, "--at", "+0s")
    assert run.returncode == 0, run.stderr
    assert "live=1.97KiB blocks=3" in run.stdout


def test_damaged_files_are_played_or_refused(tmp_path: Path) -> None:
    chosen = random.Random(4)
    played = 0
    for _ in range(100):
        content = bytearray((LOG + "+ 0\nc 5dc\n").encode())
        for _ in range(chosen.randint(1, 3)):
            content[chosen.randrange(12, len(content))] = chosen.choice(b"0123456789abcdef\n +-ct")
        (tmp_path / "damaged").write_bytes(bytes(content))
        said = ""
        try:
            open_recording(tmp_path / "damaged").close()
            played += 1
        except TracellocError as error:
            said = str(error)
        assert "\n" not in said
    assert 10 < played < 90


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([b"i 1000 1" + b" 1 1 1" * 1000] * 1100, "it has more than 1,048,576 frames"),
        ([b"i 1000 1" + b" 1 1 1" * 100_000, *[b"t 1 0"] * 200,
          *(b"a 1 %x" % n for n in range(1, 201)), *(b"+ %x" % n for n in range(200))],
         "its stacks have more than 16,777,216 frames"),
    ],
    ids=["places", "stacks"],
)  # fmt: skip
@pytest.mark.long
def test_what_swells_is_refused(tmp_path: Path, lines: list[bytes], said: str) -> None:
    """Some kilobytes that would be gigabytes of frames."""
    content = zstandard.compress(b"\n".join([b"v 10400 3", b"s 1 a", *lines]))
    assert len(content) < 100_000
    with pytest.raises(TracellocError, match=said):
        read(tmp_path / "a.zst", content)


def test_memory_has_a_limit_where_files_are_read(tmp_path: Path) -> None:
    """One that takes more than there is ends the command, not the machine."""
    (tmp_path / "a.folded").write_text("main 5\n")
    code = (
        "import resource, sys\n"
        "from tracelloc.command.cli import main\n"
        "main(['diff', sys.argv[1], sys.argv[1]])\n"
        "print(resource.getrlimit(resource.RLIMIT_DATA)[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "a.folded"], capture_output=True, text=True
    )
    assert 0 < int(done.stdout.split()[-1]) < 1 << 62
