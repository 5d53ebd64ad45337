"""The screen of several processes together: every view shows the sums of theirs."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from textual.pilot import Pilot

from tests.ui.screens import text_of
from tests.ui.source import (
    CACHE,
    LEAK,
    LIVE,
    STACKS,
    FakeSource,
    live,
    on_live_screen,
    press,
    shop,
    tick,
)
from tests.unit.leaks import watched
from tracelloc.model.process import ALL_PROCESSES, RUNNING_PROCESSES, Target
from tracelloc.model.snapshotrequest import SnapshotRequest
from tracelloc.show.presentation.profile import Metric
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import format_size
from tracelloc.ui.app import LiveApp
from tracelloc.ui.picture import Picture
from tracelloc.ui.processview import process_lines
from tracelloc.ui.state import VIEWS, State
from tracelloc.ui.tableview import Table
from tracelloc.ui.view import Settings

SIZE = (140, 40)
EVERYTHING = SnapshotRequest(blocks=True, threads=True)
MIB = 1 << 20


def worker(directory: Path, number: int, blocks: int, *, ended: bool = False) -> Snapshot:
    """Holds so many blocks of 1,000 bytes where the server leaks."""
    source = FakeSource(STACKS, directory)
    source.now_ns += 100 * 10**9
    source.allocate_many(LEAK, 1000, blocks, tid=4000 + number)
    source.allocate(CACHE, 7, tid=4000 + number)
    source.now_ns += 20 * 10**9
    one = source.snapshot(SnapshotRequest() if ended else EVERYTHING)
    target = Target(4000 + number, "worker", 2954, number=number, has_ended=ended)
    return replace(
        one, target=target, rss_bytes=None if ended else 9 * MIB, findings=None,
        thread_names={4000 + number: f"mine-{number}"},
    )  # fmt: skip


@pytest.fixture
def source(tmp_path: Path) -> FakeSource:
    """A server with two workers that run, and three that have ended."""
    source = shop(tmp_path)
    source.has_many = True
    source.others = (
        worker(tmp_path, 1, 50),
        worker(tmp_path, 2, 30, ended=True),
        worker(tmp_path, 3, 20),
        worker(tmp_path, 4, 10, ended=True),
        worker(tmp_path, 5, 10, ended=True),
    )
    return source


RUNNING_LEAK = LIVE["record_request"] + 70_000
ALL_LEAK = RUNNING_LEAK + 50_000
RUNNING = sum(LIVE.values()) + 70_000 + 2 * 7
EVERY = RUNNING + 50_000 + 3 * 7
COUNT = 120 * 20 + 30 + 2


def picture_of(app: LiveApp) -> Picture:
    assert app.state.picture is not None
    return app.state.picture


def row(app: LiveApp, name: str) -> str:
    return next(line for line in text_of(app) if name in line and "tracelloc" not in line)


@on_live_screen(SIZE)
async def test_the_first_row_is_all_of_them(app: LiveApp, pilot: Pilot[int]) -> None:
    assert "shop-server (2954) 1 of 6 (T: all)" in text_of(app)[0]
    await press(app, pilot, "9")
    table = app.screen.query_one("#processes", Table)
    first = row(app, "all 6 processes")
    assert format_size(EVERY) in first
    assert f"{COUNT + 120 + 5:,}" in first
    assert format_size(24 * MIB + 18 * MIB) in first
    assert format_size(RUNNING) in row(app, "3 running processes")
    assert table.order[:2] == [ALL_PROCESSES, RUNNING_PROCESSES]
    # However they are sorted, they stay above.
    await press(app, pilot, "s", "S")
    assert table.order[:2] == [ALL_PROCESSES, RUNNING_PROCESSES]
    await press(app, pilot, "home", "enter")
    assert app.state.settings.process == ALL_PROCESSES
    assert "all 6 processes: 3 running, 3 ended" in text_of(app)[0]
    header = " ".join(text_of(app)[1:3])
    assert f"Heap  {format_size(EVERY)}" in header
    assert f"{format_size(50_021)} unfreed by ended ones" in text_of(app)[0]
    assert f"total RSS {format_size(42 * MIB)}" in header
    leak = row(app, "record_request")
    assert format_size(ALL_LEAK) in leak
    assert f" {120 * 20 + 120:,} " in leak
    await press(app, pilot, "9")
    assert "● all 6 processes" in row(app, "all 6 processes")


async def test_two_processes_are_shown_together_at_once(source: FakeSource) -> None:
    others, source.others = source.others, ()
    async with live(source, SIZE, together=True) as (app, pilot):
        assert app.state.settings.process == 0
        assert "process " not in row(app, "allocated in")
        source.others = others
        await tick(app, pilot)
        assert app.state.settings.process == ALL_PROCESSES
        assert "all 6 processes" in text_of(app)[0]
        assert "process " in row(app, "allocated in")
        # Two workers have blocks there as well; only the server logs.
        assert "  3 processes  " in row(app, "record_request (")
        assert "  shop-server (2954)  " in row(app, "append_log (")
        # Who chooses one keeps it.
        await press(app, pilot, "T", "T")
        assert app.state.settings.process == 0
        await tick(app, pilot)
        assert app.state.settings.process == 0


@pytest.mark.parametrize(("has_objects", "rate", "is_joint"), [(0, 9, 1), (1, 9, 0), (1, 0, 1)])
def test_a_first_process_stays_alone_for_its_objects_while_it_allocates(
    has_objects: int, rate: float, is_joint: int
) -> None:
    """A pre-fork server's parent does not."""
    shown: list[Settings] = []
    settings = Settings(VIEWS[0])
    state = SimpleNamespace(
        settings=settings, has_chosen_process=False, replace_settings=shown.append
    )
    runtime = SimpleNamespace(counts_objects=bool(has_objects))
    picture = SimpleNamespace(
        process_count=2,
        snapshot=SimpleNamespace(runtimes=[runtime]),
        header=SimpleNamespace(allocations_per_s=rate),
    )
    State.show_together(cast(State, state), cast(Picture, picture))
    assert [each.process for each in shown] == [ALL_PROCESSES] * is_joint


