"""Every list has one set of keys, whatever it lists."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.events import MouseScrollDown
from textual.pilot import Pilot

from tests.ui.screens import (
    ViewApp,
    build_tree,
    on_screen,
    path,
    program_writes,
    shown_on,
    text_of,
    weights,
)
from tests.ui.source import FakeSource, on_live_screen, press, settle, until
from tests.ui.test_picker import API, opened
from tracelloc.model.process import Target
from tracelloc.model.snapshotrequest import TOTALS_ONLY
from tracelloc.record.session.terminal import ProgramTerminal
from tracelloc.show.presentation.calltree import Step
from tracelloc.show.tables import Column
from tracelloc.ui.app import LiveApp
from tracelloc.ui.flame import FlameView
from tracelloc.ui.lineview import LIST_KEYS, LineView
from tracelloc.ui.nodes import Nodes
from tracelloc.ui.state import VIEWS
from tracelloc.ui.tableview import Table, TableRows

SIZE = (130, 24)
MANY = 60


@pytest.fixture
def source(tmp_path: Path, terminal: ProgramTerminal) -> FakeSource:
    """Sixty stacks of sixty sizes by sixty threads; the first one is sixty frames deep."""
    frames = [(f"f{n}", "/opt/app", "/src/app.c", n) for n in range(MANY)]
    source = FakeSource({n + 1: frames[n:] for n in range(MANY)}, tmp_path)
    for n in range(MANY):
        source.allocate(n + 1, 1 << 12 | n << 4, tid=200 + n)
        source.pass_second()
    first = source.snapshot(TOTALS_ONLY)
    source.has_many = True
    source.others = tuple(
        replace(first, target=Target(3000 + n, f"worker-{n}", first.target.pid, number=n))
        for n in range(1, MANY)
    )
    source.last_output = terminal.last_output
    program_writes(terminal, b"".join(b"line %d\n" % n for n in range(MANY)))
    return source


Press = Callable[[str], Awaitable[None]]


async def walk(rows: LineView[Any], press: Press, *, letters: bool = True) -> None:
    """Every key, from the first row on; figures don't move meanwhile."""
    last = rows.row_count() - 1
    page = min(rows.page_rows, last)
    assert last > 0, "a list of one row shows nothing"
    steps = [
        ("end", last), ("home", 0), ("down", 1), ("up", 0), ("up", 0), ("pagedown", page),
        ("pageup", 0), ("pageup", 0), ("ctrl+f", page), ("ctrl+b", 0), ("end", last),
        ("down", last), ("pagedown", last), ("home", 0),
    ]  # fmt: skip
    if letters:
        steps += [("G", last), ("g", 0), ("j", 1), ("j", min(2, last)), ("k", min(2, last) - 1)]
    for key, row in steps:
        await press(key)
        assert rows.cursor == row, key
        top = rows.scroll_offset.y
        assert top <= rows.cursor < top + rows.page_rows, f"{key}: the cursor is out of sight"
    pressed = {key for key, _ in steps}
    keys = {key for each in LIST_KEYS for key in each.key.split(",")} - {"enter"}
    assert pressed == (keys if letters else {key for key in keys if len(key) > 1})


# Views of all programs that are lists.
LISTS = [view.name for view in VIEWS if view.name not in ("flame", "objects", "memory", "types")]


@on_live_screen(SIZE)
async def test_views(app: LiveApp, pilot: Pilot[int]) -> None:
    """By keys, and by the mouse: a click puts the cursor, two choose, the wheel only scrolls."""
    for name in LISTS:
        await press(app, pilot, next(view.key for view in VIEWS if view.name == name))
        rows = app.screen.query_one(f"#{name}", LineView)
        assert rows.has_focus
        await walk(rows, lambda key: press(app, pilot, key))
        if name != "output":
            await press(app, pilot, "home")
            await click(app, pilot, rows)


