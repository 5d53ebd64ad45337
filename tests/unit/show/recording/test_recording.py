"""Recordings: what is written comes back, whatever happens to the file and to its writer."""

import itertools
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.blockholders import KEPT
from tests.commands import background, mounted
from tests.corpus.replay import START_NS, events_of, stacks_of
from tests.corpus.streams import churn, poisson, some_leak
from tests.harness import may_mount
from tests.snapshots import snapshot_of, with_facets
from tests.unit.recordedtraces import (
    START_S,
    FakeNames,
    assert_equal,
    namers,
    record,
    recorded_run,
    traces,
)
from tracelloc.command.record import Recorder
from tracelloc.errors import TracellocError
from tracelloc.heap.table import LiveTable
from tracelloc.model.blocks import SuspectHolders
from tracelloc.model.figures import History
from tracelloc.model.verdicts import Verdict
from tracelloc.show.filters import Filters
from tracelloc.show.presentation.naming import Namers
from tracelloc.show.recording import parts
from tracelloc.show.recording.compaction import GROUP
from tracelloc.show.recording.joined import count_words
from tracelloc.show.recording.parts import to_plain
from tracelloc.show.recording.reader import RecordedTrace
from tracelloc.show.recording.writer import RecordingWriter
from tracelloc.show.report.content import ReportStyle
from tracelloc.show.report.sections import trace_report
from tracelloc.snapshots.snapshot import TraceSnapshot
from tracelloc.system.confined import NOBODY
from tracelloc.text import NS_PER_S
from tracelloc.verdict.judge import Judge

