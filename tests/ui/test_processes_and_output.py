"""The screen of several processes, and of a program that was started with it."""

from collections.abc import Hashable
from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot

from tests.ui.screens import program_writes, text_of
from tests.ui.source import FakeSource, live, on_live_screen, press, settle, shop, tick
from tracelloc.model.process import ALL_PROCESSES, RUNNING_PROCESSES, Target
from tracelloc.model.snapshotrequest import TOTALS_ONLY
from tracelloc.record.session.terminal import ProgramTerminal
from tracelloc.snapshots.snapshot import TraceSnapshot
from tracelloc.ui.app import LiveApp
from tracelloc.ui.output import OutputView
from tracelloc.ui.processview import process_lines
from tracelloc.ui.state import VIEWS
from tracelloc.ui.tableview import Table
from tracelloc.ui.view import Settings

SIZE = (110, 30)


@pytest.fixture
def source(tmp_path: Path) -> FakeSource:
    """A server, two workers of which one has ended, and a helper of the other one."""
    source = shop(tmp_path)
    source.has_many = True
    first = source.snapshot(TOTALS_ONLY)
    pid = first.target.pid
    source.others = tuple(
        replace(first, target=target, rss_bytes=None if target.has_ended else 9 << 20)
        for target in (
            Target(4001, "worker", pid, number=1, has_ended=True),
            Target(4002, "worker", pid, number=2),
            Target(4003, "helper\x1b[31m", 4002, number=3),
            # Another one with an old PID, and one whose parent is not traced.
            Target(4001, "late", 4003, number=4),
            Target(9, "stray", 1, number=5),
        )
    )
    return source


def names(trace: TraceSnapshot) -> list[tuple[int, str, Hashable]]:
    lines = process_lines(trace, Settings(VIEWS[0], shows_ended=True))
    return [(line.depth, line.name, line.key) for line in lines]


def test_processes_stand_below_their_parents(source: FakeSource) -> None:
    assert names(source.take_snapshot(TOTALS_ONLY)) == [
        (0, "all 6 processes", ALL_PROCESSES), (0, "5 running processes", RUNNING_PROCESSES),
        (0, "shop-server", 0), (1, "worker", 1), (1, "worker", 2), (2, "helper\x1b[31m", 3),
        (3, "late", 4), (0, "stray", 5),
    ]  # fmt: skip


@on_live_screen(SIZE)
async def test_one_process_is_shown_and_others_are_a_key_away(
    app: LiveApp, pilot: Pilot[int], source: FakeSource
) -> None:
    await press(app, pilot, "9")
    text = text_of(app)
    assert any("● shop-server" in line for line in text)
    assert any("worker ended" in line for line in text)
    assert any("helper" in line and "\x1b" not in line for line in text)
    assert any("5 of 6 processes running" in line for line in text)
    await press(app, pilot, "down", "down", "down", "down", "enter")
    assert (app.state.settings.process, app.state.settings.view) == (2, VIEWS[0])
    assert app.state.picture.snapshot.target.pid == 4002
    assert any("4002" in line for line in text_of(app)[:3])
    await press(app, pilot, "M", "9", "home", "down", "down", "enter")
    # A mark is about one process.
    assert (app.state.settings.process, app.state.settings.marks) == (0, ())
    await press(app, pilot, "9")
    table = app.screen.query_one("#processes", Table)
    assert list(table.order) == [ALL_PROCESSES, RUNNING_PROCESSES, 0, 1, 2, 3, 4, 5]
    await press(app, pilot, "s")
    assert app.state.settings.sorting.column == "bytes"
    await press(app, pilot, "S")
    assert app.state.settings.sorting.descending is False
    await press(app, pilot, "9", "end", "enter")
    assert app.state.settings.process == 5
    source.others = ()
    await tick(app, pilot)
    assert app.state.picture.snapshot.target.number == 0


async def test_without_them_there_are_no_such_tabs(tmp_path: Path) -> None:
    async with live(shop(tmp_path), SIZE) as (app, pilot):
        await press(app, pilot, "9", "0")
        assert app.state.settings.view is VIEWS[0]
        assert not any("Processes" in line for line in text_of(app))


async def test_who_reads_is_not_moved(source: FakeSource, terminal: ProgramTerminal) -> None:
    source.last_output = terminal.last_output
    program_writes(terminal, b"".join(b"line %d\n" % n for n in range(100)))
    async with live(source, SIZE) as (app, pilot):
        await press(app, pilot, "0")
        view = app.screen.query_one(OutputView)
        assert view.cursor == 99
        await press(app, pilot, "pageup")
        at = view.cursor
        program_writes(terminal, b"more\n")
        await tick(app, pilot)
        assert (view.cursor, view.row_count()) == (at, 101)
        await press(app, pilot, "end")
        program_writes(terminal, b"last\n")
        await tick(app, pilot)
        await settle(app, pilot)
        assert view.cursor == 101
