"""Recordings of real processes: exact, whatever ends them, and read without the program."""

import json
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.harness import (
    PATIENCE_S,
    Builder,
    Targets,
    await_line,
    run_tracelloc,
    tracelloc_command,
    wait_until,
)
from tests.integration.test_follow import assert_family
from tests.terminal import Terminal
from tracelloc.show.recording.reader import RecordedTrace
from tracelloc.text import NS_PER_S

pytestmark = pytest.mark.bpf


class Recorder:
    """A running ``tracelloc record``, once it has begun to write."""

    def __init__(self, path: Path, *arguments: str | int) -> None:
        self.path = path
        self.process = subprocess.Popen(
            tracelloc_command("record", "-o", path, *arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        await_line(self.process.stderr, "recording to")

    def await_moment(self, count: int) -> RecordedTrace:
        """The recording, once it has so many moments."""

        def recorded() -> RecordedTrace | None:
            with suppress(Exception):  # there is nothing in it yet
                if Path(f"{self.path}-wal").exists():
                    recording = RecordedTrace(self.path)
                    if len(recording.moments) >= count:
                        return recording
                    recording.close()
            return None

        found: RecordedTrace = wait_until(recorded, 0.05)
        return found

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=PATIENCE_S)
        self.messages = said.decode()
        return self.process.returncode


def reports(path: Path, *options: str) -> list[dict[str, Any]]:
    run = run_tracelloc("report", path, "--format", "json", "--top", 1000, *options, status=0)
    return [json.loads(line) for line in run.stdout.splitlines()]


def test_exact_figures_need_no_program(builder: Builder, targets: Targets, tmp_path: Path) -> None:
    program = tmp_path / "gone"
    program.write_bytes(builder.c("lineage").read_bytes())
    program.chmod(0o755)
    target = targets.start(program)
    recorder = Recorder(tmp_path / "a.rec", "-p", target.pid)
    recorder.await_moment(1).close()
    target.ask("alloc 100 1000")
    books = target.ask("alloc 50 300")
    assert recorder.end() == 0, recorder.messages
    target.end()
    program.unlink()
    (last,) = reports(tmp_path / "a.rec")
    kept = [
        (entry["allocations"], entry["bytes"], frame["file"].rpartition("/")[2])
        for entry in last["top_allocators"]
        for frame in entry["stack"]
        if frame["symbol"] == "keep"
    ]
    assert sum(blocks for blocks, *_ in kept) == 150, books
    assert sum(size for _, size, _ in kept) == 115_000
    assert {name for *_, name in kept} == {"lineage.c"}
    (first,) = reports(tmp_path / "a.rec", "--at", "+0s")
    assert first["live_allocations"] == 0
    # One file, for its owner.
    assert [each.name for each in tmp_path.glob("a.rec*")] == ["a.rec"]
    assert (tmp_path / "a.rec").stat().st_mode & 0o777 == 0o600
    for name in ("a.html", "a.pb.gz", "a.json"):
        run = run_tracelloc("report", tmp_path / "a.rec", "-o", tmp_path / name, status=0)
    run = run_tracelloc("diff", f"{tmp_path / 'a.rec'}@+0s", tmp_path / "a.json")
    assert "+112 KiB" in run.stdout


def test_children_have_moments_of_their_own(targets: Targets, tmp_path: Path) -> None:
    target = targets.c("lineage")
    recorder = Recorder(tmp_path / "tree.rec", "-p", target.pid, "--follow")
    family = json.loads(target.ask("tree 4 0"))
    assert recorder.end() == 0, recorder.messages
    *each, total = reports(tmp_path / "tree.rec")
    assert total["processes"] == len(family)
    assert_family({one["pid"]: one for one in each}, family)


def test_a_killed_recorder_leaves_all_but_last_seconds(targets: Targets, tmp_path: Path) -> None:
    target = targets.c("lineage")
    recorder = Recorder(tmp_path / "killed.rec", "-p", target.pid)
    recorder.await_moment(1).close()
    target.ask("alloc 100 1000")
    recorder.await_moment(3).close()
    killed_s = time.monotonic()
    recorder.end(signal.SIGKILL)
    recording = RecordedTrace(tmp_path / "killed.rec")
    last = recording.trace_at(len(recording.moments) - 1).root
    assert last.live_count == 100
    # Unless the machine was too busy for a moment each second: then nothing that came is lost.
    between_s = [
        after.uptime_s - before.uptime_s
        for before, after in zip(recording.moments, recording.moments[1:], strict=False)
    ]
    assert killed_s - last.now_ns / NS_PER_S <= 1 + max(1.0, *between_s)
    (report,) = reports(tmp_path / "killed.rec")
    assert report["live_allocations"] == 100


def test_a_recording_is_opened_while_it_is_written(targets: Targets, tmp_path: Path) -> None:
    """The viewer comes and goes; the recorder's end stays its own."""
    target = targets.c("lineage")
    recorder = Recorder(tmp_path / "a.rec", "-p", target.pid)
    recorder.await_moment(1).close()
    target.ask("alloc 100 1000")
    with Terminal(tracelloc_command("open", tmp_path / "a.rec"), tmp_path, width=120) as terminal:
        terminal.wait_for("Heap 97.7 KiB")
        terminal.wait_for(r"newest, [\d:]{8} ")
        target.ask("alloc 100 1000")
        terminal.wait_for("Heap  195 KiB")
        terminal.press("(")
        terminal.wait_for("Heap +0 B")
        terminal.wait_for(r" at [\d:]{8} ")
        terminal.press(")")
        terminal.wait_for(r"keep \(lineage\.c:\d+\)")
        assert recorder.end() == 0, recorder.messages
        terminal.press("q")
        terminal.wait_for("ended with 0")
    # The log that a reader kept from being removed is empty.
    (tmp_path / "copy.rec").write_bytes((tmp_path / "a.rec").read_bytes())
    (last,) = reports(tmp_path / "copy.rec")
    assert last["live_allocations"] == 200
    with Terminal(tracelloc_command("open", tmp_path / "copy.rec"), tmp_path) as terminal:
        terminal.wait_for(r"end, [\d:]{8}")
        terminal.press("q")
        terminal.wait_for("ended with 0")


def test_a_copy_is_cut_on_a_signal(targets: Targets, tmp_path: Path) -> None:
    target = targets.c("lineage")
    recorder = Recorder(tmp_path / "a.rec", "-p", target.pid, "--keep", "1m")
    recorder.await_moment(1).close()
    target.ask("alloc 100 1000")
    count = len(recorder.await_moment(2).moments)
    recorder.await_moment(count + 1).close()
    recorder.process.send_signal(signal.SIGUSR1)
    await_line(recorder.process.stderr, "copied to")
    target.ask("alloc 100 1000")
    assert recorder.end() == 0, recorder.messages
    (copy,) = tmp_path.glob("a-*.rec")
    assert sorted(each.name for each in tmp_path.iterdir()) == [copy.name, "a.rec"]
    assert copy.stat().st_mode & 0o777 == 0o600
    ((then,), (last,)) = reports(copy), reports(tmp_path / "a.rec")
    assert (then["live_allocations"], last["live_allocations"]) == (100, 200)


def test_what_can_not_be_recorded_is_one_line(targets: Targets, tmp_path: Path) -> None:
    there = tmp_path / "there.rec"
    there.write_text("mine")
    for words, status, said in (
        (("record", "-p", 1, "-o", there), 1, "exists already"),
        (("record", "-p", 1, "-o", tmp_path / "no/a.rec"), 1, "there is no directory"),
        (("record", "-p", 1, "-o", "/proc/a.rec"), 1, "/proc/a.rec cannot be written"),
        (("record", "-p", 1, "--max-size", "1k"), 2, "--max-size must be at least 4.00 MiB"),
        (("record",), 2, "a process is required"),
        (("report", there), 1, "known are recordings, pprof files"),
        (("record", "--events"), 2, "unrecognized arguments: --events"),
        (("open", there), 2, "needs a terminal"),
        (("open",), 2, "required: FILE"),
    ):
        run = run_tracelloc(*words)
        assert run.returncode == status, run.stderr
        assert said in run.stderr
        assert len(run.stderr.splitlines()) == 1
    assert there.read_text() == "mine"


def test_a_target_that_can_not_be_written_stops_the_program_from_starting(tmp_path: Path) -> None:
    ran, path = tmp_path / "ran", tmp_path / "a.rec"
    Path(f"{path}-wal").write_text("mine")
    run = run_tracelloc("record", "-o", path, "--", "touch", ran, status=1)
    assert run.stderr.startswith(f"tracelloc: error: {path}-wal exists already")
    assert [each.name for each in tmp_path.iterdir()] == ["a.rec-wal"]


@pytest.mark.parametrize("is_moved", [False, True], ids=["removed", "moved"])
def test_a_lost_file_is_missed_at_once(targets: Targets, tmp_path: Path, is_moved: bool) -> None:
    """A new file has all later snapshots; a moved one is whole."""
    target = targets.c("lineage")
    path = tmp_path / "a.rec"
    recorder = Recorder(path, "-p", target.pid)
    recorder.await_moment(2).close()
    target.ask("alloc 100 1000")
    if is_moved:
        path.rename(tmp_path / "b.rec")
    else:
        path.unlink()
    await_line(recorder.process.stderr, "was removed or moved, with")
    recorder.await_moment(2).close()
    assert recorder.end() == 0, recorder.messages
    assert sum("recorded" in line for line in recorder.messages.splitlines()) >= 1
    for name in ["a.rec", "b.rec"][: 1 + is_moved]:
        (last,) = reports(tmp_path / name)
        assert name == "b.rec" or last["live_allocations"] == 100
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.rec", "b.rec"][: 1 + is_moved]


def test_a_directory_that_goes_ends_the_recording(targets: Targets, tmp_path: Path) -> None:
    target = targets.c("lineage")
    directory = tmp_path / "there"
    directory.mkdir()
    recorder = Recorder(directory / "a.rec", "-p", target.pid)
    recorder.await_moment(1).close()
    directory.rename(tmp_path / "elsewhere")
    assert recorder.process.wait(PATIENCE_S) == 1
    said = recorder.process.stderr.read().decode()
    assert "a.rec cannot be written: No such file or directory" in said
    assert "bug" not in said
    target.ask("alloc 1 1")
