"""Several recordings as one: side by side, one after the other, by different clocks."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.harness import run_tracelloc
from tests.unit.recordedtraces import assert_equal, record, traces
from tracelloc.errors import UsageError
from tracelloc.model.process import Space
from tracelloc.show.analysis.merge import TraceMerger
from tracelloc.show.filters import Filters
from tracelloc.show.presentation.naming import Namers, frame_name
from tracelloc.show.recording.joined import JoinedTraces, _by_clock, open_recordings
from tracelloc.show.recording.reader import RecordedTrace
from tracelloc.snapshots.snapshot import TraceSnapshot
from tracelloc.text import NS_PER_S

END_S = 100.0


def write(path: Path, every: list[TraceSnapshot], host: str = "here") -> Path:
    record(path, every, END_S, {"host": host}).close()
    return path


def later(trace: TraceSnapshot, seconds: float) -> TraceSnapshot:
    """The trace by a clock that is ahead, at the same time of day."""
    ones = tuple(_by_clock(one, round(seconds * NS_PER_S)) for one in trace.processes)
    return replace(trace, processes=ones)


def one_process(trace: TraceSnapshot) -> TraceSnapshot:
    return replace(trace, processes=trace.processes[:1])


def test_each_is_as_of_the_moment(tmp_path: Path) -> None:
    every = traces(END_S)
    first = write(tmp_path / "first.rec", every[:8])
    second = write(tmp_path / "second.rec", [one_process(each) for each in every[4:]])
    joined = open_recordings([second, first])
    assert len(joined.moments) == 8 + len(every) - 4
    names = Namers(joined, Filters())
    for index, moment in enumerate(joined.moments):
        trace = joined.trace_at(index)
        assert joined.find_uptime(moment.uptime_s) >= index
        at = round(moment.uptime_s - every[0].root.now_ns / NS_PER_S) // 5
        live = [one.live_bytes for one in trace.processes]
        here = every[at].root.live_bytes
        early = every[min(at, 7)].root.live_bytes
        assert live == ([early, early] if at < 4 else [early, early, here])
        assert trace.processes[0].target.has_ended == (at > 7)
        for one in trace.processes:
            stack = names.namer_of(one.target).stack(one, 1)
            assert frame_name(stack.frames[0]) == "record_request"
    merger = TraceMerger(lambda target, at: joined.symbols_of(target.number).place(at))
    last = joined.trace_at(len(joined.moments) - 1)
    assert merger.merge(last).live_bytes == sum(one.live_bytes for one in last.processes)


def test_other_clocks_are_moved(tmp_path: Path) -> None:
    every = [one_process(each) for each in traces(END_S)]
    here = write(tmp_path / "here.rec", every)
    there = write(tmp_path / "there.rec", [later(each, 12_345.5) for each in every], "there")
    joined = open_recordings([here, there])
    assert isinstance(joined, JoinedTraces)
    one, other = joined.trace_at(len(joined.moments) - 1).processes
    assert_equal(other, replace(every[-1].root, target=other.target))
    assert_equal(one, replace(every[-1].root, target=one.target))
    assert np.array_equal([m.uptime_s for m in joined.moments][::2],
                          [each.root.now_ns / NS_PER_S for each in every])  # fmt: skip


def test_merge_writes_what_open_shows(tmp_path: Path) -> None:
    every = traces(END_S)
    first = write(tmp_path / "first.rec", every[:8])
    second = write(tmp_path / "second.rec", every[4:])
    whole = tmp_path / "whole.rec"
    run_tracelloc("merge", first, second, "-o", whole, status=0)
    joined, merged = open_recordings([first, second]), RecordedTrace(whole)
    assert len(merged.moments) == len(joined.moments)
    for index in range(len(joined.moments)):
        assert_equal(merged.trace_at(index), joined.trace_at(index))
    names = Namers(merged, Filters())
    one = merged.trace_at(0).root
    assert frame_name(names.namer_of(one.target).stack(one, 1).frames[0]) == "record_request"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["first.rec", "-o", "new.rec"], "two recordings at least"),
        (["first.rec", "first.rec", "-o", "first.rec"], "exists already"),
        (["first.rec", "none.rec", "-o", "new.rec"], "No such file"),
        (["first.rec", "first.rec"], "required: -o"),
    ],
)
def test_what_can_not_be_merged_is_one_line(tmp_path: Path, words: list[str], said: str) -> None:
    write(tmp_path / "first.rec", traces(END_S)[:2])
    paths = [word if word.startswith("-") else tmp_path / word for word in words]
    run = run_tracelloc("merge", *paths)
    assert run.returncode, run.stderr
    assert said in run.stderr
    assert len(run.stderr.splitlines()) == 1
    assert not (tmp_path / "new.rec").exists()


def test_memory_of_gpus_is_not_added(tmp_path: Path) -> None:
    every = [one_process(each) for each in traces(END_S)[:2]]
    found = tuple(replace(each, space=Space.GPU) for each in every[0].root.allocators)
    gpu = [replace(each, processes=(replace(each.root, allocators=found),)) for each in every]
    paths = [write(tmp_path / "host.rec", every), write(tmp_path / "gpu.rec", gpu)]
    assert open_recordings(paths[1:]).trace_at(0).root.space is Space.GPU
    with pytest.raises(UsageError, match="can't be one sum"):
        open_recordings(paths).trace_at(0)
