"""Recordings that keep every event: which blocks were outstanding at each moment."""

from __future__ import annotations

import random
import sqlite3
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from tests.harness import run_tracelloc
from tests.unit.recordedtraces import namers, program, traces_with_events
from tracelloc.command.record import Recorder
from tracelloc.command.recordoptions import RecordOptions
from tracelloc.command.run import Run
from tracelloc.errors import TracellocError
from tracelloc.heap import eventlog
from tracelloc.model.blocks import Blocks, LoggedEvents
from tracelloc.model.process import Target
from tracelloc.model.wanted import Wanted
from tracelloc.show.recording import events
from tracelloc.show.recording.container import checksum
from tracelloc.show.recording.events import encode
from tracelloc.show.recording.reader import RecordedTrace
from tracelloc.show.recording.replay import blocks_since_s, with_blocks
from tracelloc.show.recording.writer import RecordingWriter
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import format_time

END_S = 120.0


def by_address(blocks: Blocks) -> list[tuple[int, ...]]:
    return sorted(zip(*(column.tolist() for column in blocks.columns()), strict=True))


def write(path: Path, max_bytes: int = 200 << 20) -> list[Snapshot]:
    """Records the made-up program with its events. Returns the snapshots, with their blocks."""
    writer = RecordingWriter(path, max_bytes=max_bytes, max_s=1e9, events=True)
    shown = []
    for trace in traces_with_events(END_S):
        one = replace(trace, processes=trace.processes[:1])
        writer.add(one, namers(END_S))
        shown.append(one.root)
    # It has ended: the same once more.
    writer.add(one, namers(END_S))
    writer.close()
    return shown


def blocks_of(recording: RecordedTrace, index: int) -> Blocks | None:
    return with_blocks(recording, index, recording.trace_at(index)).root.blocks


@pytest.mark.parametrize("least", [1 << 20, 300])
def test_blocks_of_every_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: int
) -> None:
    """Also where all blocks are written now and then."""
    monkeypatch.setattr(eventlog, "_LEAST", least)
    shown = write(tmp_path / "a.rec")
    recording = RecordedTrace(tmp_path / "a.rec")
    assert recording.has_events
    assert len(recording.moments) == len(shown) + 1
    for index in random.Random(1).sample(range(len(shown)), len(shown)):
        found = blocks_of(recording, index)
        assert by_address(found) == by_address(shown[index].blocks)
    assert by_address(blocks_of(recording, len(shown))) == by_address(shown[-1].blocks)
    with sqlite3.connect(tmp_path / "a.rec") as connection:
        (whole,) = connection.execute("SELECT SUM(is_whole) FROM events").fetchone()
    assert whole == 1 if least > 300 else whole > 10


def test_the_oldest_events_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eventlog, "_LEAST", 300)
    monkeypatch.setattr(events, "_SHARE", 4)
    shown = write(tmp_path / "a.rec", 280 << 10)
    recording = RecordedTrace(tmp_path / "a.rec")
    numbers = [moment.number for moment in recording.moments]
    known = []
    for index, number in enumerate(numbers[:-1]):
        found = blocks_of(recording, index)
        if found is not None:
            known.append(index)
            assert by_address(found) == by_address(shown[number].blocks)
    assert 0 not in known
    assert known == list(range(known[0], len(numbers) - 1)), "all that came later are known"
    since_s = blocks_since_s(recording)
    assert since_s == recording.moments[known[0]].time_s
    run = run_tracelloc("report", tmp_path / "a.rec", "--at", "+0s", "--show", "sizes")
    assert run.returncode == 2
    assert f"the recorded events begin at {format_time(since_s)}; choose a later" in run.stderr
    with sqlite3.connect(tmp_path / "a.rec") as connection:
        (size,) = connection.execute("SELECT SUM(LENGTH(data)) FROM events").fetchone()
    assert size <= 70 << 10