END_S = 400.0


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of the made-up program, closed as it should be."""
    path = tmp_path_factory.mktemp("recordings") / "whole.rec"
    record(path, traces(END_S), END_S, {"command": "server"}).close()
    assert [each.name for each in path.parent.iterdir()] == ["whole.rec"]
    return path


def test_blocks_from_before_tracing_are_no_growth(tmp_path: Path) -> None:
    """They are found when samples of the history have been written without them."""
    root = traces(10.0)[-1].root
    ours = History(root.started_ns, root.totals.live_bytes.copy())
    totals = root.totals.copy()
    totals.allocated_bytes[2] += 1 << 30
    every, growths = [], []
    for number, live_bytes in enumerate((root.totals.live_bytes, totals.live_bytes)):
        if number == 1:
            ours.add_before(live_bytes - root.totals.live_bytes)
        growths.append(ours.growth_per_min(root.now_ns, live_bytes))
        one = replace(
            root, time_s=root.time_s + number, history=ours.copy(), growth_per_min=growths[-1],
            totals=totals if number else root.totals,
        )  # fmt: skip
        every.append(TraceSnapshot((one,)))
    recording = record(tmp_path / "earlier.rec", every, 10.0)
    for number, growth in enumerate(growths):
        assert not growth.any()
        assert not recording.trace_at(number).root.growth_per_min.any()


def test_moments_come_back(recorded: Path, tmp_path: Path) -> None:
    recording = RecordedTrace(recorded)
    style = ReportStyle(5, None, frozenset(), has_many=True)
    names = Namers(recording, Filters())
    count = 0
    for index, wanted in enumerate(traces(END_S)):
        found = recording.trace_at(index)
        assert_equal(found, wanted)
        assert recording.moments[index].time_s == wanted.root.time_s
        assert trace_report(found, names, style, {}, ended=True) == trace_report(
            wanted, namers(END_S), style, {}, ended=True
        )
        count += 1
    assert count == len(recording.moments) > GROUP
    assert recording.about == {"command": "server"}
    root = traces(10.0)[-1].root
    every = []
    for holders in ({}, {1: KEPT}):
        one = replace(root, time_s=root.time_s + len(holders))
        every.append(TraceSnapshot((with_facets(one, holders=SuspectHolders(holders)),)))
    recording = record(tmp_path / "held.rec", every, 10.0)
    assert [recording.trace_at(n).root.holders for n in (0, 1)] == [{}, {1: KEPT}]


def test_moments_are_found_by_time_in_any_order(recorded: Path) -> None:
    recording = RecordedTrace(recorded)
    wanted = traces(END_S)
    for index in np.random.default_rng(3).permutation(len(wanted)).tolist()[:30]:
        assert recording.find(START_S + wanted[index].root.time_s - START_S + 0.5) == index
        assert_equal(recording.trace_at(index), wanted[index])
    assert recording.find(0.0) == 0


def test_an_old_moment_is_folded_but_shows_what_it_did(tmp_path: Path) -> None:
    path = tmp_path / "small.rec"
    every = traces(1300.0)
    writer = RecordingWriter(path, max_bytes=5 << 16, max_s=1e9)
    for trace in every:
        writer.add(trace, namers(1300.0))
        assert sum(each.stat().st_size for each in tmp_path.iterdir()) < 5 << 16
    writer.close()
    recording = RecordedTrace(path)
    by_time = {trace.root.time_s: trace for trace in every}
    assert len(recording.moments) < len(every)
    assert path.stat().st_size < 5 << 16
    steps = [moment.step_s for moment in recording.moments]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] > 1 == steps[-1]
    # The present is as it was.
    kept = [moment.time_s for moment in recording.moments[-20:]]
    assert kept == [trace.root.time_s for trace in every[-20:]]
    for index, moment in enumerate(recording.moments):
        assert_equal(recording.trace_at(index), by_time[moment.time_s])


def test_what_is_too_far_back_is_forgotten(tmp_path: Path) -> None:
    every = traces(1300.0)
    recording = record(tmp_path / "short.rec", every, 1300.0, max_s=300.0)
    last_s = every[-1].root.time_s
    # As many as a group has may be left over.
    assert 300.0 <= last_s - recording.moments[0].time_s <= 300.0 + 2 * GROUP * 5


@pytest.mark.long
def test_a_week_is_small_and_has_its_slow_leak(tmp_path: Path) -> None:
    """Looked at each half an hour, and at the end each second, as a recorder does."""
    random, week_s, last_s = np.random.default_rng(5), 7 * 86_400, 200
    busy = [churn(random, poisson(random, 0.015, 0, week_s), 3.0 * n, 100 * n) for n in range(20)]
    busy[0] = some_leak(random, churn(random, poisson(random, 0.1, 0, week_s), 30.0, 500), 0.05)
    events, stacks = events_of(busy, week_s), stacks_of([f"site{n}/main" for n in range(20)])
    table, judge, history = LiveTable(stacks), Judge(), History(START_NS)
    table.cohorts.begin(START_NS)
    names = Namers(FakeNames(defaultdict(str)), Filters())
    writer = RecordingWriter(tmp_path / "week.rec", max_bytes=1 << 20, max_s=week_s)
    ends_s = [*range(1800, week_s - last_s, 1800), *range(week_s - last_s, week_s + 1)]
    times_ns = START_NS + np.array(ends_s, np.int64) * NS_PER_S
    cuts = [0, *np.searchsorted(events["time_ns"], times_ns.astype(np.uint64)).tolist()]
    for end_s, now_ns, (first, last) in zip(
        ends_s, times_ns.tolist(), itertools.pairwise(cuts), strict=True
    ):
        table.apply(events[first:last])
        *_, findings = judge.judge_stacks(table.cohorts, table.totals, stacks, now_ns)
        if history.is_due(now_ns):
            history.sample(now_ns, table.totals.live_bytes.copy())
        more = {"history": history, "started_ns": START_NS, "findings": findings}
        one = snapshot_of(table, now_ns, time_s=START_S + end_s, **more)
        writer.add(TraceSnapshot((one,)), names)
    writer.close()
    assert (tmp_path / "week.rec").stat().st_size <= 1 << 20
    recording = RecordedTrace(tmp_path / "week.rec")
    times_s = [moment.time_s - START_S for moment in recording.moments]
    assert times_s[-60:] == list(range(week_s - 59, week_s + 1))
    assert times_s[0] < 86_400
    for at_s in (3 * 86_400, week_s):
        suspects = recording.trace_at(recording.find(START_S + at_s)).root.findings.suspects
        found = [each for each in suspects if each.judgement.verdict is Verdict.LEAKING]
        assert [each.stack for each in found] == [1]
        assert found[0].judgement.rate_bytes_per_min == pytest.approx(
            0.1 * 0.05 * 60 * 500, rel=0.2
        )


def test_a_copy_is_whole_and_stays_as_it_is(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path / "a.rec", max_bytes=200 << 20, max_s=1e9)
    every = traces(100.0)
    for number, trace in enumerate(every):
        writer.add(trace, namers(100.0))
        if number == 5:
            writer.copy(tmp_path / "copy.rec")
    with pytest.raises(TracellocError, match="exists already"):
        writer.copy(tmp_path / "copy.rec")
    writer.close()
    copy = RecordedTrace(tmp_path / "copy.rec")
    assert len(copy.moments) == 6
    assert_equal(copy.trace_at(5), every[5])
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.rec", "copy.rec"]


def test_other_versions_have_other_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and fields that were not there yet are empty, those that are not known are left out."""
    every = traces(100.0)
    for name in ("totals", "series", "findings"):
        rows = [f"new_{row}" if row in ("remote_count", "rate_bytes_per_min") else row
                for row in parts._ROWS[name]]  # fmt: skip
        monkeypatch.setitem(parts._ROWS, name, rows)
    monkeypatch.setattr(parts, "to_plain", lambda value: _without_confidence(to_plain(value)))
    record(tmp_path / "other.rec", every, 100.0).close()
    monkeypatch.undo()
    found = RecordedTrace(tmp_path / "other.rec").trace_at(len(every) - 1).root
    wanted = every[-1].root
    assert not found.totals.remote_count.any()
    assert found.totals.remote_bytes.tolist() == wanted.totals.remote_bytes.tolist()
    assert found.findings.suspects
    assert not found.findings.sites.rate_bytes_per_min.any()
    assert {suspect.judgement.confidence for suspect in found.findings.suspects} == {0.0}
    stacks = [suspect.stack for suspect in wanted.findings.suspects]
    assert [suspect.stack for suspect in found.findings.suspects] == stacks


