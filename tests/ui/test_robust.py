"""Odd sizes, odd names, odd ends: the screen stays whole and says what is the matter."""

import asyncio
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from textual.geometry import Size
from textual.pilot import Pilot

from tests.ui.screens import HOSTILE, SIZES, harmless, shown_on, text_of
from tests.ui.source import LEAK, FakeSource, live, on_live_screen, press, settle, until
from tracelloc.errors import TargetError
from tracelloc.model.process import Target
from tracelloc.show.tables import Column
from tracelloc.ui.app import LiveApp, failure_of
from tracelloc.ui.details import DetailScreen
from tracelloc.ui.header import head_text
from tracelloc.ui.keyfooter import KeyFooter
from tracelloc.ui.lineview import HOLD_S
from tracelloc.ui.tableview import Table, TableRows

pytestmark = pytest.mark.long

EVERY_VIEW = [str(number) for number in range(1, 9)]


@pytest.mark.parametrize("size", [(20, 5), (1, 1), (40, 10), (300, 80)], ids=str)
@on_live_screen()
async def test_odd_sizes(app: LiveApp, pilot: Pilot[int], size: tuple[int, int]) -> None:
    for key in EVERY_VIEW:
        await press(app, pilot, key)
        assert harmless(app)
    await press(app, pilot, "1")
    if size == (20, 5):
        # Nothing but the figures and the table is left, and the rows are there.
        assert any("375 KiB" in line for line in text_of(app))
    await press(app, pilot, "enter", "escape", "L", "escape", "question_mark", "escape")
    assert harmless(app)


