"""Recordings that keep every event: which blocks were outstanding at each moment."""

import random
import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.harness import run_tracelloc
from tests.unit.recordedtraces import program, record, recorded_run, traces_with_events
from tracelloc.command.record import Recorder
from tracelloc.command.recordoptions import RecordOptions
from tracelloc.errors import TracellocError
from tracelloc.heap import eventlog
from tracelloc.model.blocks import Blocks, LoggedEvents
from tracelloc.show.recording import events
from tracelloc.show.recording.container import checksum
from tracelloc.show.recording.events import encode
from tracelloc.show.recording.reader import RecordedTrace
from tracelloc.show.recording.replay import blocks_since_s, with_blocks
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import format_time

END_S = 120.0


def by_address(blocks: Blocks) -> list[tuple[int, ...]]:
    return sorted(zip(*(column.tolist() for column in blocks.columns()), strict=True))


def write(path: Path, max_bytes: int = 200 << 20) -> list[Snapshot]:
    """Records the made-up program with its events. Returns the snapshots, with their blocks."""
    every = [replace(each, processes=each.processes[:1]) for each in traces_with_events(END_S)]
    # It has ended: the same once more.
    record(path, [*every, every[-1]], END_S, max_bytes=max_bytes, events=True).close()
    return [each.root for each in every]


def blocks_of(recording: RecordedTrace, index: int) -> Blocks | None:
    return with_blocks(recording, index, recording.trace_at(index)).root.blocks


def sum_of_events(path: Path, what: str) -> int:
    """What SQL says of all rows of events."""
    with sqlite3.connect(path) as connection:
        (found,) = connection.execute(f"SELECT {what} FROM events").fetchone()
    return found


def put_events(path: Path, moment: int, data: bytes) -> None:
    """Replaces a moment's events; the checksum is right."""
    with sqlite3.connect(path) as connection:
        connection.execute(
            "UPDATE events SET data = ?, crc = ? WHERE moment = ?",
            (data, checksum(data, moment, 0, 0), moment),
        )


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
    whole = sum_of_events(tmp_path / "a.rec", "SUM(is_whole)")
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
    run = run_tracelloc("report", tmp_path / "a.rec", "--at", "+0s", "--show", "sizes", status=2)
    assert f"the recorded events begin at {format_time(since_s)}; choose a later" in run.stderr
    assert sum_of_events(tmp_path / "a.rec", "SUM(LENGTH(data))") <= 70 << 10


def test_it_is_said_when_events_do_not_reach_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(eventlog, "_LEAST", 300)
    monkeypatch.setattr(events, "_SHARE", 4)
    every = [replace(each, processes=each.processes[:1]) for each in traces_with_events(END_S)]
    run = recorded_run(iter(every), END_S)
    recorder = Recorder(RecordOptions(tmp_path / "a.rec", 280 << 10, 1e9, events=True))
    recorder._begin(run)
    said = []
    for _ in every[:-1]:
        recorder._tick(run)
        said.append("half of --max-size" in capsys.readouterr().err)
    recorder.finish(run, every[-1])
    recording = RecordedTrace(tmp_path / "a.rec")
    since_s = blocks_since_s(recording)
    assert since_s > recording.moments[0].time_s
    assert said.count(True) == 1
    assert f", events since {format_time(since_s)[11:]}" in capsys.readouterr().err


def test_an_event_takes_few_bytes(tmp_path: Path) -> None:
    write(tmp_path / "a.rec")
    size = sum_of_events(tmp_path / "a.rec", "SUM(LENGTH(data))")
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
        put_events(tmp_path / "a.rec", moment, bytes(changed))
        recording = RecordedTrace(tmp_path / "a.rec")
        try:
            blocks_of(recording, len(recording.moments) - 1)
        except TracellocError as error:
            failed += "\n" not in str(error)
        finally:
            recording.close()
            put_events(tmp_path / "a.rec", moment, data)
    assert failed > 50


def test_absurd_numbers_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.rec")
    events = program(END_S)[0][:100].copy()
    for field, value in (("time_ns", 1 << 63), ("stack_id", 1 << 31)):
        wrong = events.copy()
        wrong[field][50] = value
        put_events(tmp_path / "a.rec", 3, encode(LoggedEvents(wrong, None)))
        with pytest.raises(TracellocError, match="events"):
            blocks_of(RecordedTrace(tmp_path / "a.rec"), 10)


def test_sizes_need_events(tmp_path: Path) -> None:
    golden = Path(__file__).parents[1] / "data/recordings/v1.rec"
    run = run_tracelloc("report", golden, "--show", "sizes", status=2)
    assert "record with --events" in run.stderr
    run = run_tracelloc("report", golden, "--show", "threads", status=2)
    assert "recordings hold no per-thread data" in run.stderr
    write(tmp_path / "a.rec")
    run = run_tracelloc("report", tmp_path / "a.rec", "--show", "sizes", status=0)
    assert "live blocks by size" in run.stdout


def test_an_empty_row_is_not_written(tmp_path: Path) -> None:
    write(tmp_path / "a.rec")
    assert sum_of_events(tmp_path / "a.rec", "COUNT(*)") == np.ceil(END_S / 5)
