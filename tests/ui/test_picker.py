"""Choosing a process: search, cursor, refusals."""

import os
import time
from dataclasses import replace

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from tests.ui.screens import HOSTILE, MIB, SIZES, ViewApp, compare, harmless, on_screen, text_of
from tracelloc.model.process import ProcessInfo, Trouble
from tracelloc.record.process.processlist import ProcessScan, by_growth
from tracelloc.ui.picker import PickerScreen
from tracelloc.ui.tableview import Table

API = ProcessInfo(
    4242, "api", "/opt/api-server --port 8080 --config /etc/api.toml", "www", 131 * MIB, 3 * MIB,
    "malloc in libc.so.6", None, True,
)  # fmt: skip
INIT = ProcessInfo(1, "init", "/sbin/init", "root", 12 * MIB, 0, None, Trouble.REFUSED, True)
NODE = ProcessInfo(900, "node", "node server.js", "app", 400 * MIB, -2 * MIB, None, None, False)
INFOS = [API, INIT, NODE]


async def opened(
    app: ViewApp, pilot: Pilot[None], infos: list[ProcessInfo], note: str = ""
) -> tuple[PickerScreen, list[object]]:
    screen = PickerScreen(lambda: infos, refresh_s=0, note=note)
    return screen, await app.put_on_top(pilot, screen)


def current(screen: PickerScreen) -> int | None:
    info = screen.current
    return info.pid if info else None


@pytest.mark.parametrize("size", SIZES, ids=str)
@on_screen()
async def test_picture(app: ViewApp, pilot: Pilot[None], size: tuple[int, int]) -> None:
    screen, _ = await opened(app, pilot, INFOS, "api 77 has ended")
    screen.query_one(Input).cursor_blink = False
    await pilot.press("down")
    await compare("picker", app, pilot)


@on_screen()
async def test_what_is_typed_and_clicked(app: ViewApp, pilot: Pilot[None]) -> None:
    screen, result = await opened(app, pilot, INFOS)
    await pilot.press(*"NODE")
    assert current(screen) == 900
    assert "1 of 3 processes" in text_of(app)[0]
    await pilot.press("enter")
    assert result == [900]
    screen, result = await opened(app, pilot, INFOS)
    await pilot.press("down", "enter")
    assert current(screen) == 1
    assert result == []
    assert text_of(app)[-2].strip() == "cannot be traced (may not be inspected): /sbin/init"
    await pilot.press("pageup", "enter")
    assert result == [4242]
    screen, result = await opened(app, pilot, INFOS)
    await pilot.press(*"zzz")
    assert "No process matches" in text_of(app)[3]
    await pilot.press("enter", "escape")
    assert screen.query_one(Input).value == ""
    assert result == []
    assert "3 of 3 processes" in text_of(app)[0]
    await pilot.press("escape")
    assert result == [None]
    screen, result = await opened(app, pilot, INFOS)
    await pilot.click(Table, offset=(4, 3))
    assert current(screen) == 900
    await pilot.press(*"api")
    assert current(screen) == 4242, "the search still has the keys"
    await pilot.click(Table, offset=(4, 1), times=2)
    assert result == [4242]
    screen, _ = await opened(app, pilot, INFOS)
    screen.show([NODE, API, INIT])
    assert current(screen) == 900, "the first, whatever it is"
    await pilot.press("down")
    assert current(screen) == 4242
    screen.show(sorted([replace(NODE, growth_bytes_per_min=9 * MIB), INIT, API], key=by_growth))
    assert current(screen) == 4242
    screen.show([NODE, INIT])
    assert current(screen) == 1, "it has ended: the next one stands in its place"


@on_screen()
async def test_real_processes(app: ViewApp, pilot: Pilot[None]) -> None:
    screen = PickerScreen(ProcessScan().refresh, refresh_s=0.2)
    await app.push_screen(screen)
    screen.query_one(Input).value = f"{os.getpid()} itself"
    deadline = time.monotonic() + 30
    while current(screen) != os.getpid():
        assert time.monotonic() < deadline
        await pilot.pause(0.02)
    await pilot.pause()
    assert text_of(app)[-2].startswith(" cannot be traced (tracelloc itself)")


@pytest.mark.parametrize("size", [(20, 5), (60, 20), (120, 40)], ids=str)
@on_screen()
async def test_hostile_commands(app: ViewApp, pilot: Pilot[None], size: tuple[int, int]) -> None:
    infos = [
        replace(API, pid=n, command=name, arguments=name, user=name, allocator=name)
        for n, name in enumerate(HOSTILE)
    ]
    await opened(app, pilot, infos, HOSTILE[1])
    for _ in infos:
        assert harmless(app)
        app.screen.query_one(Table).action_cursor(1)
        await pilot.pause()