async def test_a_key_goes_round(source: FakeSource) -> None:
    def help_of(app: LiveApp, pilot: Pilot[int]) -> list[str]:
        return [f"{b.key} {b.tooltip}" for b in app.screen._bindings.key_to_bindings["T"]]

    async with live(source, SIZE) as (app, pilot):
        await press(app, pilot, "9", "end", "up", "enter")
        number = app.state.settings.process
        assert number > 0
        shown = []
        for _ in range(4):
            await press(app, pilot, "T")
            shown.append((app.state.settings.process, picture_of(app).snapshot.live_bytes))
        one = source.others[number - 1].live_bytes
        assert shown == [
            (ALL_PROCESSES, EVERY), (RUNNING_PROCESSES, RUNNING), (number, one),
            (ALL_PROCESSES, EVERY),
        ]  # fmt: skip
        assert any("T " in line and "All processes" in line for line in help_of(app, pilot))


async def test_one_process_has_no_row_for_all(source: FakeSource) -> None:
    source.others = ()
    async with live(source, SIZE) as (app, pilot):
        await press(app, pilot, "T", "9")
        assert app.state.settings.process == 0
        assert app.screen.query_one("#processes", Table).order == [0]
        assert "(T: all)" not in text_of(app)[0]


@on_live_screen(SIZE)
async def test_every_view_is_of_all_that_run(app: LiveApp, pilot: Pilot[int]) -> None:
    await press(app, pilot, "T", "T")
    assert "3 running processes" in text_of(app)[0]
    assert format_size(RUNNING_LEAK) in row(app, "record_request")
    await press(app, pilot, "2")
    assert len(app.screen.query_one("#blocks", Table).order) == 2000
    await press(app, pilot, "3")
    assert format_size(RUNNING) in " ".join(text_of(app))
    await press(app, pilot, "4")
    assert format_size(RUNNING) in row(app, "running processes")
    # The peak of all is nowhere: each had its own.
    for _ in Metric:
        await press(app, pilot, "w")
        assert app.state.settings.metric is not Metric.PEAK
    await press(app, pilot, "5")
    assert f" {COUNT - 120 * 20 - 32 + 72:,} " not in row(app, "512 - 1023 B")
    assert format_size(70_000) in row(app, "512 - 1023 B")
    assert any("choose a single process" in line for line in text_of(app))
    await press(app, pilot, "6")
    ages = app.screen.query_one("#ages", Table)
    counts = [str(ages._rows.cells(key, "count")) for key in ages.order]
    assert sum(int(count.replace(",", "")) for count in counts) == COUNT + 72
    await press(app, pilot, "7")
    assert format_size(50_007) in row(app, "mine-1")
    assert format_size(20_007) in row(app, "mine-3")
    await press(app, pilot, "8")
    assert any(line.startswith("target     3 running processes") for line in text_of(app))