async def click(app: LiveApp, pilot: Pilot[int], rows: LineView[Any]) -> None:
    top = rows.region.y + rows.header_lines
    await pilot.click(offset=(20, top + 2))
    await settle(app, pilot)
    assert rows.cursor == 2
    fits = rows.row_count() <= rows.page_rows
    for _ in range(5):
        await pilot._post_mouse_events([MouseScrollDown], offset=(20, top + 1))
    await until(app, pilot, lambda: fits or rows.scroll_offset.y > 0)  # it scrolls smoothly
    assert rows.cursor == 2
    assert (rows.scroll_offset.y == 0) == fits
    await press(app, pilot, "home")
    chosen: list[object] = []
    rows.chosen = lambda: chosen.append(rows.cursor)  # type: ignore[method-assign]
    await pilot.click(offset=(20, top + 1), times=2)
    assert chosen == [1]


@on_live_screen(SIZE)
async def test_dialogs_and_a_stack(app: LiveApp, pilot: Pilot[int]) -> None:
    live = app.screen
    for keys in (("f",), ("e", "tab"), ("t", "t", "g", "enter"), ("question_mark",)):
        await press(app, pilot, *keys)
        assert app.screen is not live
        rows = app.screen.focused
        assert isinstance(rows, LineView)
        await walk(rows, lambda key: press(app, pilot, key))
        await press(app, pilot, "escape")
        assert app.screen is live


@on_screen(size=SIZE)
async def test_processes(app: ViewApp, pilot: Pilot[None]) -> None:
    await opened(app, pilot, [replace(API, pid=n) for n in range(MANY)])
    await walk(app.screen.query_one(Table), pilot.press, letters=False)
    await pilot.press("j")
    assert "j" in text_of(app)[1], "letters are typed into the search"


async def test_flame_walks_boxes_with_the_same_keys() -> None:
    view = FlameView()
    stacks = [(1, path("a", "b", "c"), weights(9, 1, 0)), (2, path("d"), weights(5, 1, 0))]
    async with shown_on(view, SIZE) as (_app, pilot):
        nodes = Nodes(build_tree(stacks, Step("app", None)))
        view.show(nodes, at_once=True)
        found = []
        for key in ("j", "k", "down", "up", "G", "g", "end", "home", "j", "right", "left", "right"):
            await pilot.press(key)
            found.append(nodes.tree.steps[view.selected].name)
        assert found == ["a", "app", "a", "app", "c", "app", "c", "app", "a", "d", "a", "d"]
        assert view.page_rows > 4
        for key in ("home", "ctrl+f", "ctrl+b", "pagedown", "pageup"):
            await pilot.press(key)
            found.append(nodes.tree.steps[view.selected].name)
        assert found[-5:] == ["app", "c", "app", "c", "app"]


async def test_the_list_may_become_shorter_than_what_is_in_view() -> None:
    table = Table([])
    async with shown_on(table, SIZE) as (_app, pilot):
        table.show(TableRows(range(MANY), lambda _key, _column: ""))
        await pilot.press("end")
        assert table.scroll_offset.y == MANY - 24
        table.show(TableRows(range(30), lambda _key, _column: ""), at_once=True)
        await pilot.pause()
        assert (table.cursor, table.scroll_offset.y) == (29, 30 - 24)


async def test_notes_need_no_report_of_a_new_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Textual does not send it if something asks for a size before the new layout is drawn."""
    monkeypatch.setattr(Table, "on_resize", lambda _table: None)
    table = Table([Column("name", "name", 0)])
    table.low = 0
    table.styles.height = 2
    rows = TableRows(("one",), lambda key, _column: str(key), footer=[lambda _key: "a note"])
    async with shown_on(table, (40, 10)) as (app, pilot):
        table.show(rows, at_once=True)
        await pilot.pause()
        assert "a note" not in "\n".join(text_of(app))
        table.styles.height = 6
        await pilot.pause()
        assert "a note" in "\n".join(text_of(app))