def _without_confidence(plain: Any) -> Any:
    if isinstance(plain, list):
        return [_without_confidence(each) for each in plain]
    if isinstance(plain, dict):
        kept = {name: _without_confidence(each) for name, each in plain.items()}
        renamed = kept.pop("confidence", None)
        return kept if renamed is None else kept | {"surety": renamed}
    return plain


_WRITE_ON = """
import sys
import tempfile
from pathlib import Path
from tests.unit.recordedtraces import namers, traces_one_by_one
from tracelloc.show.recording.writer import RecordingWriter
writer = RecordingWriter(Path(sys.argv[1]), max_bytes=5 << 16, max_s=1e9)
for trace in traces_one_by_one(1300.0):
    writer.add(trace, namers(1300.0))
    print(trace.root.time_s, flush=True)
"""


@pytest.mark.parametrize("count", [1, 61, 150])
def test_a_killed_writer_loses_nothing_that_was_written(tmp_path: Path, count: int) -> None:
    """Killed while it writes the next moment, or folds."""
    path = tmp_path / "killed.rec"
    with background(
        sys.executable, "-c", _WRITE_ON, path, stdout=subprocess.PIPE, text=True
    ) as process:
        said = [float(process.stdout.readline()) for _ in range(count)]
    recording = RecordedTrace(path)
    assert said[-1] in [moment.time_s for moment in recording.moments[-2000:]]
    for index in (0, len(recording.moments) // 2, len(recording.moments) - 1):
        recording.trace_at(index)


def test_a_flipped_bit_of_a_moment_is_noticed(recorded: Path, tmp_path: Path) -> None:
    path = tmp_path / "flipped.rec"
    path.write_bytes(recorded.read_bytes())
    with sqlite3.connect(path) as connection:
        (data,) = connection.execute("SELECT data FROM contents WHERE number = 5").fetchone()
        flipped = data[:-1] + bytes([data[-1] ^ 1])
        connection.execute("UPDATE contents SET data = ? WHERE number = 5", (flipped,))
    recording = RecordedTrace(path)
    recording.trace_at(4)
    with pytest.raises(TracellocError, match=r"does not match its checksum.*damaged"):
        recording.trace_at(5)
    recording.trace_at(GROUP)


@pytest.mark.parametrize(
    "change",
    [
        "CREATE VIEW more AS SELECT 1",
        "CREATE TRIGGER more AFTER INSERT ON moments BEGIN SELECT 1; END",
        "DROP TABLE names",
        "PRAGMA user_version = 2",
        "DELETE FROM moments",
        "UPDATE moments SET whole = 'x' WHERE number = 3",
    ],
)
def test_other_databases_are_refused(recorded: Path, tmp_path: Path, change: str) -> None:
    path = tmp_path / "other.rec"
    path.write_bytes(recorded.read_bytes())
    with sqlite3.connect(path) as connection:
        connection.execute(change)
    with pytest.raises(TracellocError, match=r"other\.rec"):
        RecordedTrace(path)


def test_a_file_that_is_there_is_left_alone(recorded: Path, tmp_path: Path) -> None:
    before = recorded.read_bytes()
    with pytest.raises(TracellocError, match="exists already"):
        RecordingWriter(recorded, max_bytes=1 << 20, max_s=1.0)
    assert recorded.read_bytes() == before
    with pytest.raises(TracellocError, match="is no recording"):
        RecordedTrace(Path(__file__))
    with pytest.raises(TracellocError, match="No such file"):
        RecordedTrace(tmp_path / "none.rec")


def test_each_new_leak_cuts_a_copy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    every = iter(traces(100.0))
    watch = SimpleNamespace(has_rules=True, leak_count=0)
    run = recorded_run(every, 100.0, watch=watch, check_rules=lambda _trace: False)
    recorder = Recorder(tmp_path / "a.rec", 200 << 20, 1e9)
    writer = recorder._begin(run)
    copies = []
    for leaks in (0, 2, 2):
        watch.leak_count = leaks
        recorder._tick(run)
        copies.append(len(list(tmp_path.glob("a-*.rec"))))
    writer.close()
    assert copies == [0, 1, 1]
    assert capsys.readouterr().err.count("copied to") == 1
    (copy,) = tmp_path.glob("a-*.rec")
    assert len(RecordedTrace(copy).moments) == 2


def test_missed_snapshots_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of ten seconds, one snapshot takes 3.5 s; the process gets no time for two more."""
    every = iter(traces(100.0))
    now_s = [1000.0]
    took_s = iter([0.1, 3.5, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1])

    def take(*_: object) -> TraceSnapshot:
        now_s[0] += next(took_s)
        return next(every)

    def wait(until_s: float) -> bool:
        now_s[0] = max(now_s[0], until_s if until_s != 1007.0 else 1009.5)
        return False

    snapshots, signals = SimpleNamespace(take_snapshot=take), SimpleNamespace(is_ending=False)
    run = recorded_run(every, 100.0, snapshots=snapshots, signals=signals, wait=wait)
    recorder = Recorder(tmp_path / "a.rec", 200 << 20, 1e9)
    recorder._begin(run)
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    recorder._record(run)
    recorder.finish(run, next(every))
    monkeypatch.undo()
    assert "(4 missed)" in capsys.readouterr().err
    recording = RecordedTrace(tmp_path / "a.rec")
    assert count_words(recording) == f"{len(recording.moments)} snapshots, 4 missed"
    # One each second, and the last one.
    assert len(recording.moments) == 10 - 4 + 1
    assert recording.about["missed"] == "4"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has rights that others don't have")
def test_nothing_is_written_to_what_others_have_linked_beside_a_recording(recorded: Path) -> None:
    """Neither by who reads another user's recording, nor by who begins one."""
    with tempfile.TemporaryDirectory() as name:
        directory, victim = Path(name), Path(name) / "victim"
        directory.chmod(0o755)
        content = b"precious\n" * 8000
        victim.write_bytes(content)
        path = directory / "a.rec"
        data = bytearray(recorded.read_bytes())
        data[18:20] = b"\2\2"  # There may be a log beside it.
        path.write_bytes(data)
        Path(f"{path}-wal").write_bytes(b"")
        Path(f"{path}-shm").hardlink_to(victim)
        for each in (directory, path, Path(f"{path}-wal")):
            os.chown(each, NOBODY, NOBODY)
        recording = RecordedTrace(path)
        recording.trace_at(0)
        recording.close()
        assert (victim.read_bytes(), victim.stat().st_uid) == (content, 0)
        other = directory / "b.rec"
        Path(f"{other}-shm").hardlink_to(victim)
        with pytest.raises(TracellocError, match=r"b\.rec-shm exists already"):
            RecordingWriter(other, max_bytes=1 << 30, max_s=1e9)
        assert (victim.read_bytes(), victim.stat().st_uid) == (content, 0)


@pytest.mark.skipif(not may_mount(), reason="mounting is refused")
def test_a_target_that_can_not_be_written_is_refused(tmp_path: Path) -> None:
    anybodys = tmp_path / "anybodys"
    anybodys.mkdir()
    anybodys.chmod(0o777)
    taken = tmp_path / "taken.rec-wal"
    taken.write_text("mine")
    with (
        mounted(tmp_path / "readonly", "ro") as readonly,
        mounted(tmp_path / "full", "size=16k") as full,
    ):
        for path, said in (
            (tmp_path / "missing/a.rec", "cannot be written: No such file or directory"),
            (readonly / "a.rec", "cannot be written: Read-only file system"),
            (full / "a.rec", "cannot be written: the file system is full"),
            (anybodys / "a.rec", "cannot be written: other users can change its directory"),
            (tmp_path / "taken.rec", "taken.rec-wal exists already"),
        ):
            with pytest.raises(TracellocError, match=said) as caught:
                Recorder(path, 200 << 20, 1e9)
            assert "\n" not in str(caught.value)
        assert not [*readonly.iterdir(), *full.iterdir(), *anybodys.iterdir()]
    Recorder(tmp_path / "fine.rec", 200 << 20, 1e9).close()
    assert [each.name for each in tmp_path.glob("*.rec*")] == ["taken.rec-wal"]
    assert taken.read_text() == "mine"


def test_an_early_reader_does_no_harm(tmp_path: Path) -> None:
    """The file exists before its first snapshot, and readers create SQLite's other files."""
    path = tmp_path / "a.rec"
    recorder = Recorder(path, 200 << 20, 1e9)
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as file:
        assert file.execute("SELECT count(*) FROM moments").fetchone() == (0,)
        assert recorder._begin(recorded_run(iter([]), 100.0)).path == path
        recorder.close()
    assert not path.exists()


def add_all(writer: RecordingWriter, every: Iterable[TraceSnapshot]) -> None:
    for trace in every:
        writer.add(trace, namers(1300.0))


def test_a_reader_that_is_stopped_ends_the_recording_at_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    every = iter(traces(1300.0))
    writer = RecordingWriter(path, max_bytes=5 << 16, max_s=1e9)
    writer._connection.execute("PRAGMA busy_timeout = 10")
    writer.add(next(every), namers(1300.0))
    recording = RecordedTrace(path)
    with recording.reading() as connection:
        connection.execute("SELECT * FROM about").fetchall()
        with pytest.raises(TracellocError, match="a stopped reader keeps it from emptying"):
            add_all(writer, every)
    assert sum(each.stat().st_size for each in tmp_path.iterdir()) < 6 << 16
    writer.close()
    recording.reload()
    assert len(recording.moments) == writer.count > 1


@pytest.mark.skipif(not may_mount(), reason="mounting is refused")
@pytest.mark.parametrize("is_filled", [False, True], ids=["by it", "by others"])
def test_a_full_disk_leaves_what_is_recorded(tmp_path: Path, is_filled: bool) -> None:
    with mounted(tmp_path / "disk", "size=512k") as disk:
        path = disk / "a.rec"
        writer = RecordingWriter(path, max_bytes=200 << 20, max_s=1e9)
        said = "the file system is full$" if is_filled else "the file system is full, .* left; what"
        every = iter(traces(1300.0))
        if is_filled:
            add_all(writer, itertools.islice(every, 5))
            with suppress(OSError):
                (disk / "other").write_bytes(bytes(512 << 10))
        with pytest.raises(TracellocError, match=said) as caught:
            add_all(writer, every)
        assert "\n" not in str(caught.value)
        writer.close()
        recording = RecordedTrace(path)
        assert len(recording.moments) == writer.count >= 5
        for index in (0, writer.count - 1):
            assert_equal(recording.trace_at(index), traces(1300.0)[index])
        recording.close()
        if not is_filled:
            assert [each.name for each in disk.iterdir()] == ["a.rec"]