@on_live_screen(SIZE)
async def test_search_details_limits_and_marks(
    app: LiveApp, pilot: Pilot[int], source: FakeSource, tmp_path: Path
) -> None:
    await press(app, pilot, "T", "M")
    await press(app, pilot, "slash", *"record", "enter", "enter")
    text = text_of(app)
    assert any(f" {format_size(ALL_LEAK)} in {120 * 20 + 120:,} blocks" in line for line in text)
    assert any("peak at least" in line for line in text)
    assert any("server.c:32" in line for line in text)
    await press(app, pilot, "escape", "escape")
    source.allocate_many(LEAK, 160, 10)
    source.others = (*source.others, worker(tmp_path, 6, 5))
    await tick(app, pilot)
    await press(app, pilot, "d")
    assert format_size(1600 + 5000) in row(app, "record_request")
    assert picture_of(app).settings.marks
    await press(app, pilot, "escape")
    export = tmp_path / "all.json"
    await press(app, pilot, "e")
    app.screen.query_one("#path").value = str(export)  # type: ignore[attr-defined]
    await press(app, pilot, "enter")
    await app.workers.wait_for_complete()
    written = json.loads(export.read_text())
    assert sum(stack["bytes"] for stack in written["stacks"]) == EVERY + 1600 + 5007
    assert written["command"] == "all processes"


async def test_who_has_ended_takes_one_line(source: FakeSource) -> None:
    def lines(**more: object) -> list[tuple[int, str]]:
        settings = replace(Settings(VIEWS[0]), **more)  # type: ignore[arg-type]
        return [
            (line.depth, line.name)
            for line in process_lines(source.take_snapshot(EVERYTHING), settings)
        ]

    together = [(0, "all 6 processes"), (0, "3 running processes")]
    running = [(0, "shop-server"), (1, "worker"), (1, "worker")]
    assert lines() == [*together, *running, (1, "3 ended (D opens)")]
    assert lines(shows_ended=True) == [*together, *running, *[(1, "worker")] * 3]
    # The one that is shown is not hidden; two are left.
    assert lines(process=4) == [*together, *running, (1, "worker"), (1, "2 ended (D opens)")]
    async with live(source, SIZE) as (app, pilot):
        await press(app, pilot, "9")
        assert format_size(50_021) in row(app, "3 ended (D opens)")
        await press(app, pilot, "end", "enter")
        assert sum("worker ended" in line for line in text_of(app)) == 3
        assert app.state.settings.view.name == "processes"
        await press(app, pilot, "D")
        assert row(app, "3 ended (D opens)")
        # The key is about this view, wherever it is pressed.
        await press(app, pilot, "1", "D")
        assert app.state.settings.view.name == "processes"
        assert sum("worker ended" in line for line in text_of(app)) == 3


def test_who_leaks_or_has_children_is_seen(source: FakeSource, tmp_path: Path) -> None:
    """Though it has ended, and with those above it."""
    leaky = replace(worker(tmp_path, 6, 9, ended=True), findings=watched().findings)
    leaky = replace(leaky, target=replace(leaky.target, parent_pid=4004))
    source.others = (*source.others, leaky)
    lines = process_lines(source.take_snapshot(EVERYTHING), Settings(VIEWS[0]))
    assert [(line.depth, line.key) for line in lines[2:]] == [
        (0, 0), (1, 1), (1, 3), (1, 4), (2, 6), (1, ("ended", 0)),
    ]  # fmt: skip


@on_live_screen(SIZE)
async def test_the_pane_shows_the_row_that_is_there_now(app: LiveApp, pilot: Pilot[int]) -> None:
    """Whatever numbers stacks have: those of the server, or of all."""
    for _ in range(4):
        assert picture_of(app).details.stack.frames[0].symbol == "record_request"
        _, _, pane = "\n".join(text_of(app)).partition("function, innermost first")
        assert "record_request" in pane
        await press(app, pilot, "T")