def test_it_is_said_when_events_do_not_reach_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(eventlog, "_LEAST", 300)
    monkeypatch.setattr(events, "_SHARE", 4)
    every = [replace(each, processes=each.processes[:1]) for each in traces_with_events(END_S)]
    taken = iter(every)
    run = SimpleNamespace(
        options=SimpleNamespace(wanted=Wanted()),
        session=SimpleNamespace(root=SimpleNamespace(target=Target(42, "server"))),
        snapshots=SimpleNamespace(take_snapshot=lambda *_: next(taken)),
        namers=namers(END_S),
        watch=SimpleNamespace(has_rules=False, leak_count=0),
        say_what_is_traced=lambda: None,
    )
    recorder = Recorder(RecordOptions(tmp_path / "a.rec", 280 << 10, 1e9, events=True))
    recorder._begin(cast(Run, run))
    said = []
    for _ in every[:-1]:
        recorder._tick(cast(Run, run))
        said.append("half of --max-size" in capsys.readouterr().err)
    recorder.finish(cast(Run, run), every[-1])
    recording = RecordedTrace(tmp_path / "a.rec")
    since_s = blocks_since_s(recording)
    assert since_s > recording.moments[0].time_s
    assert said.count(True) == 1
    assert f", events since {format_time(since_s)[11:]}" in capsys.readouterr().err


def test_an_event_takes_few_bytes(tmp_path: Path) -> None:
    write(tmp_path / "a.rec")
    with sqlite3.connect(tmp_path / "a.rec") as connection:
        (size,) = connection.execute("SELECT SUM(LENGTH(data)) FROM events").fetchone()
    # A few in each row, with exact times at random: the worst there is.
    assert size / len(program(END_S)[0]) < 16


def test_damage_is_an_error_of_one_line(tmp_path: Path) -> None:
    """With a checksum that is right: whoever wrote it."""
    write(tmp_path / "a.rec")
    dice = random.Random(2)
    with sqlite3.connect(tmp_path / "a.rec") as connection:
        rows = connection.execute("SELECT moment, data FROM events").fetchall()
    failed = 0
    for _ in range(150):
        moment, data = dice.choice(rows)
        changed = bytearray(data)
        for _ in range(dice.randint(1, 3)):
            changed[dice.randrange(len(changed))] = dice.randrange(256)
        with sqlite3.connect(tmp_path / "a.rec") as connection:
            connection.execute(
                "UPDATE events SET data = ?, crc = ? WHERE moment = ?",
                (bytes(changed), checksum(bytes(changed), moment, 0, 0), moment),
            )
        recording = RecordedTrace(tmp_path / "a.rec")
        try:
            blocks_of(recording, len(recording.moments) - 1)
        except TracellocError as error:
            failed += "\n" not in str(error)
        finally:
            recording.close()
            with sqlite3.connect(tmp_path / "a.rec") as connection:
                connection.execute(
                    "UPDATE events SET data = ?, crc = ? WHERE moment = ?",
                    (data, checksum(data, moment, 0, 0), moment),
                )
    assert failed > 50


def test_absurd_numbers_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.rec")
    events = program(END_S)[0][:100].copy()
    for field, value in (("time_ns", 1 << 63), ("stack_id", 1 << 31)):
        wrong = events.copy()
        wrong[field][50] = value
        data = encode(LoggedEvents(wrong, None))
        with sqlite3.connect(tmp_path / "a.rec") as connection:
            connection.execute(
                "UPDATE events SET data = ?, crc = ? WHERE moment = 3",
                (data, checksum(data, 3, 0, 0)),
            )
        with pytest.raises(TracellocError, match="events"):
            blocks_of(RecordedTrace(tmp_path / "a.rec"), 10)


def test_sizes_need_events(tmp_path: Path) -> None:
    golden = Path(__file__).parents[1] / "data/recordings/v1.rec"
    run = run_tracelloc("report", golden, "--show", "sizes")
    assert run.returncode == 2
    assert "record with --events" in run.stderr
    run = run_tracelloc("report", golden, "--show", "threads")
    assert run.returncode == 2
    assert "recordings hold no per-thread data" in run.stderr
    write(tmp_path / "a.rec")
    run = run_tracelloc("report", tmp_path / "a.rec", "--show", "sizes")
    assert run.returncode == 0, run.stderr
    assert "live blocks by size" in run.stdout


def test_an_empty_row_is_not_written(tmp_path: Path) -> None:
    write(tmp_path / "a.rec")
    with sqlite3.connect(tmp_path / "a.rec") as connection:
        (rows,) = connection.execute("SELECT COUNT(*) FROM events").fetchone()
    assert rows == np.ceil(END_S / 5)
