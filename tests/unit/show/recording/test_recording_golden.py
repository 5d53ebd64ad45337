"""Recordings of every version of the format open for ever, and show what they did.

``tests/data/recordings/vN.rec`` was written by the first program of that version; v2 has a table of
all events, which is not read any more. With
TRACELLOC_UPDATE_RECORDINGS set, what it shows is written instead of compared; a file of a new
version is made by ``python -m tests.unit.show.recording.test_recording_golden``.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from pathlib import Path

import pytest

from tests.harness import DATA
from tests.unit.recordedtraces import record, traces
from tracelloc.show.filters import Filters
from tracelloc.show.presentation.naming import Namer, Namers, frame_name
from tracelloc.show.recording.container import VERSION
from tracelloc.show.recording.reader import RecordedTrace
from tracelloc.snapshots.snapshot import Snapshot

RECORDINGS = DATA / "recordings"
END_S = 640.0


def write(path: Path, max_bytes: int) -> None:
    """The made-up program."""
    about = {"command": "server", "version": "0", "host": "here", "pid": "42"}
    record(path, traces(END_S), END_S, about, max_bytes=max_bytes).close()


def listed(recording: RecordedTrace) -> str:
    """What it is of, and its moments."""
    lines = [f"{sorted(recording.about.items())}"]
    lines += [f"{m.number} {m.time_s} {m.uptime_s} {m.step_s}" for m in recording.moments]
    return "\n".join(lines) + "\n\n"


def shown(recording: RecordedTrace, uptimes_s: Sequence[float]) -> str:
    """The figures of some moments, not how reports put them."""
    lines = []
    for uptime_s in uptimes_s:
        trace = recording.trace_as_of(uptime_s)
        lines.append(f"{uptime_s}: {trace.follow.forks} forks, {trace.untraced_count} not traced")
        for one in trace.processes:
            lines += figures(one, Namers(recording, Filters()).namer_of(one.target))
    return "\n".join(lines) + "\n"


def some_of(recording: RecordedTrace) -> list[float]:
    """Times of some moments, the first and the last among them."""
    last = len(recording.moments) - 1
    return [recording.moments[index].uptime_s for index in (0, last // 3, last // 2, last)]


def figures(one: Snapshot, namer: Namer) -> Iterator[str]:
    """What a process held, per stack, and what leaks."""
    target, memory = one.target, one.memory
    yield f"{target.pid} {target.command!r} {target.number} {target.has_ended} {one.events} events"
    yield f"  {one.elapsed_ns} ns, RSS {one.rss_bytes}, {memory.now.anonymous}, {one.losses.events}"
    for stat in one.top_stacks(freed=True):
        names = [frame_name(frame) for frame in namer.stack(one, stat.index).frames]
        held = one.history.series(stat.index)[1]
        yield f"  {' < '.join(names)}: {astuple(stat)} {held}"
    for block in one.top_blocks.largest:
        yield f"  {block.address:x} {block.size_bytes} {block.age_ns} {block.stack}"
    for suspect in () if one.findings is None else one.findings.suspects:
        found, members = suspect.judgement, [member.stack for member in suspect.members]
        rate, sure = f"{found.rate_bytes_per_min:.6g}", f"{found.confidence:.4f}"
        yield f"  {found.verdict.value} {members} {rate} bytes/min {sure} since {found.since_ns}"


@pytest.mark.parametrize("path", sorted(RECORDINGS.glob("*.rec")), ids=lambda path: path.stem)
def test_old_recordings_show_what_they_did(path: Path, tmp_path: Path) -> None:
    # Opened where nothing can be written beside it as well as where it can.
    copy = tmp_path / path.name
    shutil.copy(path, copy)
    recording = RecordedTrace(copy)
    found = listed(recording) + shown(recording, some_of(recording))
    recording.close()
    golden = path.with_suffix(".txt")
    if os.environ.get("TRACELLOC_UPDATE_RECORDINGS"):
        golden.write_text(found)
    assert found == golden.read_text()
    assert sorted(each.name for each in tmp_path.iterdir()) == [path.name]


def test_the_same_program_gives_the_same_figures(tmp_path: Path) -> None:
    """Events through table, verdicts, recording and names, by an injected clock."""
    golden = RecordedTrace(RECORDINGS / f"v{VERSION}.rec")
    times = some_of(golden)
    golden.close()
    write(tmp_path / "now.rec", 100 << 20)
    found = shown(RecordedTrace(tmp_path / "now.rec"), times)
    figures_then = RECORDINGS / "figures.txt"
    if os.environ.get("TRACELLOC_UPDATE_RECORDINGS"):
        figures_then.write_text(found)
    assert found == figures_then.read_text()


if __name__ == "__main__":
    RECORDINGS.mkdir(exist_ok=True)
    # Its first moments are folded.
    path = RECORDINGS / f"v{VERSION}.rec"
    if not path.exists():
        write(path, 100 << 10)