async def test_gone_before_drawn(source: FakeSource, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(_screen: DetailScreen) -> None:
        """What Textual does for a screen that is removed: what waits is never called."""

    async with live(source) as (app, pilot):
        await press(app, pilot, "enter")
        await until(app, pilot, lambda: isinstance(app.screen, DetailScreen))
        monkeypatch.setattr(DetailScreen, "_invoke_and_clear_callbacks", nothing)
        source.allocate(LEAK, 160)
        app.refresher.ask(app.state.settings, tick=True)
        while "_drawn" not in repr(app.screen._callbacks):
            await asyncio.sleep(0.001)
        await press(app, pilot, "escape", "5")
        assert any("2,401" in line for line in text_of(app))


@on_live_screen()
async def test_resize(app: LiveApp, pilot: Pilot[int]) -> None:
    for width, height in ((60, 20), (120, 40), (20, 5), (80, 24)):
        await pilot.resize_terminal(width, height)
        assert app.size == Size(width, height)
        await until(
            app, pilot, lambda: harmless(app) and any("375 KiB" in line for line in text_of(app))
        )


@pytest.mark.parametrize("size", [*SIZES, (20, 5)], ids=str)
async def test_hostile_names(tmp_path: Path, size: tuple[int, int]) -> None:
    stacks = {
        n: [(name or "x", f"/opt/{name}", f"/src/{name}.c", n), ("main", "/opt/app", None, None)]
        for n, name in enumerate(HOSTILE, 1)
    }
    stacks[99] = [(name or "x", f"/opt/{name}", None, None) for name in HOSTILE]
    threads = dict(enumerate(HOSTILE, 101))
    source = FakeSource(
        stacks, tmp_path, target=Target(1, HOSTILE[1]),
        change=lambda one: replace(one, thread_names=threads),
    )  # fmt: skip
    for tid, stack in enumerate(stacks, 101):
        source.allocate(stack, 1000 * stack, tid)
        source.free(source.allocate(stack, 10, tid))
    source.pass_second()
    async with live(source, size) as (app, pilot):
        for key in EVERY_VIEW:
            await press(app, pilot, key, "down", "asterisk")
            assert harmless(app), text_of(app)
        await press(app, pilot, "1", "home")
        # In full only at one size: they are many.
        for _ in HOSTILE if size == (80, 24) else HOSTILE[:2]:
            await press(app, pilot, "enter")
            assert harmless(app), text_of(app)
            await press(app, pilot, "y", "escape", "down")
        await press(app, pilot, "enter", "H", "z")
        assert harmless(app), text_of(app)
        await press(app, pilot, "escape", "f", "end")
        assert harmless(app), text_of(app)
        await press(app, pilot, "escape", "slash", "left_square_bracket")
        assert harmless(app), text_of(app)


async def test_nothing_yet(tmp_path: Path) -> None:
    async with live(FakeSource({}, tmp_path)) as (app, pilot):
        assert any("no allocations seen yet" in line for line in text_of(app))
        for key in (*EVERY_VIEW, "1", "enter", "b", "M", "d", "y", "m", "space"):
            await press(app, pilot, key)
        assert harmless(app)


async def test_the_target_ends_or_a_failure_ends_it(source: FakeSource) -> None:
    source.lost = 3
    async with live(source) as (app, _pilot):
        assert re.search(r"lost 3, [\d,]+ to [\d,]+ blocks live", text_of(app)[0])
    source.lost = 0
    stopped: list[int] = []
    async with live(source) as (app, pilot):
        source.allocate(LEAK, 160)
        source.rss_bytes = None
        app.end(2954, " (SIGTERM)", lambda: stopped.append(1))
        await settle(app, pilot)
        assert stopped == [1]
        assert "process ended (SIGTERM)" in text_of(app)[0]
        assert any("2,401" in line for line in text_of(app))
        # There is room for it, however long the name is.
        picture = app.state.picture
        longest = replace(picture.snapshot.target, command="x" * 15, pid=1 << 22)
        picture = replace(picture, snapshot=replace(picture.snapshot, target=longest))
        for width in (60, 80):
            text = head_text(picture, source.facts, app.state.condition, width, 2).plain
            first = text.splitlines()[0]
            assert "process ended" in first
            assert ("overhead low" in first) == (width == 80)
        # Everything but new figures goes on.
        taken = source.taken
        await press(app, pilot, "2", "1", "enter", "escape", "a")
        assert source.taken == taken
        await press(app, pilot, "8")
        assert any("process 2954 has ended" in line for line in text_of(app)[9:])


async def test_a_failure_ends_it_and_is_raised(source: FakeSource) -> None:
    async with live(source) as (app, _pilot):
        source.failure = TargetError("it broke")
        app.refresher.ask(app.state.settings, tick=True)
        for _ in range(1000):
            await asyncio.sleep(0.002)
            if app.failure is not None:
                break
    with pytest.raises(TargetError, match="it broke"):
        failure_of(app)


def test_a_bug_is_raised_and_not_printed(
    source: FakeSource, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Textual's own report would hold names of the target, as they are."""

    def breaks(*_: object, **__: object) -> None:
        raise ZeroDivisionError("\x1b[31m")

    app = LiveApp(source, interval_s=None)

    async def run() -> None:
        async with app.run_test() as pilot:
            await settle(app, pilot)
            monkeypatch.setattr("tracelloc.ui.tableview.Table.show", breaks)
            await press(app, pilot, "t", "a")

    with pytest.raises(ZeroDivisionError):
        asyncio.run(run())
    with pytest.raises(ZeroDivisionError):
        failure_of(app)
    assert capsys.readouterr() == ("", "")


async def test_readers_are_heard(source: FakeSource) -> None:
    reading, writing = os.pipe()
    heard: list[bytes] = []
    app = LiveApp(
        source, interval_s=None, readers={reading: lambda: heard.append(os.read(reading, 9))}
    )
    async with app.run_test() as pilot:
        os.write(writing, b"x")
        await settle(app, pilot)
    os.close(reading)
    os.close(writing)
    assert heard == [b"x"]


@on_live_screen(notifications=True)
async def test_messages(app: LiveApp, pilot: Pilot[int]) -> None:
    app.say("[b]/tmp/x[/b]\x1b[31m")
    for _ in range(1000):
        await settle(app, pilot)
        if any("[b]/tmp/x[/b]\\x1b[31m" in line for line in text_of(app)):
            break
        await asyncio.sleep(0.002)
    else:
        raise AssertionError(text_of(app))
    assert harmless(app)


# --- the table: who moves, and when ---


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


async def test_rows_wait_and_the_cursor_stays() -> None:
    clock = Clock()
    table = Table([Column("name", "name", 0)])
    table.now_s = clock

    def rows(*keys: str) -> TableRows:
        return TableRows(keys, lambda key, _column: str(key))

    async with shown_on(table, (40, 8)) as (_app, pilot):
        table.show(rows("a", "b", "c"))
        assert table.key == "a"
        # Not moved yet: it stays at the top, whatever is there.
        table.show(rows("b", "a", "c"))
        assert table.key == "b"
        await pilot.press("down")
        assert table.key == "a"
        # A key was pressed just now: new figures, old order.
        table.show(rows("c", "b", "a", "d"))
        assert list(table.order) == ["b", "a", "c"]
        clock.now_s += HOLD_S
        table.show(rows("c", "b", "a", "d"))
        assert list(table.order) == ["c", "b", "a", "d"]
        assert table.key == "a"
        # Its row is gone: the one that took its place.
        table.show(rows("c", "b"))
        assert table.key == "b"
        # The mouse button is down: nothing moves, however long.
        await pilot.mouse_down(table, offset=(2, 1))
        clock.now_s += 10
        table.show(rows("x", "y", "z"))
        assert list(table.order) == ["c", "b"]
        await pilot.mouse_up(table, offset=(2, 1))
        clock.now_s += HOLD_S
        table.show(rows("x", "y", "z"))
        assert list(table.order) == ["x", "y", "z"]
        await pilot.press("home")
        clock.now_s += HOLD_S
        table.show(rows("z", "x"))
        assert table.key == "z"


async def test_ten_thousand_rows_cost_what_is_seen() -> None:
    asked: set[object] = set()

    def cell(key: object, _column: str) -> str:
        asked.add(key)
        return str(key)

    table = Table([Column("name", "name", 0)])
    async with shown_on(table, (40, 20)) as (app, pilot):
        table.show(TableRows(range(10_000), cell))
        await pilot.pause()
        assert len(asked) <= 40
        await pilot.press("end")
        await pilot.pause()
        assert table.key == 9_999
        assert any("9999" in line for line in text_of(app))
        assert len(asked) <= 80


@on_live_screen()
async def test_keys_by_the_mouse_and_their_line(app: LiveApp, pilot: Pilot[int]) -> None:
    footer = app.screen.query_one(KeyFooter)
    before, line = footer._labels, text_of(app)[-1]
    assert "/ Search" in line
    await press(app, pilot, "down", "up", "a")
    assert footer._labels is before
    await pilot.hover(KeyFooter, offset=(line.index("Mark"), 0))
    assert app.screen.query_one(KeyFooter).tooltip == "Set a mark to compare with (d)"
    await pilot.click(KeyFooter, offset=(line.index("Mark"), 0))
    await until(app, pilot, lambda: len(app.state.settings.marks) == 1)
