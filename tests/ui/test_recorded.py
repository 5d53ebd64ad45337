"""The screen of a recording: its time line, and every view as of any moment."""

import asyncio
import math
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from tests.ui.screens import Size, compare, text_of
from tests.ui.source import live, on_live_screen, press, settle, tick
from tests.unit.recordedtraces import namers, traces
from tracelloc.model.codefiles import Unresolved
from tracelloc.model.figures import History, Totals
from tracelloc.model.process import ALL_PROCESSES
from tracelloc.show.analysis.merge import TraceMerger
from tracelloc.show.filters import Filters
from tracelloc.show.presentation.naming import Namers
from tracelloc.show.recording.reader import RecordedTrace
from tracelloc.show.recording.writer import RecordingWriter
from tracelloc.snapshots.snapshot import TraceSnapshot
from tracelloc.text import NS_PER_S, format_size
from tracelloc.ui.app import LiveApp
from tracelloc.ui.player import RecordedSource
from tracelloc.ui.plot import BEHIND, LABELS

END_S = 400.0
LAST = int(END_S) // 5 - 1  # Number of the last of the recorded moments


@pytest.fixture(autouse=True)
def universal_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Clock times are the same everywhere."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recordings") / "server.rec"
    assert len(traces(END_S)) == LAST + 1
    write(path, traces(END_S)).close()
    return path


def write(path: Path, all_traces: list[TraceSnapshot]) -> RecordingWriter:
    writer = RecordingWriter(path, max_bytes=200 << 20, max_s=1e9)
    for trace in all_traces:
        writer.add(trace, namers(END_S))
    return writer


def source_of(path: Path) -> RecordedSource:
    recording = RecordedTrace(path)
    return RecordedSource(recording, Namers(recording, Filters()))


@pytest.fixture
def source(recorded: Path) -> RecordedSource:
    return source_of(recorded)


KEYS = {
    "[": "left_square_bracket", "]": "right_square_bracket", "{": "left_curly_bracket",
    "}": "right_curly_bracket", "(": "left_parenthesis", ")": "right_parenthesis", "@": "at",
}  # fmt: skip


async def go(app: LiveApp, pilot: Pilot[int], keys: str) -> None:
    """Presses keys that are characters."""
    await press(app, pilot, *(KEYS.get(key, key) for key in keys))


def shown(app: LiveApp) -> int:
    """Index of the moment on the screen."""
    line = app.state.picture.line
    wanted = traces(END_S)[line.index].root
    assert (
        app.state.picture.snapshot.totals.live_bytes.tolist() == wanted.totals.live_bytes.tolist()
    )
    assert f"Heap {format_size(wanted.live_bytes):>8}" in "\n".join(text_of(app)[:2])
    return line.index


@on_live_screen()
async def test_moments_by_keys_and_times(app: LiveApp, pilot: Pilot[int]) -> None:
    assert shown(app) == LAST
    assert "end, 22:20:00" in text_of(app)[0]
    for keys, index in (
        ("[", LAST - 1), ("[[", LAST - 3), ("]", LAST - 2), ("]]]]", LAST), ("(", 0), ("[", 0),
        ("]", 1), ("}", 5), ("{", 1), ("{{", 0), ("}}}", 12), (")", LAST), ("}", LAST),
    ):  # fmt: skip
        await go(app, pilot, keys)
        assert shown(app) == index, keys
    await go(app, pilot, "(")
    assert " at 22:13:25 " in text_of(app)[0]
    # All of the curve is there to go back to, with the moment marked on it.
    assert any("┆22:13:25" in line for line in text_of(app)[2:9])
    assert "█" in text_of(app)[7]
    for text, index in (("22:14", 7), ("+10s", 2), ("-5s", LAST - 1)):
        await go(app, pilot, "@")
        app.screen.query_one(Input).value = text
        await press(app, pilot, "enter")
        assert shown(app) == index, text
    await go(app, pilot, "@")
    app.screen.query_one(Input).value = "23:00"
    await press(app, pilot, "enter")
    assert "23:00 is not recorded" in "\n".join(text_of(app))
    await press(app, pilot, "escape")
    await pilot.click("#plot", offset=(LABELS + 50, 3))
    await settle(app, pilot)
    assert abs(shown(app) - LAST // 2) <= 3
    await go(app, pilot, "(}){")
    index = shown(app)
    before, now = (traces(END_S)[at].root for at in (index - 1, index))
    made = int(now.totals.allocated_count.sum() - before.totals.allocated_count.sum())
    seconds = (now.now_ns - before.now_ns) / NS_PER_S
    assert app.state.picture.header.allocations_per_s == pytest.approx(made / seconds)


@pytest.mark.parametrize("size", [(120, 40), (80, 24), (60, 20)])
@on_live_screen()
async def test_it_looks_as_it_should(app: LiveApp, pilot: Pilot[int], size: Size) -> None:
    await go(app, pilot, "{{{{")
    await compare("recorded", app, pilot)


@on_live_screen()
async def test_two_moments_are_compared(app: LiveApp, pilot: Pilot[int]) -> None:
    await go(app, pilot, "(x")
    assert "22:13:25 set start: ← → Enter" in text_of(app)[2], "the cursor is at what is shown"
    await press(app, pilot, "right", "home", "enter", "end", "enter")
    assert app.state.settings.difference.title() == "22:13:25 → 22:20:00"
    first, last = (traces(END_S)[index].root.totals.live_bytes for index in (0, LAST))
    grown = last.copy()
    grown[: len(first)] -= first
    text = "\n".join(text_of(app))
    assert "change 22:13:25 → 22:20:00" in text
    assert f"+{format_size(int(grown.max()))}" in text
    await press(app, pilot, "escape")
    assert app.state.settings.difference is None
    # The same by marks.
    await go(app, pilot, "(M)d")
    assert "change m1 → 22:20:00" in "\n".join(text_of(app))
    assert f"+{format_size(int(grown.max()))}" in "\n".join(text_of(app))


async def test_it_plays_to_the_end(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracelloc.ui.player.PLAY_S", 0.03)
    async with live(source_of(recorded)) as (app, pilot):
        app.simulate_key("space")
        seen = set()
        for _ in range(5000):
            await asyncio.sleep(0.005)
            seen |= set(re.findall(r"▶ (22:1\d:\d\d)", text_of(app)[0]))
            if len(seen) > 5 and "end, 22:20:00" in text_of(app)[0]:
                break
        await settle(app, pilot)
        assert shown(app) == LAST
        # Playback must not reach the end on a slow machine: the next key would start it again.
        monkeypatch.setattr("tracelloc.ui.player.PLAY_S", 3600)
        await go(app, pilot, "[[[")
        await press(app, pilot, "space", "space")
        assert shown(app) == LAST - 3
        assert " at " in text_of(app)[0]


async def test_it_is_watched_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "growing.rec"
    writer = write(path, traces(END_S)[:20])
    async with live(source_of(path)) as (app, pilot):
        assert shown(app) == 19
        assert "newest, " in text_of(app)[0]
        writer.add(traces(END_S)[20], namers(END_S))
        await tick(app, pilot)
        assert shown(app) == 20
        await go(app, pilot, "(]")
        for trace in traces(END_S)[21:]:
            writer.add(trace, namers(END_S))
        await tick(app, pilot)
        assert shown(app) == 1
        await go(app, pilot, ")")
        assert shown(app) == LAST
    writer.close()


@on_live_screen()
async def test_every_view_shows_the_moment(app: LiveApp, pilot: Pilot[int]) -> None:
    names = [view.name for view in app.state.views]
    assert not {"sizes", "ages", "threads", "output"} & set(names)
    await go(app, pilot, "(}}")
    index = shown(app)
    for view in app.state.views:
        await press(app, pilot, view.key)
        assert app.state.settings.view is view
    await press(app, pilot, "2")
    largest = traces(END_S)[index].root.top_blocks.largest
    text = "\n".join(text_of(app))
    assert all(f"0x{block.address:x}" in text for block in largest)
    assert "ten largest blocks" in text
    await press(app, pilot, "1", "enter")
    assert " at 22:14:05" in "\n".join(text_of(app))
    await press(app, pilot, "escape")
    # What needs blocks or the process does nothing.
    before = app.state.settings
    await press(app, pilot, "b", "L", "m", "P", "greater_than_sign")
    assert app.state.settings == before
    assert len(app.screen_stack) == 1


async def test_gaps_between_snapshots_are_gaps_of_the_curves(tmp_path: Path) -> None:
    """A quarter of the recording has no snapshots."""
    every = traces(END_S)
    first, last = LAST // 2, 3 * LAST // 4
    write(tmp_path / "gap.rec", [*every[: first + 1], *every[last:]]).close()
    async with live(source_of(tmp_path / "gap.rec")) as (app, pilot):
        columns = app.size.width - LABELS - BEHIND
        start_ns, end_ns = every[-1].root.started_ns, every[-1].root.now_ns
        begin, end = (
            (every[index].root.now_ns - start_ns) * columns / (end_ns - start_ns)
            for index in (first, last)
        )
        for key, number in (("1", 0), ("C", 1)):
            await go(app, pilot, key)
            text = [line.ljust(app.size.width) for line in text_of(app)]
            axis = [at for at, line in enumerate(text) if "0┼" in line][number]
            drawn = [line[LABELS:-BEHIND] for line in text[axis - 3 : axis]]
            blank = [x for x in range(20, 90) if all(line[x] == " " for line in drawn)]
            # Each column shows the time at its end; the second chart begins with the history.
            assert blank == list(range(math.floor(begin) - number, math.ceil(end) - 1 - number)), (
                key
            )


async def test_who_recorded_it(tmp_path: Path) -> None:
    path = tmp_path / "other.rec"
    trace = traces(10.0)[0]
    root = replace(trace.root, target=replace(trace.root.target, machine="arm64"))
    writer = write(path, [replace(trace, processes=(root,))])
    writer.describe({"host": "box", "version": "1.2"})
    writer.close()
    async with live(source_of(path)) as (app, pilot):
        await go(app, pilot, next(view.key for view in app.state.views if view.name == "log"))
        assert "by tracelloc 1.2 on box (arm64) in" in "\n".join(text_of(app))


async def test_processes_are_summed_as_of_the_moment(tmp_path: Path) -> None:
    """A child ends half-way: earlier on it runs, whichever way one comes."""
    every = []
    for index, trace in enumerate(traces(END_S)):
        child = trace.processes[1] if index < LAST // 2 else traces(END_S)[LAST // 2].processes[1]
        target = replace(child.target, has_ended=index >= LAST // 2)
        every.append(replace(trace, processes=(trace.root, replace(child, target=target))))
    path = tmp_path / "child.rec"
    write(path, every).close()
    async with live(source_of(path)) as (app, pilot):
        await press(app, pilot, "T")
        assert app.state.settings.process == ALL_PROCESSES
        for keys, index in ((")", LAST), ("(", 0), ("}", 4), (")", LAST), ("{{", LAST - 8)):
            await go(app, pilot, keys)
            picture = app.state.picture
            merger = TraceMerger(lambda _target, _address: Unresolved.UNMAPPED)
            wanted = merger.merge(every[index])
            assert picture.snapshot.live_bytes == wanted.live_bytes, keys
            assert picture.snapshot.merged == wanted.merged


async def test_rows_of_later_stacks_go(tmp_path: Path) -> None:
    """Rows stay where they are after a key, also those of stacks that were not there then."""
    first, last = traces(END_S)[0], traces(END_S)[LAST].root
    none = replace(first.root, totals=Totals.empty(1), growth_per_min=np.zeros(1, np.int64))
    none = replace(
        none, history=History(none.started_ns), findings=None, peak=None, live_history=()
    )
    path = tmp_path / "few.rec"
    write(path, [TraceSnapshot((none,)), TraceSnapshot((last,))]).close()
    async with live(source_of(path)) as (app, pilot):
        for view in app.state.views:
            await press(app, pilot, view.key, "down")
            await go(app, pilot, "(")
            assert app.state.picture.snapshot.live_bytes == 0
            await go(app, pilot, ")")
        assert app.state.picture.snapshot.live_bytes == last.live_bytes
